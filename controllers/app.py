"""The controllers' process: what it reads, what it runs, and that it waits for a cluster that is not ready for it."""

from __future__ import annotations

from collections.abc import Iterable

from api import names, v1beta1
from api.model import PodGroup, Workload
from api.wire import Job, Pod, PriorityClass
from controllers import native
from controllers.job import JobController
from controllers.podgroup_protection import ProtectionController
from controllers.pods import index, slim
from controllers.resources import PODGROUPS, WORKLOADS
from controllers.waiting import tell_jobs
from runtime.client import Client
from runtime.clock import Clock
from runtime.events import EventRecorder
from runtime.informer import Informer
from runtime.manager import Manager
from runtime.process import Program
from runtime.resources import JOBS, PODS, PRIORITYCLASSES
from runtime.usable import Waiting

COMPONENT = f"{names.GROUP}/controllers"
#: What is read, in the order in which a cluster that is not ready for us is told of.
READ = (PODGROUPS, WORKLOADS, JOBS, PODS, PRIORITYCLASSES)


class Controllers:
    """All informers and controllers of the process, wired to one client."""

    def __init__(self, client: Client, clock: Clock, scheduler_names: Iterable[str] = (names.SCHEDULER_NAME,)) -> None:
        self._client = client
        self._clock = clock
        self.jobs = Informer(client, JOBS, Job, clock=clock)
        self.pods = Informer(client, PODS, Pod, clock=clock, transform=slim)
        self.priority_classes = Informer(client, PRIORITYCLASSES, PriorityClass, clock=clock)
        self.workloads: Informer[Workload] = Informer(client, WORKLOADS, clock=clock, decode=v1beta1.workload)
        self.pod_groups: Informer[PodGroup] = Informer(client, PODGROUPS, clock=clock, decode=v1beta1.pod_group)
        index(self.pods)
        self.recorder = EventRecorder(client, COMPONENT, clock)
        self.job = JobController(
            client,
            jobs=self.jobs,
            workloads=self.workloads,
            pod_groups=self.pod_groups,
            pods=self.pods,
            priority_classes=self.priority_classes,
            recorder=self.recorder,
            clock=clock,
            scheduler_names=scheduler_names,
        )
        self.protection = ProtectionController(
            client,
            pod_groups=self.pod_groups,
            pods=self.pods,
            clock=clock,
            scheduler_names=frozenset(scheduler_names),
        )

    def add_to(self, manager: Manager) -> None:
        """Let the manager run all of it."""
        for informer in (self.jobs, self.pods, self.priority_classes, self.workloads, self.pod_groups):
            manager.add_informer(informer)
        manager.add_controller(self.job.controller)
        manager.add_controller(self.protection.controller)
        manager.add_runnable("events", self.recorder.run, needs_leader=False)
        manager.add_runnable("native-jobs probe", self._measure_native, may_return=True)

    async def _measure_native(self) -> None:
        await native.measure(self._client, self._clock, self.job.set_native)


def program(scheduler_names: frozenset[str]) -> Program:
    """Return the controllers for Jobs whose pods name one of these schedulers, or that are marked."""

    def add_to(client: Client, clock: Clock, manager: Manager) -> None:
        Controllers(client, clock, scheduler_names).add_to(manager)

    async def meanwhile(client: Client, clock: Clock, waiting: Waiting) -> None:
        await tell_jobs(client, clock, waiting, COMPONENT, scheduler_names)

    return Program("phalanx-controllers", names.SYSTEM_NAMESPACE, READ, v1beta1.REMEDIES, add_to, meanwhile)
