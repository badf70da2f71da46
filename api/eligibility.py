"""Whether a Job gets a group, and what that group is: one pure function for both processes.

The admission policy that marks Jobs (``manifests/``) applies the same rules in CEL: a Job it marked and this
refused would hold its pods for ever, so an integration test compares both on a live server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import msgspec

from api import names
from api.model import (
    Basic,
    DisruptionMode,
    Empty,
    Gang,
    GroupResourceClaim,
    PodGroupTemplateSpec,
    SchedulingConstraints,
    SchedulingPolicy,
)
from api.wire import Job, JobScheduling

#: Annotations of ours that a Job may carry. Another one under our prefix is a typing error worth a warning.
KNOWN_ANNOTATIONS = frozenset(
    {
        names.POLICY_ANNOTATION,
        names.MIN_COUNT_ANNOTATION,
        names.DISRUPTION_MODE_ANNOTATION,
        names.TOPOLOGY_ANNOTATION,
        names.RESOURCE_CLAIMS_ANNOTATION,
    }
)

#: Characters of a user's text that a message repeats.
_QUOTED = 40

#: Their values are beyond ``HighestUserDefinablePriority``, up to which the API server takes a PodGroup's priority.
_SYSTEM_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})

_DISRUPTION_MODES = {
    "single": DisruptionMode(single=Empty()),
    "all": DisruptionMode(all=Empty()),
}


@dataclass(frozen=True, slots=True)
class Eligible:
    """The Job gets a Workload and a PodGroup of this shape (priority is filled in by the controller)."""

    template: PodGroupTemplateSpec


@dataclass(frozen=True, slots=True)
class Ineligible:
    """The Job runs as if Phalanx were not there. ``asked``: it asked for a gang itself, so it is told why."""

    reason: str
    asked: bool


@dataclass(frozen=True, slots=True)
class Misconfigured:
    """The Job is ours but says something impossible: nothing is made until ``field`` is mended."""

    field: str
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        """One line for an Event: field, problem, remedy."""
        return f"{self.field}: {self.problem}; {self.remedy}"


Verdict = Eligible | Ineligible | Misconfigured


def unknown_annotations(job: Job) -> list[str]:
    """Annotations under our prefix that nothing reads, sorted: most often a typing error."""
    prefix = f"{names.GROUP}/"
    return sorted(key for key in job.metadata.annotations if key.startswith(prefix) and key not in KNOWN_ANNOTATIONS)


def marked(job: Job) -> bool:
    """Whether the admission policy marked the Job's pod template."""
    return job.spec.template.metadata.labels.get(names.GANG_LABEL) == "job"


def claimed(job: Job, scheduler_names: frozenset[str]) -> bool:
    """Whether the Job is for us at all: marked by the policy, or it names our scheduler itself."""
    return marked(job) or job.spec.template.spec.scheduler_name in scheduler_names


def decide(job: Job, scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME})) -> Verdict:
    """Decide whether the Job gets a group.

    Profile ``auto``: Indexed, parallelism == completions > 1, and no group named in the template; or an
    explicit ``spec.scheduling`` or ``phalanx.dev/policy``.
    """
    template, annotations = job.spec.template, job.metadata.annotations
    policy = annotations.get(names.POLICY_ANNOTATION)
    explicit = _explicit_policy(job.spec.scheduling)
    asked = (
        policy not in (None, "none")
        or names.MIN_COUNT_ANNOTATION in annotations
        or template.spec.scheduler_name in scheduler_names
    )
    if policy == "none":
        return Ineligible(f"it opted out by {names.POLICY_ANNOTATION}=none", asked=False)
    if job.spec.managed_by not in (None, names.JOB_CONTROLLER):
        return Ineligible(f"spec.managedBy gives it to {job.spec.managed_by}", asked)
    if template.spec.scheduling_group is not None:
        return Ineligible("its pod template already names a PodGroup (spec.schedulingGroup)", asked=False)
    if names.POD_GROUP_LABEL in template.metadata.labels:
        return Ineligible(f"its pod template already names a group (label {names.POD_GROUP_LABEL})", asked=False)
    owner = job.metadata.controller
    if owner is not None and owner.kind != "CronJob":
        return Ineligible(f"{owner.kind} {owner.name} controls it and answers for its groups", asked=False)
    if template.spec.scheduler_name not in (*scheduler_names, names.DEFAULT_SCHEDULER_NAME):
        return Ineligible(f"its pods name the scheduler {template.spec.scheduler_name}", asked)
    if policy not in (None, "gang", "basic"):
        return Misconfigured(
            f"metadata.annotations[{names.POLICY_ANNOTATION}]",
            f"{_quoted(policy)} is not a policy",
            "set it to gang, basic or none",
        )
    if policy is None and explicit is None:
        refusal = _not_automatic(job)
        if refusal is not None:
            return Ineligible(refusal, asked)
    elif job.spec.parallelism < 1:
        return Ineligible("parallelism is 0: it has no pods", asked=False)
    return _plan(job, policy or explicit or "gang")


