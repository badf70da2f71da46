"""What to do next about one Job: pure, from what was observed, one step at a time.

Level-triggered: nothing is remembered between two calls, so events that came twice, late, in another order
or never lead to the same end. A step is carried out, its answer is observed, and the next step is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from api import names
from api.eligibility import Eligible, Ineligible, Misconfigured, as_gang, claimed, decide, marked, unknown_annotations
from api.membership import GroupKey, named_group
from api.model import PodGroup, PodGroupTemplateSpec, Workload
from api.wire import Job, Pod
from controllers import groups
from controllers.pods import was_bound


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision about one Job is made from."""

    job: Job
    #: Controlled by this Job (its uid), whatever their names.
    workloads: Sequence[Workload] = ()
    pod_groups: Sequence[PodGroup] = ()
    pods: Sequence[Pod] = ()
    #: Whether kube-controller-manager makes the groups of Jobs itself; None while that is not known.
    native: bool | None = False
    #: PriorityClass name to what a group of that class must say of preemption.
    preemption_policy: Callable[[str | None], str | None] = lambda _: None
    scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME})

    @property
    def group(self) -> str:
        """The name of the Job's Workload and PodGroup."""
        return names.group_name(self.job.metadata.name, self.job.metadata.uid)


@dataclass(frozen=True, slots=True)
class Make:
    """Create this object."""

    obj: Workload | PodGroup


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the minimum of this object."""

    obj: Workload | PodGroup
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Release:
    """Delete this PodGroup: the Job is suspended."""

    obj: PodGroup


Step = Make | Resize | Release


@dataclass(frozen=True, slots=True)
class Report:
    """An Event on the Job."""

    reason: str
    note: str
    type: str = "Warning"


@dataclass(slots=True)
class Plan:
    """What to say, and the next step; without a step the Job is as it should be, or waits for something."""

    reports: list[Report] = field(default_factory=list)
    step: Step | None = None


def plan(seen: Observed) -> Plan:
    """Decide the next step for a Job."""
    job = seen.job
    result = Plan()
    # A finished Job keeps what it has until it is deleted; what a Job in deletion owned goes with it.
    if job.metadata.deletion_timestamp is not None or job.finished:
        return result
    for key in unknown_annotations(job):
        note = f"metadata.annotations[{key}]: nothing reads this annotation; check its spelling"
        result.reports.append(Report("UnknownAnnotation", note))
    workload = next((w for w in seen.workloads if w.metadata.name == seen.group), None)
    if workload is None:
        _begin(seen, result)
    elif workload.metadata.deletion_timestamp is None:
        _keep(seen, workload, result)
    return result


def _begin(seen: Observed, result: Plan) -> None:
    """A Job without a Workload of ours: is it ours to take on?"""
    job = seen.job
    verdict = _verdict(job, seen.scheduler_names)
    asked = _asked(job, verdict, seen.scheduler_names)
    if isinstance(verdict, Ineligible):
        if verdict.asked or marked(job):
            result.reports.append(_not_eligible(job, verdict.reason))
        return
    if not claimed(job, seen.scheduler_names):
        if asked:
            result.reports.append(_not_eligible(job, _UNMARKED))
        return
    strays = [pod for pod in seen.pods if was_bound(pod) and named_group(pod) is None]
    if strays:
        if asked:
            bound = f"{len(strays)} of its pods were bound before it had a group"
            remedy = f"one is {strays[0].metadata.name}; create the Job anew to have it as a gang"
            result.reports.append(_not_eligible(job, f"{bound}, {remedy}"))
        return
    if isinstance(verdict, Misconfigured):
        result.reports.append(Report("FailedWorkloadCompilation", verdict.message))
        return
    if seen.workloads:
        return  # kube-controller-manager made one; with a second it falls back to scheduling pod by pod
    if seen.native is not False and not _awaited(seen) and not (seen.native and _stalls_natively(job)):
        return
    policy = seen.preemption_policy(verdict.template.priority_class_name)
    template = verdict.template.model_copy(update={"preemption_policy": policy})
    result.step = Make(groups.workload_for(job, template))


def _keep(seen: Observed, workload: Workload, result: Plan) -> None:
    """A Job that was taken on: its Workload says what it is, and only the minimum may change."""
    templates = workload.spec.pod_group_templates
    if len(templates) != 1:
        found = f"Workload {workload.metadata.name} has {len(templates)} podGroupTemplates"
        note = f"{found}, a Job's has exactly 1; delete the Workload and it is made anew"
        result.reports.append(Report("UnsupportedWorkloadStructure", note))
        return
    template = groups.template_of(workload)
    current = groups.min_count(template)
    wanted = _minimum(seen, template, result)
    if current is not None and wanted is not None and wanted != current:
        result.step = Resize(workload, current, wanted)
        return
    group = next((g for g in seen.pod_groups if g.metadata.name == seen.group), None)
    if seen.job.spec.suspend:
        # Only once the Job controller has acted on it: resumed before that, its pods would run on in a group that is
        # in deletion for as long as they live.
        if group is not None and group.metadata.deletion_timestamp is None and _suspended(seen.job):
            result.step = Release(group)
        return
    if group is None:
        others = any(g.metadata.deletion_timestamp is None for g in seen.pod_groups)
        if not others or _awaited(seen):
            policy = seen.preemption_policy(template.priority_class_name)
            result.step = Make(groups.pod_group_for(seen.job, workload, policy))
        return
    if group.metadata.deletion_timestamp is not None:
        return  # the successor needs its name: made when it is gone
    if current is not None and group.min_count and group.min_count != current:
        result.step = Resize(group, group.min_count, current)


def _suspended(job: Job) -> bool:
    return any(c.type == "Suspended" and c.status == "True" for c in job.status.conditions)


def _minimum(seen: Observed, template: PodGroupTemplateSpec, result: Plan) -> int | None:
    """The minimum the Job asks for now; None to leave it as it is.

    A Job that was taken on stays so, whatever would decide otherwise now: its pods are marked for good, and
    an elastic Job has for a while a parallelism that is not its completions.
    """
    job = seen.job
    has = "gang" if groups.min_count(template) is not None else "basic"
    asks = job.metadata.annotations.get(names.POLICY_ANNOTATION)
    if asks in ("gang", "basic") and asks != has:
        note = (
            f"metadata.annotations[{names.POLICY_ANNOTATION}]: the group was made with the {has} policy, "
            f"which cannot be changed to {asks}; create the Job anew"
        )
        result.reports.append(Report("FailedWorkloadCompilation", note))
    if has == "basic":
        return None
    verdict = decide(as_gang(job), seen.scheduler_names)
    if isinstance(verdict, Misconfigured):
        result.reports.append(Report("FailedWorkloadCompilation", verdict.message))
    return groups.min_count(verdict.template) if isinstance(verdict, Eligible) else None


def _verdict(job: Job, scheduler_names: frozenset[str]) -> Eligible | Ineligible | Misconfigured:
    """Decide about a Job that was not taken on yet.

    The pods of a marked Job wait for its group, whatever was changed since it was created: it stays a gang.
    """
    verdict = decide(job, scheduler_names)
    if isinstance(verdict, Ineligible) and marked(job):
        verdict = decide(as_gang(job), scheduler_names)
    return verdict


def _awaited(seen: Observed) -> bool:
    """Whether a live pod names the group we would make.

    That is proof that kube-controller-manager does not answer for this Job, whatever it does for others: it
    makes its objects before a Job's first pod, and the pods then name them. It leaves the Jobs of a CronJob
    alone, and those that started before its gate was on.
    """
    key = GroupKey(seen.job.metadata.namespace, seen.group)
    return any(not pod.terminal and named_group(pod) == key for pod in seen.pods)


def _stalls_natively(job: Job) -> bool:
    """Whether kube-controller-manager names the Workload's template so that the API server refuses it.

    It calls it after the Job (seen in 1.37), and the Job then never gets a pod. It takes a Workload that is there.
    """
    return "." in job.metadata.name or len(job.metadata.name) + len("-pgt-0") > 63


_UNMARKED = (
    "its pod template is not marked; label its namespace phalanx.dev/jobs=enabled and create the Job anew, "
    "or set spec.template.spec.schedulerName to phalanx"
)


def _asked(job: Job, verdict: Eligible | Ineligible | Misconfigured, scheduler_names: frozenset[str]) -> bool:
    """Whether the Job itself asked for a gang, so that it is told why it is none."""
    if isinstance(verdict, Ineligible):
        return verdict.asked
    annotations = job.metadata.annotations
    return (
        names.POLICY_ANNOTATION in annotations
        or names.MIN_COUNT_ANNOTATION in annotations
        or job.spec.template.spec.scheduler_name in scheduler_names
    )


def _not_eligible(job: Job, reason: str) -> Report:
    note = f"Job {job.metadata.name} gets no group: {reason}"
    if marked(job):
        note += (
            f"; its pod template carries the label {names.GANG_LABEL}=job, so its pods wait for that group: "
            "create it anew without the label"
        )
    return Report("JobNotEligible", note)
