"""Which group a pod belongs to, and whether it counts toward the group's minimum. Pure; one answer per pod.

Both processes use it. The caller latches the answer per pod uid: a field that changes later moves no pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from api import names
from api.eligibility import Eligible, Misconfigured, claimed, decide
from api.model import PodGroup
from api.wire import Job, OwnerReference, Pod


class GroupKey(NamedTuple):
    """A PodGroup's identity for its members: they name it, they do not know its uid.

    A tuple, as every event of a member looks its group up: it hashes at a tenth of a dataclass' cost.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not decidable yet: the pod's Job has not been seen. The pod is held."""

    job: OwnerReference


def owning_job(pod: Pod) -> OwnerReference | None:
    """The Job that controls the pod, if one does."""
    owner = pod.metadata.controller
    if owner is not None and owner.kind == "Job" and owner.api_version.startswith("batch/"):
        return owner
    return None


def named_group(pod: Pod) -> GroupKey | None:
    """The group the pod itself names: the native field, else our label."""
    if pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name:
        return GroupKey(pod.metadata.namespace, pod.spec.scheduling_group.pod_group_name)
    label = pod.metadata.labels.get(names.POD_GROUP_LABEL)
    return GroupKey(pod.metadata.namespace, label) if label else None


def group_of(
    pod: Pod, job: Job | None, scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME})
) -> GroupKey | Unknown | None:
    """The pod's group, None for a pod that is scheduled alone, Unknown while its Job must be seen first.

    ``job`` is the pod's controlling Job where the caller has seen it (same uid), else None. Only a pod that
    is marked, or names our scheduler, can belong to its Job's group without naming it.
    """
    named = named_group(pod)
    if named is not None:
        return named
    owner = owning_job(pod)
    mine = pod.metadata.labels.get(names.GANG_LABEL) == "job" or pod.spec.scheduler_name in scheduler_names
    if owner is None or not mine:
        return None
    if job is None or job.metadata.uid != owner.uid:
        return Unknown(owner)
    # A misconfigured Job stays a gang: its pods wait until it is mended, they do not start singly.
    if claimed(job, scheduler_names) and isinstance(decide(job, scheduler_names), Eligible | Misconfigured):
        return GroupKey(pod.metadata.namespace, names.group_name(owner.name, owner.uid))
    return None


def counts(pod: Pod, group: PodGroup) -> bool:
    """Whether the pod counts toward the group's minimum.

    In a Job's group only the Job's own pods do; another pod that names the group is an extra. A group that
    belongs to no Job counts every pod that names it.
    """
    job_uid = group.job_uid
    if job_uid is None:
        return True
    owner = owning_job(pod)
    return owner is not None and owner.uid == job_uid


def name_taken(pod: Pod, group: PodGroup) -> bool:
    """Whether the group has the name of the group of the pod's Job, but is somebody else's: the pod is held.

    A group that has another name was named by whoever made it for the pod, and answers for it.
    """
    owner = owning_job(pod)
    if owner is None or group.job_uid == owner.uid:
        return False
    return group.metadata.name == names.group_name(owner.name, owner.uid)