def as_gang(job: Job) -> Job:
    """Return the Job with the gang policy asked for.

    A Job that was taken on stays so: an elastic one has for a while a parallelism that is not its completions.
    """
    annotations = job.metadata.annotations | {names.POLICY_ANNOTATION: "gang"}
    metadata = msgspec.structs.replace(job.metadata, annotations=annotations)
    return msgspec.structs.replace(job, metadata=metadata)


def minimum_now(job: Job, scheduler_names: frozenset[str]) -> int:
    """Return the minimum that a Job which was taken on asks for now; 0 where that cannot be told."""
    verdict = decide(as_gang(job), scheduler_names)
    gang = verdict.template.scheduling_policy.gang if isinstance(verdict, Eligible) else None
    return gang.min_count if gang is not None else 0


def _explicit_policy(scheduling: JobScheduling | None) -> Literal["basic", "gang"] | None:
    if scheduling is None or scheduling.scheduling_policy is None:
        return None
    return "basic" if scheduling.scheduling_policy.basic is not None else "gang"


def _not_automatic(job: Job) -> str | None:
    spec = job.spec
    if spec.completion_mode != "Indexed":
        return f"completionMode is {spec.completion_mode}, a gang needs Indexed"
    if spec.completions != spec.parallelism:
        return f"parallelism {spec.parallelism} is not completions {spec.completions}, so pods take turns"
    if spec.parallelism <= 1:
        return f"parallelism is {spec.parallelism}: there is nothing to start together"
    return None


def _plan(job: Job, policy: str) -> Eligible | Misconfigured:
    annotations, scheduling = job.metadata.annotations, job.spec.scheduling
    for annotation in (names.TOPOLOGY_ANNOTATION, names.RESOURCE_CLAIMS_ANNOTATION):
        if annotation in annotations:
            return Misconfigured(
                f"metadata.annotations[{annotation}]",
                "this version of Phalanx cannot honour it yet",
                "remove it to run the Job without that guarantee",
            )
    priority_class = job.spec.template.spec.priority_class_name or None
    if priority_class in _SYSTEM_CLASSES:
        return Misconfigured(
            "spec.template.spec.priorityClassName",
            f"{priority_class} is above 1000000000, the most that a PodGroup can have",
            f"name another class, or set the annotation {names.POLICY_ANNOTATION} to none",
        )
    minimum = _min_count(job, policy)
    if isinstance(minimum, Misconfigured):
        return minimum
    disruption = None
    mode = annotations.get(names.DISRUPTION_MODE_ANNOTATION)
    if mode is not None:
        disruption = _DISRUPTION_MODES.get(mode)
        field = f"metadata.annotations[{names.DISRUPTION_MODE_ANNOTATION}]"
        if disruption is None:
            return Misconfigured(field, f"{_quoted(mode)} is not a disruption mode", "set it to single or all")
        if mode == "all" and policy == "basic":
            return Misconfigured(field, "all goes with the gang policy only", "set it to single")
    elif scheduling is not None and scheduling.disruption_mode is not None:
        disruption = DisruptionMode.model_validate(scheduling.disruption_mode)
    return Eligible(
        PodGroupTemplateSpec(
            scheduling_policy=SchedulingPolicy(basic=Basic())
            if policy == "basic"
            else SchedulingPolicy(gang=Gang(min_count=minimum)),
            scheduling_constraints=SchedulingConstraints.model_validate(scheduling.scheduling_constraints)
            if scheduling is not None and scheduling.scheduling_constraints is not None
            else None,
            disruption_mode=disruption,
            resource_claims=[GroupResourceClaim.model_validate(c) for c in scheduling.resource_claims]
            if scheduling is not None
            else [],
            priority_class_name=priority_class,
        )
    )


def _min_count(job: Job, policy: str) -> int | Misconfigured:
    parallelism = job.spec.parallelism
    text = job.metadata.annotations.get(names.MIN_COUNT_ANNOTATION)
    # Where the server keeps the field, the field counts: the admission policy fills each in from the other, and an
    # elastic Job changes the one it was written with.
    native = _native_min_count(job.spec.scheduling)
    if text is None or (native is not None and policy == "gang"):
        return native or parallelism
    field = f"metadata.annotations[{names.MIN_COUNT_ANNOTATION}]"
    if policy == "basic":
        return Misconfigured(field, "the basic policy has no minimum", "remove it, or ask for the gang policy")
    # int() would also take "+4", "4_0" and " 4 "; a count is digits.
    significant = text.lstrip("0")  # as in CEL; and int() takes at most 4300 digits
    value = int(significant) if text.isascii() and significant.isdigit() and len(significant) < 11 else 0
    if not 1 <= value <= parallelism:
        return Misconfigured(
            field,
            f"{_quoted(text)} is not a number from 1 to {parallelism} (spec.parallelism)",
            "set it to how many pods must start together, or remove it for all of them",
        )
    return value


def _quoted(text: str) -> str:
    """A user's text as part of one line: in quotes, control characters escaped, cut."""
    return json.dumps(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…", ensure_ascii=False)


def _native_min_count(scheduling: JobScheduling | None) -> int | None:
    policy = scheduling.scheduling_policy if scheduling is not None else None
    return policy.gang.min_count if policy is not None and policy.gang is not None else None
