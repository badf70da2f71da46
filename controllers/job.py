"""Job -> Workload -> PodGroup: carries out what :mod:`controllers.plan` decides, and says so in Events.

Creates are by POST under fixed names, so a second one can only ever meet the first, and a stranger's object is
reported and left alone. Changes are JSON patches that test the uid and the value they replace. Nothing is written
when nothing changed, and nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import structlog

from api import names
from api.membership import owning_job
from api.model import Owner, PodGroup, Workload
from api.v1beta1 import to_wire
from api.wire import Job, Pod, PriorityClass
from controllers import dropped, groups
from controllers.plan import Make, Observed, Release, Report, Resize, Step, plan
from controllers.pods import BY_JOB
from controllers.recent import Recent
from controllers.resources import PODGROUPS, WORKLOADS, job_reference
from runtime.client import Client
from runtime.clock import Clock
from runtime.controller import Controller, Result
from runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable, explain
from runtime.events import EventRecorder
from runtime.informer import Informer
from runtime.objects import Key, key_of
from runtime.resources import Resource
from runtime.store import EventType
from runtime.telemetry import span_for
from runtime.workqueue import RateLimitingQueue
from runtime.writes import Created, Exists, Foreign, Terminating, create_owned

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Owned = TypeVar("Owned", Workload, PodGroup)

#: Index of Jobs: key of their Workload and PodGroup.
_BY_GROUP = "group-key"
#: A Job needs a Workload and a PodGroup, resized or released: more steps in one reconcile are a fault of ours.
MAX_STEPS = 8
#: Notes remembered for one Job and reason; a server that words each refusal anew must not fill the memory.
MAX_NOTES = 16
#: Seconds until a name held by an object in deletion is tried again; its deletion's event usually comes first.
NAME_HELD = 5.0


class JobController:
    """The reconciler of Jobs.

    :param native: whether kube-controller-manager makes the groups of Jobs itself; None while unknown. To be set
        by who measures it, with :meth:`set_native`
    """

    def __init__(
        self,
        client: Client,
        *,
        jobs: Informer[Job],
        workloads: Informer[Workload],
        pod_groups: Informer[PodGroup],
        pods: Informer[Pod],
        priority_classes: Informer[PriorityClass],
        recorder: EventRecorder,
        clock: Clock,
        scheduler_names: Iterable[str] = (names.SCHEDULER_NAME,),
        workers: int = 4,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._workloads = workloads
        self._pod_groups = pod_groups
        self._pods = pods
        self._priority_classes = priority_classes
        self._recorder = recorder
        self._scheduler_names = frozenset(scheduler_names)
        self._native: bool | None = None
        self._recent_workloads: Recent[Workload] = Recent(clock)
        self._recent_pod_groups: Recent[PodGroup] = Recent(clock)
        #: Job uid -> reason -> notes, so that a situation that lasts is told once.
        self._said: dict[str, dict[str, set[str]]] = {}
        queue: RateLimitingQueue[Key] = RateLimitingQueue(clock, name="job", base=0.05, cap=60.0)
        self.controller: Controller[Key] = Controller("job", self.reconcile, queue, clock=clock, workers=workers)
        self._wire()

    def _wire(self) -> None:
        self._jobs.store.add_index(_BY_GROUP, _group_key)
        self._workloads.store.add_index(BY_JOB, _controlling_job)
        self._pod_groups.store.add_index(BY_JOB, _controlling_job)
        # Before the queue: what a key is reconciled on must not be older than the event that queued it.
        self._workloads.add_handler(self._recent_workloads.handle)
        self._pod_groups.add_handler(self._recent_pod_groups.handle)
        self._jobs.add_handler(self._forget)
        enqueue_on = self.controller.enqueue_on
        enqueue_on(self._jobs)
        enqueue_on(self._workloads, self._job_keys)
        enqueue_on(self._pod_groups, self._job_keys)
        enqueue_on(self._pods, _pod_job_key, predicate=self._matters)

    def set_native(self, native: bool) -> None:
        """Learn whether kube-controller-manager makes the groups of Jobs itself."""
        if native == self._native:
            return
        self._native = native
        for key in list(self._jobs.store.keys()):
            self.controller.queue.add(key)

    # -- one Job --------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one Job's objects to what they should be."""
        job = self._jobs.store.get_key(key)
        if job is None:
            return None
        with span_for(job.metadata.uid, "reconcile Job", job=f"{key[0]}/{key[1]}"):
            for _ in range(MAX_STEPS):
                decided = plan(self._observe(job))
                for report in decided.reports:
                    self._say(job, report)
                if decided.step is None:
                    return None
                waiting = await self._carry_out(job, decided.step)
                if waiting is not None:
                    return waiting
        raise RuntimeError(f"Job {key[0]}/{key[1]}: no end after {MAX_STEPS} steps")

    def _observe(self, job: Job) -> Observed:
        """The cache, with our own newer writes over it."""
        uid = job.metadata.uid
        own: Key = (job.metadata.namespace, names.group_name(job.metadata.name, uid))
        classes = self._priority_classes.store
        return Observed(
            job=job,
            workloads=_overlaid(self._workloads, self._recent_workloads, uid, own),
            pod_groups=_overlaid(self._pod_groups, self._recent_pod_groups, uid, own),
            pods=self._pods.store.by_index(BY_JOB, uid),
            native=self._native,
            preemption_policy=lambda name: groups.preemption_policy(name, classes),
            scheduler_names=self._scheduler_names,
        )

    async def _carry_out(self, job: Job, step: Step) -> Result | None:
        match step:
            case Make(obj):
                return await self._make(job, obj)
            case Resize(obj, old, new):
                await self._resize(job, obj, old, new)
            case Release(obj):
                return await self._release(job, obj)
        return None

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _make(self, job: Job, obj: Workload | PodGroup) -> Result | None:
        kind, resource = type(obj).__name__, _resource(obj)
        name, namespace = obj.metadata.name, obj.metadata.namespace
        informer: Informer[Any] = self._workloads if isinstance(obj, Workload) else self._pod_groups
        in_the_way = informer.store.get(namespace, name)
        if in_the_way is not None:  # a stranger's, as ours would not have led here: no need to ask the server
            self._say(job, _foreign(kind, name, in_the_way.metadata.controller))
            return Result()
        try:
            outcome = await create_owned(
                self._client, resource, to_wire(obj), owner_uid=job.metadata.uid, namespace=namespace
            )
        except ApiError as error:
            if _namespace_terminating(error):
                return Result()
            if not isinstance(error, Unreachable):
                self._say(job, Report(f"Failed{kind}Create", f"{kind} {name} could not be made: {_words(error)}"))
            raise
        match outcome:
            case Created(answer):
                log.info(f"{kind} created", key=(namespace, name), job=job.metadata.name)  # noqa: G004
                stored = type(obj).model_validate(answer)
                self._remember(stored)
                self._unsay(job, f"Failed{kind}Create")
                await self._record_dropped(job, obj, stored)
                made = f"Created {kind} {name} for Job {job.metadata.name}"
                self._say(job, Report(f"{kind}Created", made, "Normal"))
            case Exists(answer):
                self._remember(type(obj).model_validate(answer))
            case Terminating():
                return Result(requeue_after=NAME_HELD)
            case Foreign(answer):
                self._say(job, _foreign(kind, name, type(obj).model_validate(answer).metadata.controller))
                return Result()
        return None

    async def _record_dropped(self, job: Job, sent: Workload | PodGroup, stored: Workload | PodGroup) -> None:
        lost = dropped.dropped(sent, stored)
        if not lost:
            return
        metadata = stored.metadata
        ops = dropped.patch(stored, lost)
        answer = await self._client.json_patch(_resource(sent), metadata.name, metadata.namespace, ops)
        self._remember(type(sent).model_validate(answer))
        note = (
            f"the API server does not keep {', '.join(sorted(lost))} of a {type(sent).__name__} (a feature gate is "
            f"off); it is recorded in the annotation {names.DROPPED_FIELDS_ANNOTATION}, and Phalanx acts on that"
        )
        self._say(job, Report("DroppedFields", note))

    async def _resize(self, job: Job, obj: Workload | PodGroup, old: int, new: int) -> None:
        path = "/spec/schedulingPolicy/gang/minCount"
        if isinstance(obj, Workload):
            path = "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount"
        ops: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": obj.metadata.uid},
            {"op": "test", "path": path, "value": old},
            {"op": "replace", "path": path, "value": new},
        ]
        metadata, kind = obj.metadata, type(obj).__name__
        try:
            answer = await self._client.json_patch(_resource(obj), metadata.name, metadata.namespace, ops)
        except Invalid as error:
            # A failed test names no field: the cache is behind, and its event brings the key again.
            if error.causes:
                note = f"minCount of {kind} {metadata.name} stays {old}, not {new}: {_words(error)}"
                self._say(job, Report(f"Failed{kind}Update", note))
            raise
        self._remember(type(obj).model_validate(answer))
        self._unsay(job, f"Failed{kind}Update")
        log.info(f"{kind} resized", key=key_of(obj), old=old, new=new)  # noqa: G004

    async def _release(self, job: Job, group: PodGroup) -> Result | None:
        """The Job is suspended: its group's name must be free as soon as its old pods are gone."""
        metadata = group.metadata
        try:
            await self._client.delete(PODGROUPS, metadata.name, metadata.namespace, uid=metadata.uid)
        except NotFound:
            return Result()  # its event is on the way
        log.info("PodGroup released, its Job is suspended", key=key_of(group), job=job.metadata.name)
        cached = self._pod_groups.store.get_key(key_of(group))
        if self._recent_pod_groups.newest(key_of(group), cached) is not None:
            # Until its own event comes, so that it is not deleted twice.
            leaving = metadata.model_copy(update={"deletion_timestamp": "now"})
            self._recent_pod_groups.put(group.model_copy(update={"metadata": leaving}))
        return None

    def _remember(self, obj: Workload | PodGroup) -> None:
        if isinstance(obj, Workload):
            self._recent_workloads.put(obj)
        else:
            self._recent_pod_groups.put(obj)

    # -- Events ---------------------------------------------------------------------------------------------------

    def _say(self, job: Job, report: Report) -> None:
        said = self._said.setdefault(job.metadata.uid, {}).setdefault(report.reason, set())
        if report.note in said:
            return
        if len(said) >= MAX_NOTES:
            said.clear()
        said.add(report.note)
        type_: Literal["Normal", "Warning"] = "Normal" if report.type == "Normal" else "Warning"
        self._recorder.event(job_reference(job), type_, report.reason, report.note, action="ReconcileJob")

    def _unsay(self, job: Job, reason: str) -> None:
        """The situation is over: should it come again, it is news."""
        self._said.get(job.metadata.uid, {}).pop(reason, None)

    def _forget(self, event: EventType, old: Job | None, new: Job | None) -> None:
        if event == "delete" and old is not None:
            self._said.pop(old.metadata.uid, None)

    # -- which events matter --------------------------------------------------------------------------------------

    def _job_keys(self, obj: Workload | PodGroup) -> list[Key]:
        """The Job that controls the object, and the one whose name for its own it holds."""
        keys = [key_of(job) for job in self._jobs.store.by_index(_BY_GROUP, key_of(obj))]
        owner = obj.metadata.controller
        if owner is not None and owner.kind == "Job":
            keys.append((obj.metadata.namespace, owner.name))
        return keys

    def _matters(self, event: EventType, old: Pod | None, new: Pod | None) -> bool:
        """Of a pod only its appearance does, and only while its Job has no group: see ``plan``."""
        if event != "add" or new is None:
            return False
        owner = owning_job(new)
        return owner is not None and not self._pod_groups.store.by_index(BY_JOB, owner.uid)


