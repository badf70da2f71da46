"""One process from its first line to its exit status: logs and traces, login, a usable cluster, the manager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import telemetry
from runtime.client import Client
from runtime.clock import Clock, SystemClock
from runtime.kr8s_seam import connect
from runtime.manager import Manager
from runtime.memory import tune_gc
from runtime.resources import Resource
from runtime.usable import Waiting, usable_before_signal


@dataclass(frozen=True, slots=True)
class Program:
    """What a process is.

    :param name: service name in traces, and the User-Agent
    :param reads: resources it cannot work without, in the order in which a cluster that lacks them is told of
    :param remedies: by apiVersion, what to do where the API server does not serve it
    :param add_to: registers all that runs with the manager
    :param meanwhile: runs while the process waits for the cluster, until it is cancelled
    """

    name: str
    reads: Sequence[Resource]
    remedies: Mapping[str, str]
    add_to: Callable[[Client, Clock, Manager], None]
    meanwhile: Callable[[Client, Clock, Waiting], Coroutine[Any, Any, Any]] | None = None


async def run(
    program: Program, kubeconfig: Path | None, context: str | None = None, *, json_logs: bool | None = None
) -> int:
    """Run until stopped by a signal; return the exit status.

    :raises ConfigError: the kubeconfig cannot be used
    """
    telemetry.setup(program.name, json_logs=json_logs)
    tune_gc()
    clock = SystemClock()
    api = await connect(kubeconfig, context, user_agent=program.name)
    try:
        client = Client(api, clock=clock)
        meanwhile = functools.partial(program.meanwhile, client, clock) if program.meanwhile is not None else None
        if not await usable_before_signal(client, clock, program.reads, program.remedies, meanwhile):
            return 0
        manager = Manager(clock)
        program.add_to(client, clock, manager)
        return await manager.run()
    finally:
        await api.aclose()
        telemetry.shutdown()
