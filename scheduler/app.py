"""The scheduler process."""

from __future__ import annotations

from pathlib import Path

from runtime import telemetry
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.kr8s_seam import connect
from runtime.manager import Manager
from runtime.memory import tune_gc
from scheduler.core.core import Core
from scheduler.shell import Shell


async def run(
    kubeconfig: Path | None, context: str | None, scheduler_names: frozenset[str], *, json_logs: bool | None = None
) -> int:
    """Run until stopped by a signal; return the exit status.

    :raises ConfigError: the kubeconfig cannot be used
    """
    telemetry.setup("phalanx-scheduler", json_logs=json_logs)
    tune_gc()
    clock = SystemClock()
    api = await connect(kubeconfig, context, user_agent="phalanx-scheduler")
    try:
        manager = Manager(clock)
        Shell(Client(api, clock=clock), clock, Core(scheduler_names)).add_to(manager)
        return await manager.run()
    finally:
        await api.aclose()
        telemetry.shutdown()