def _overlaid(informer: Informer[Owned], recent: Recent[Owned], job_uid: str, own: Key) -> list[Owned]:
    cached = informer.store.by_index(BY_JOB, job_uid)
    newest = recent.newest(own, informer.store.get_key(own))
    others: list[Owned] = [obj for obj in cached if key_of(obj) != own]
    owner = newest.metadata.controller if newest is not None else None
    if newest is not None and owner is not None and owner.uid == job_uid:
        others.append(newest)
    return others


def _controlling_job(obj: Workload | PodGroup) -> Iterable[str]:
    owner = obj.metadata.controller
    return (owner.uid,) if owner is not None and owner.kind == "Job" else ()


def _group_key(job: Job) -> Iterable[Key]:
    return ((job.metadata.namespace, names.group_name(job.metadata.name, job.metadata.uid)),)


def _pod_job_key(pod: Pod) -> Key | None:
    owner = owning_job(pod)
    return (pod.metadata.namespace, owner.name) if owner is not None else None


def _resource(obj: Workload | PodGroup) -> Resource:
    return WORKLOADS if isinstance(obj, Workload) else PODGROUPS


def _words(error: ApiError) -> str:
    """What the server said; without the object, which the note names already."""
    return explain(error).partition(": ")[2] or explain(error)


def _namespace_terminating(error: ApiError) -> bool:
    """Everything in the namespace goes, the Job too: nothing to say, nothing to try again."""
    return isinstance(error, Forbidden) and any(c.reason == "NamespaceTerminating" for c in error.causes)


def _foreign(kind: str, name: str, owner: Owner | None) -> Report:
    whose = f"{owner.kind} {owner.name}" if owner is not None else "nobody"
    note = (
        f"{kind} {name} exists already and is controlled by {whose}, not by this Job: it is left alone, and the "
        f"Job's pods wait; delete it (kubectl delete {kind.lower()} {name}) or create the Job anew"
    )
    return Report("UnsupportedWorkloadStructure", note)
