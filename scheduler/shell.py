"""The shell around the core: informers feed it events, its decisions are carried out, outcomes go back.

Everything runs on one event loop and the core is only touched between two awaits, so it needs no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import structlog

from api import v1beta1
from api.membership import GroupKey
from api.model import PodGroup
from api.wire import Job, Node, Pod
from runtime.client import Client
from runtime.clock import Clock, wait_for
from runtime.events import EventRecorder
from runtime.informer import Informer
from runtime.manager import Manager
from runtime.resources import JOBS, NODES, PODS
from runtime.store import EventType
from runtime.telemetry import span_for
from scheduler.binder import Binder
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.instructions import (
    Bind,
    Decision,
    EmitEvent,
    Regarding,
    SetGroupCondition,
    SetPodCondition,
)
from scheduler.status import PODGROUPS, StatusWriter

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Seconds between two looks while a cache is being replaced.
REPLACING = 0.01


class Shell:
    """Wires one core to one API server."""

    def __init__(self, client: Client, clock: Clock, core: Core) -> None:
        self._client = client
        self._clock = clock
        self._core = core
        self._news = anyio.Event()
        self.pods = Informer(client, PODS, Pod, clock=clock)
        self.nodes = Informer(client, NODES, Node, clock=clock)
        self.jobs = Informer(client, JOBS, Job, clock=clock)
        self.groups = Informer(client, PODGROUPS, clock=clock, decode=v1beta1.pod_group)
        self._informers: tuple[Informer[Any], ...] = (self.nodes, self.jobs, self.groups, self.pods)
        self.binder = Binder(client, clock, self._feed)
        self.status = StatusWriter(client, clock, self.pods, self.groups, lambda: self.binder.busy)
        self.recorder = EventRecorder(client, "phalanx.dev/scheduler", clock)
        self.pods.add_handler(self._feeder(events.PodSet, lambda pod: events.PodGone(pod.metadata.uid)))
        self.nodes.add_handler(self._feeder(events.NodeSet, lambda node: events.NodeGone(node.metadata.name)))
        self.jobs.add_handler(self._feeder(events.JobSet, lambda job: events.JobGone(job.metadata.uid)))
        self.groups.add_handler(self._feeder(events.GroupSet, lambda group: events.GroupGone(_key(group))))

    def add_to(self, manager: Manager) -> None:
        """Register everything that runs. Decisions start once all caches are complete."""
        for informer in self._informers:
            manager.add_informer(informer)
        manager.add_runnable("binder", self.binder.run)
        manager.add_runnable("events", self.recorder.run)
        manager.add_controller(self.status.controller)
        manager.add_runnable("loop", self.run)

    async def run(self) -> None:
        """Decide whenever there is something to decide."""
        log.info(
            "scheduling",
            nodes=len(self.nodes.store),
            pods=len(self.pods.store),
            groups=len(self.groups.store),
            names=", ".join(sorted(self._core.scheduler_names)),
        )
        while True:
            self._news = anyio.Event()
            while any(informer.replacing for informer in self._informers):
                # Half of a new list is told: room may be freed that others have taken by now.
                await self._clock.sleep(REPLACING)
            while self._decide():
                # Between two decisions the events that came in meanwhile are taken in.
                await anyio.lowlevel.checkpoint()
            due = self._core.next_time()
            if due is not None:
                due = max(due - self._clock.monotonic(), 0.0)
            await wait_for(self._clock, self._news, due)

    def _decide(self) -> bool:
        started = time.perf_counter()
        decision = self._core.cycle(self._clock.monotonic())
        if decision is None:
            return False
        elapsed = time.perf_counter() - started
        with span_for(
            decision.trace_uid,
            "schedule",
            entity=decision.entity,
            verdict=decision.verdict,
            placed=decision.placed,
            considered=decision.considered,
            seconds=elapsed,
        ):
            news = any(isinstance(i, Bind | SetGroupCondition | EmitEvent) for i in decision.instructions)
            (log.info if news else log.debug)(
                decision.verdict,
                entity=decision.entity,
                placed=decision.placed,
                ms=round(elapsed * 1e3, 2),
                reason=decision.message,
            )
            self._carry_out(decision)
        return True

    def _carry_out(self, decision: Decision) -> None:
        for instruction in decision.instructions:
            match instruction:
                case Bind():
                    self.status.drop_pod(instruction)
                    self.binder.submit(instruction)
                case SetGroupCondition():
                    self.status.set_group(instruction)
                case SetPodCondition():
                    self.status.set_pod(instruction)
                case EmitEvent(regarding, type_, reason, note):
                    self.recorder.event(_reference(regarding), type_, reason, note, "Scheduling")

    def _feed(self, event: events.Event) -> None:
        self._core.handle(event)
        self._news.set()

    def _feeder(
        self, set_event: Callable[[Any], events.Event], gone_event: Callable[[Any], events.Event]
    ) -> Callable[[EventType, Any, Any], None]:
        def handler(event: EventType, old: Any, new: Any) -> None:
            self._feed(gone_event(old) if event == "delete" else set_event(new))

        return handler


def _key(group: PodGroup) -> GroupKey:
    return GroupKey(group.metadata.namespace, group.metadata.name)


def _reference(regarding: Regarding) -> dict[str, str]:
    return {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "namespace": regarding.namespace,
        "name": regarding.name,
        "uid": regarding.uid,
    }
