"""The words people read: conditions and Events, first cause first, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from api.wire import Job
from scheduler.core.placement import Placement
from scheduler.core.state import GroupInfo, PodInfo

#: Scheduling gates that a message names.
_GATES = 3


def nodes_by_reason(placement: Placement) -> str:
    """Say why each node takes no more: ``0/3 nodes …`` in kube-scheduler's manner, most frequent reason first."""
    if not placement.nodes:
        return "the cluster has no nodes"
    ordered = sorted(placement.reasons.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count} {reason}" for reason, count in ordered)
    return f"of {_count(placement.nodes, 'node')}: {listed}"


def does_not_fit(group: GroupInfo, fits: int, placement: Placement) -> str:
    """Say how many members fit, how many the minimum lacks, and why."""
    wanted = max(group.minimum, 1)
    placed = group.placed
    text = f"{placed + fits} of {wanted} members fit"
    if placed:
        text = f"{placed} of {wanted} members bound, {fits} of the {group.missing} missing ones fit"
    proof = "" if placement.proven else " (members differ and were placed one after another: not proven)"
    return f"{text}{proof}; {nodes_by_reason(placement)}"


def pod_does_not_fit(placement: Placement) -> str:
    """Say why a pod that is scheduled alone, or beyond its group's minimum, has no node."""
    return f"no node fits; {nodes_by_reason(placement)}"


def incomplete(group: GroupInfo) -> str:
    """Say what a group waits for before it can be tried."""
    if group.podgroup is None:
        return (
            f"waiting for the PodGroup {group.key.name} to be created "
            "(for a Job by the Phalanx controllers: see the Job's Events)"
        )
    if group.terminating:
        return f"the PodGroup {group.key.name} is being deleted and takes no new members"
    if group.behind:
        return f"its Job has grown: waiting for minCount {group.minimum} of the PodGroup to be raised"
    gated = group.gated
    there = group.placed + group.unplaced
    have = f"{there} of {group.minimum} members {'may be scheduled' if gated else 'exist'}"
    if group.placed:
        have = f"{group.placed} of {group.minimum} members bound"
    waits = []
    if gated:
        gates = sorted({gate.name for info in gated for gate in info.pod.spec.scheduling_gates})
        listed = ", ".join(gates[:_GATES]) + (", …" if len(gates) > _GATES else "")
        waits.append(f"the scheduling gates of {len(gated)} to be removed ({listed})")
    if group.minimum - there > len(gated):
        missing = group.minimum - there - len(gated)
        waits.append(f"{missing} more to be created (see the Events of their owner)")
    return f"{have}: waiting for {' and '.join(waits)}"


def job_is_over(job: Job) -> str:
    """Say that the Job has finished, and how."""
    how = next(c for c in job.status.conditions if c.type in ("Complete", "Failed") and c.status == "True")
    reason = f": {how.reason}" if how.reason else ""
    return f"its Job {job.metadata.name} is over ({how.type}{reason}): no more members will come"


def bind_trouble(group: GroupInfo, error: str) -> str:
    """Say that there is room, and what the API server says to the binds."""
    return f"{group.bound} of {max(group.minimum, 1)} members bound: there is room, but binding keeps failing: {error}"


def name_taken(group: GroupInfo) -> str:
    """Say that somebody else's PodGroup has the name of the group of the pods' Job."""
    return (
        f"the PodGroup {group.key.name} is not controlled by this pod's Job, whose group needs that name; "
        f"delete it (kubectl delete podgroup {group.key.name}) or create the Job anew"
    )


def disagreement(members: Iterable[PodInfo]) -> str | None:
    """Say on which field the members of a group disagree, with the values, or None where they agree."""
    pods = [info.pod.spec for info in members]
    if len({(spec.scheduler_name, spec.priority, spec.preemption_policy) for spec in pods}) < 2:
        return None  # mostly, and it is asked at each attempt
    fields = {
        "spec.schedulerName": Counter(f'"{spec.scheduler_name}"' for spec in pods),
        "spec.priority": Counter(str(spec.priority) for spec in pods),
        "spec.preemptionPolicy": Counter(spec.preemption_policy or "PreemptLowerPriority" for spec in pods),
    }
    for field, values in fields.items():
        if len(values) > 1:
            listed = ", ".join(f"{value} ({_count(n, 'pod')})" for value, n in sorted(values.items()))
            return f"members disagree on {field}: {listed}; give all pods of the group the same value"
    return None


def unsupported(group: GroupInfo, members: Iterable[PodInfo]) -> str | None:
    """Name a hard constraint that this version cannot honour, or None."""
    spec = group.podgroup.spec if group.podgroup is not None else None
    if spec is not None and spec.scheduling_constraints is not None and spec.scheduling_constraints.topology:
        return _cannot("spec.schedulingConstraints.topology of the PodGroup")
    if spec is not None and spec.resource_claims:
        return _cannot("spec.resourceClaims of the PodGroup")
    return next((text for info in members if (text := pod_unsupported(info)) is not None), None)


def pod_unsupported(info: PodInfo) -> str | None:
    """Name a hard constraint of a pod that this version cannot honour, or None."""
    return (
        _cannot(f"{info.signature.unsupported[0]} of pod {info.pod.metadata.name}")
        if info.signature.unsupported
        else None
    )


def _cannot(what: str) -> str:
    return f"this version of Phalanx cannot honour {what} yet; remove it, or use another scheduler for these pods"


def reached(group: GroupInfo) -> str:
    """Say that the minimum is bound."""
    if not group.minimum:
        return f"{_count(group.bound, 'member')} bound (no minimum)"
    return f"the minimum of {_count(group.minimum, 'member')} is bound"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
