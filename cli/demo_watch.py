"""What the demo sees: one neutral watcher of Jobs, Workloads, PodGroups and pods, and a timeline of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import anyio
import anyio.abc

from api import conditions, v1beta1
from api.membership import named_group
from api.model import PodGroup, Workload
from api.wire import Job, Pod
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.informer import Informer
from runtime.resources import JOBS, PODS, Resource
from runtime.store import EventType

PODGROUPS = Resource(v1beta1.GROUP, v1beta1.VERSION, "podgroups", "PodGroup")
WORKLOADS = Resource(v1beta1.GROUP, v1beta1.VERSION, "workloads", "Workload")

NAMESPACE = "default"

T = TypeVar("T", PodGroup, Workload)


class MissingError(Exception):
    """Something the demo waited for did not happen; the message says what, and what was seen instead."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something seen at a time of the local clock."""

    #: The server's own order of all changes.
    version: int
    at: datetime
    kind: str
    name: str
    what: str


class Watched:
    """Live copies of what the demo talks about, and every change of it in order."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = SystemClock()
        self.moments: list[Moment] = []
        self.jobs = Informer(client, JOBS, Job, clock=self.clock, namespace=NAMESPACE)
        self.pods = Informer(client, PODS, Pod, clock=self.clock, namespace=NAMESPACE)
        self.workloads = Informer(client, WORKLOADS, clock=self.clock, decode=v1beta1.workload, namespace=NAMESPACE)
        self.groups = Informer(client, PODGROUPS, clock=self.clock, decode=v1beta1.pod_group, namespace=NAMESPACE)
        self.jobs.add_handler(self._job)
        self.workloads.add_handler(self._workload)
        self.groups.add_handler(self._group)
        self.pods.add_handler(self._pod)

    async def start(self, group: anyio.abc.TaskGroup) -> None:
        """Watch in the background; returns when everything is seen."""
        informers: list[Informer[Job] | Informer[Pod] | Informer[Workload] | Informer[PodGroup]]
        informers = [self.jobs, self.workloads, self.groups, self.pods]
        for informer in informers:
            group.start_soon(informer.run)
        for informer in informers:
            await informer.synced.wait()

    async def until(self, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until ``check`` holds.

        :raises MissingError: it did not within ``seconds``
        """
        deadline = self.clock.monotonic() + seconds
        while not check():
            if self.clock.monotonic() > deadline:
                raise MissingError(f"{what}: not seen within {seconds:.0f} s; {self._present()}")
            await anyio.sleep(0.05)

    def pods_of(self, job: str) -> list[Pod]:
        """Pods of a Job, by its name."""
        return [p for p in self.pods.store.values() if (c := p.metadata.controller) is not None and c.name == job]

    def group_of(self, job: str) -> PodGroup | None:
        """The PodGroup that a Job controls, by the Job's name."""
        return _controlled(self.groups.store.values(), job)

    def workload_of(self, job: str) -> Workload | None:
        """The Workload that a Job controls, by the Job's name."""
        return _controlled(self.workloads.store.values(), job)

    def _present(self) -> str:
        pods = self.pods.store.values()
        bound = sum(1 for pod in pods if pod.spec.node_name)
        groups = ", ".join(f"{g.metadata.name} {_condition(g)}" for g in self.groups.store.values()) or "none"
        return f"there are {len(pods)} pods ({bound} bound), PodGroups: {groups}"

    def _note(self, obj: Job | Workload | PodGroup | Pod, what: str) -> None:
        metadata = obj.metadata
        version = int(metadata.resource_version or 0)
        self.moments.append(Moment(version, self.clock.now(), type(obj).__name__, metadata.name, what))

    def _job(self, event: EventType, old: Job | None, new: Job | None) -> None:
        if event == "add" and new is not None:
            self._note(new, f"created, parallelism {new.spec.parallelism}")
        elif event == "delete" and old is not None:
            self._note(new or old, "deleted")
        elif old is not None and new is not None and new.finished and not old.finished:
            self._note(new, "finished")

    def _workload(self, event: EventType, old: Workload | None, new: Workload | None) -> None:
        if event == "add" and new is not None:
            self._note(new, "created")
        elif event == "delete" and old is not None:
            self._note(new or old, "deleted")

    def _group(self, event: EventType, old: PodGroup | None, new: PodGroup | None) -> None:
        if event == "add" and new is not None:
            self._note(new, f"created, minCount {new.min_count}")
        elif event == "delete" and old is not None:
            self._note(new or old, "gone")
        elif old is not None and new is not None:
            if new.metadata.deletion_timestamp and not old.metadata.deletion_timestamp:
                self._note(new, "in deletion, held by its pods")
            if _condition(new) != _condition(old):
                self._note(new, _condition(new))

    def _pod(self, event: EventType, old: Pod | None, new: Pod | None) -> None:
        if event == "add" and new is not None:
            stamp = ", stamped with its group" if named_group(new) is not None else ""
            self._note(new, f"created for {new.spec.scheduler_name}{stamp}")
        elif event == "delete" and old is not None:
            self._note(new or old, "gone")
        elif old is not None and new is not None and new.spec.node_name and not old.spec.node_name:
            self._note(new, f"bound to {new.spec.node_name}")
        elif old is not None and new is not None and new.terminal and not old.terminal:
            self._note(new, "ended")


def _controlled(objects: Iterable[T], job: str) -> T | None:
    return next((o for o in objects if (c := o.metadata.controller) is not None and c.name == job), None)


def _condition(group: PodGroup) -> str:
    condition = conditions.find(group.status.conditions, conditions.INITIALLY_SCHEDULED)
    return f"{condition.reason}: {condition.message}" if condition is not None else "no condition yet"
