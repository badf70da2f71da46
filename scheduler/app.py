"""The scheduler process."""

from __future__ import annotations

from pathlib import Path

from api import v1beta1
from runtime import telemetry
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.kr8s_seam import connect
from runtime.manager import Manager
from runtime.memory import tune_gc
from runtime.resources import JOBS, NODES, PODS
from runtime.usable import usable_before_signal
from scheduler.core.core import Core
from scheduler.shell import Shell
from scheduler.status import PODGROUPS

#: What is read, in the order in which a cluster that is not ready for us is told of.
READ = (PODGROUPS, PODS, NODES, JOBS)


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
        client = Client(api, clock=clock)
        if not await usable_before_signal(client, clock, READ, v1beta1.REMEDIES):
            return 0
        manager = Manager(clock)
        Shell(client, clock, Core(scheduler_names)).add_to(manager)
        return await manager.run()
    finally:
        await api.aclose()
        telemetry.shutdown()
