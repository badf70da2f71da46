"""One process from its first line to its exit status: logs and traces, login, a usable cluster, leadership, work."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import structlog

from runtime import loop, telemetry
from runtime.cancellation import own_cancellation_only
from runtime.client import Client
from runtime.clock import Clock, SystemClock
from runtime.election import LeaseElection
from runtime.exchange import RequestStatistics
from runtime.identity import own_identity
from runtime.kr8s_seam import connect
from runtime.loop import LoopStatistics
from runtime.manager import Manager, give_back
from runtime.memory import tune_gc, tune_tls
from runtime.metrics import ProcessCollector
from runtime.probes import Probes
from runtime.resources import Resource
from runtime.usable import Waiting, usable_before_signal

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Seconds that a cluster may lack something before more than a line of the log is made of it: servers that start lack
#: much for a moment.
PATIENCE = 30.0

#: Seconds that the end of such a wait may take for giving leadership back.
GIVE_BACK = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """What a process is.

    :param name: service name in traces, of the Lease, and in the User-Agent
    :param namespace: where its Lease is
    :param reads: resources it cannot work without, in the order in which a cluster that lacks them is told of
    :param remedies: by apiVersion, what to do where the API server does not serve it
    :param add_to: registers all that runs with the manager
    :param meanwhile: runs while the process leads and waits for what only a person can mend, until it is cancelled
    :param reads_in: the namespace in which it reads, where it may not read all; None for all
    """

    name: str
    namespace: str
    reads: Sequence[Resource]
    remedies: Mapping[str, str]
    add_to: Callable[[Client, Clock, Manager], None]
    meanwhile: Callable[[Client, Clock, Waiting], Coroutine[Any, Any, Any]] | None = None
    reads_in: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a process is run.

    :param kubeconfig: file; None for $KUBECONFIG, ~/.kube/config, then the pod's ServiceAccount
    :param context: in the kubeconfig; None for the current one
    :param leader_elect: false where it is the only replica for certain
    :param metrics_address: host and port of the probes and metrics; None for none
    :param json_logs: None for text on a terminal and JSON elsewhere
    """

    kubeconfig: Path | None = None
    context: str | None = None
    leader_elect: bool = True
    metrics_address: tuple[str, int] | None = None
    json_logs: bool | None = None


def main(program: Program, settings: Settings) -> int:
    """Run until stopped by a signal; return the exit status.

    :raises ConfigError: the kubeconfig or the metrics' address cannot be used
    """
    return loop.run(lambda statistics: run(program, settings, statistics))


async def run(program: Program, settings: Settings, statistics: LoopStatistics) -> int:
    """Run as :func:`main`, on a loop that is there."""
    telemetry.setup(program.name, json_logs=settings.json_logs)
    tune_gc()
    tune_tls()
    clock, requests, identity = SystemClock(), RequestStatistics(), own_identity()
    collector = ProcessCollector(program.name, requests, statistics)
    api = await connect(settings.kubeconfig, settings.context, user_agent=f"{program.name} ({identity})")
    make_client = functools.partial(Client, api, clock=clock, statistics=requests)
    try:
        probes = Probes(collector)
        if settings.metrics_address is not None:
            # Outside the group, which would wrap the error that names the address.
            await probes.listen(*settings.metrics_address)
        async with anyio.create_task_group() as group:
            if settings.metrics_address is not None:
                group.start_soon(probes.serve)
            status = await take_part(program, clock, make_client, collector, settings.leader_elect, identity)
            group.cancel_scope.cancel()
        return status
    finally:
        await api.aclose()
        telemetry.shutdown()


async def take_part(
    program: Program,
    clock: Clock,
    make_client: Callable[..., Client],
    collector: ProcessCollector,
    leader_elect: bool,
    identity: str,
) -> int:
    """Wait for the cluster, then work whenever this replica leads; return the exit status.

    Each time leadership is lost all is made anew: what was decided by the old view of the cluster goes with it.
    """
    # Not bound to leadership: the Lease is written by who does not lead.
    client = make_client()

    def elect() -> tuple[LeaseElection | None, Client]:
        """Return a part in the election, and the client of what is done by it."""
        if not leader_elect:
            return None, client
        election = LeaseElection(client, clock, name=program.name, namespace=program.namespace, identity=identity)
        return election, make_client(before_write=election.check)

    async def meanwhile(waiting: Waiting) -> None:
        assert program.meanwhile is not None
        await clock.sleep(PATIENCE)
        while not waiting.lacks:
            await clock.sleep(PATIENCE)
        while True:
            election, worker = elect()
            say = functools.partial(program.meanwhile, worker, clock, waiting)
            if election is None:
                await say()
                return
            await _while_leading(election, clock, say)

    # Who has nothing to say meanwhile needs no Lease for it.
    beside = meanwhile if program.meanwhile is not None else None
    if not await usable_before_signal(
        client, clock, program.reads, program.remedies, beside, namespace=program.reads_in
    ):
        return 0
    while True:
        election, worker = elect()
        manager = collector.manager = Manager(clock, election=election)
        program.add_to(worker, clock, manager)
        status = await manager.run()
        if not manager.lost_leadership:
            return status
        log.info("taking part again, as a new replica would")
        del manager, election, worker
        gc.collect()  # or it would lie beside its successor for hours


async def _while_leading(election: LeaseElection, clock: Clock, run: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Lead, run it, and return when leadership is lost; given back when cancelled."""
    lost = False
    try:
        await election.acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                with own_cancellation_only():
                    await election.hold()
            except Exception:
                log.exception("leadership was lost")
            lost = True
            group.cancel_scope.cancel()
    finally:
        if not lost:
            await give_back(election, clock, GIVE_BACK)
