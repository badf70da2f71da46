"""One attempt to place an entity, and what is told about it. Assumes what it places; changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from api import conditions, v1beta1
from api.membership import GroupKey, owning_job
from scheduler.core import messages
from scheduler.core.instructions import (
    Bind,
    Decision,
    EmitEvent,
    Instruction,
    Regarding,
    SetGroupCondition,
    SetPodCondition,
    Verdict,
)
from scheduler.core.placement import Ask, Placement, place
from scheduler.core.state import GroupInfo, PodInfo, PodState, State


def try_group(state: State, group: GroupInfo) -> tuple[Decision, bool, list[GroupKey]]:
    """Place the group's pods: the members its minimum lacks all together or none, then the others as they fit.

    Returns the decision, whether nothing is left to place, and the groups whose reserved room was taken back.
    """
    members = group.wanting()
    problem = messages.disagreement(_live_members(group)) or messages.unsupported(group, members)
    if problem is not None:
        _release(state, members)
        return _refuse(group, "error", conditions.SCHEDULER_ERROR, problem), False, []
    robbed = _take_back_reservations(state, group)
    missing = group.missing
    plan, placement = _plan(state, members)
    if len(plan) < missing and not placement.proven and missing < len(members):
        # Any members will do for the minimum: more of the smaller ones may fit.
        plan, placement = _plan(state, members, smallest_first=True)
    if len(plan) < missing:
        if group.begun and not group.hold_over:
            # It was bound in part: what room there is for its missing members is kept from others.
            for info, node in plan:
                state.move(info, PodState.RESERVED, node)
        text = messages.does_not_fit(group, len(plan), placement)
        return _refuse(group, "unschedulable", conditions.UNSCHEDULABLE, text), False, robbed
    instructions: list[Instruction] = list(_bind(state, plan))
    extras = group.wanting(extras=True)
    more, extra_placement = _plan(state, [info for info in extras if not info.signature.unsupported])
    instructions += _bind(state, more)
    left = group.wanting() + group.wanting(extras=True)
    for info in left:
        refusal = messages.pod_unsupported(info)
        if refusal is not None:
            instructions.append(_pod_condition(info, conditions.SCHEDULER_ERROR, refusal))
        else:
            text = messages.pod_does_not_fit(placement if placement.reasons else extra_placement)
            instructions.append(_pod_condition(info, conditions.UNSCHEDULABLE, text))
    placed = len(plan) + len(more)
    decision = Decision(
        entity=str(group.key),
        trace_uid=_trace_uid(group),
        verdict="scheduled" if placed else "unschedulable",
        message=f"{placed} of {placed + len(left)} pods placed",
        placed=placed,
        considered=placed + len(left),
        instructions=instructions,
    )
    return decision, not left, robbed


def try_pod(state: State, info: PodInfo) -> tuple[Decision, bool]:
    """Place a pod that is scheduled alone. Returns the decision and whether it has a node now."""
    problem = messages.pod_unsupported(info)
    reason = conditions.SCHEDULER_ERROR if problem else conditions.UNSCHEDULABLE
    verdict: Verdict = "error" if problem else "unschedulable"
    if problem is None:
        plan, placement = _plan(state, [info])
        if plan:
            instructions: list[Instruction] = list(_bind(state, plan))
            node = plan[0][1]
            note = f"Successfully assigned {info.key} to {node}"
            instructions.append(EmitEvent(_pod_ref(info), "Normal", "Scheduled", note))
            return Decision(info.key, info.uid, "scheduled", note, 1, 1, instructions), True
        problem = messages.pod_does_not_fit(placement)
    return _refuse_pod(info, verdict, reason, problem), False


def tell_reached(group: GroupInfo) -> Decision:
    """Tell that the group's minimum is bound, once."""
    message = messages.reached(group)
    instructions = _tell(group, "True", conditions.SCHEDULED, message)
    return Decision(str(group.key), _trace_uid(group), "scheduled", message, 0, 0, instructions)


def tell_bind_trouble(group: GroupInfo, error: str) -> Decision:
    """Tell that binds of members keep failing though there is room."""
    return _refuse(group, "error", conditions.SCHEDULER_ERROR, messages.bind_trouble(group, error))


def tell_pod_bind_trouble(info: PodInfo, error: str) -> Decision:
    """Tell that the binds of a pod that is scheduled alone keep failing though there is room."""
    return _refuse_pod(info, "error", conditions.SCHEDULER_ERROR, f"binding keeps failing: {error}")


def tell_incomplete(group: GroupInfo, job_says: str | None) -> Decision | None:
    """Tell what a group waits for that cannot be tried; None where that was told already.

    :param job_says: why nothing comes of it because of its Job
    """
    robbed = group.robbed
    if robbed:
        # The PodGroup is not ours to write on; the Job's Events say the same.
        text = messages.name_taken(group)
        held = [_pod_condition(info, conditions.SCHEDULER_ERROR, text) for info in robbed]
        return Decision(str(group.key), _trace_uid(group), "error", text, 0, len(robbed), list(held))
    # Another scheduler's members are why ours are too few: that is an error, not a matter of waiting.
    problem = messages.disagreement(_live_members(group)) if group.podgroup is not None else None
    message = problem or job_says or messages.incomplete(group)
    if group.told is not None and group.told[2] == message:
        return None
    if problem is not None:
        return _refuse(group, "error", conditions.SCHEDULER_ERROR, problem)
    return _refuse(group, "waiting", conditions.UNSCHEDULABLE, message)


def _live_members(group: GroupInfo) -> list[PodInfo]:
    """Members that run or want to, whichever scheduler they name."""
    ended = (PodState.LEAVING, PodState.SUCCEEDED)
    pods = (info for state, books in group.members.items() if state not in ended for info in books.values())
    return [info for info in pods if not info.pod.terminal and info.pod.metadata.deletion_timestamp is None]


def _take_back_reservations(state: State, group: GroupInfo) -> list[GroupKey]:
    """Free what the group itself reserved, and if it was bound in part what later such groups did.

    Two of them would otherwise each hold what the other needs.
    """
    _release(state, group.wanting())
    robbed = []
    if group.begun:
        mine = group.order()
        for other in state.groups.values():
            reserved = list(other.members[PodState.RESERVED].values())
            if reserved and other.order() > mine:
                _release(state, reserved)
                robbed.append(other.key)
    return robbed


def _release(state: State, infos: Sequence[PodInfo]) -> None:
    for info in infos:
        if info.state is PodState.RESERVED:
            state.move(info, PodState.PENDING)


def _plan(
    state: State, infos: Sequence[PodInfo], *, smallest_first: bool = False
) -> tuple[list[tuple[PodInfo, str]], Placement]:
    """Find nodes for pods, identical ones as one ask. Returns (pod, node) for those that fit."""
    by_signature: dict[int, list[PodInfo]] = {}
    for info in infos:
        by_signature.setdefault(id(info.signature), []).append(info)
    asks = list(by_signature.values())
    wanted = [Ask(pods[0].signature, len(pods)) for pods in asks]
    placement = place(state.capacities, wanted, smallest_first=smallest_first)
    names = state.nodes.names
    plan = [
        (info, names[row])
        for pods, rows in zip(asks, placement.rows, strict=True)
        for info, row in zip(pods, rows.tolist(), strict=False)
    ]
    return plan, placement


def _bind(state: State, plan: Sequence[tuple[PodInfo, str]]) -> Iterator[Bind]:
    """Assume the plan, all at once, when the first bind is asked for."""
    state.assume(plan)
    for info, node in plan:
        metadata = info.pod.metadata
        yield Bind(metadata.namespace, metadata.name, metadata.uid, node)


def _refuse(group: GroupInfo, verdict: Verdict, reason: str, message: str) -> Decision:
    wanting = group.wanting() + group.wanting(extras=True)
    instructions = _tell(group, "False", reason, message)
    instructions += [_pod_condition(info, reason, message) for info in wanting]
    return Decision(str(group.key), _trace_uid(group), verdict, message, 0, len(wanting), instructions)


def _refuse_pod(info: PodInfo, verdict: Verdict, reason: str, message: str) -> Decision:
    instructions: list[Instruction] = [_pod_condition(info, reason, message)]
    current = conditions.find(info.pod.status.conditions, conditions.POD_SCHEDULED)
    if current is None or (current.reason, current.message) != (reason, message):
        instructions.append(EmitEvent(_pod_ref(info), "Warning", "FailedScheduling", message))
    return Decision(info.key, info.uid, verdict, message, 0, 1, instructions)


def _tell(group: GroupInfo, status: Literal["True", "False"], reason: str, message: str) -> list[Instruction]:
    """Condition on the PodGroup, Event on it and on its Job; nothing where the same was told last.

    A group whose condition was True once keeps it: True is terminal.
    """
    if group.told == (status, reason, message):
        return []
    was_reached = group.told_reached
    group.told = (status, reason, message)
    group.ever_reached = was_reached or status == "True"
    if group.podgroup is None:
        return []
    instructions: list[Instruction] = []
    if status == "True" or not was_reached:
        uid = group.podgroup.metadata.uid
        instructions.append(SetGroupCondition(group.key, uid, status, reason, message))
    for regarding in _regarding(group):
        if status == "True":
            instructions.append(EmitEvent(regarding, "Normal", "Scheduled", message))
        else:
            instructions.append(EmitEvent(regarding, "Warning", "FailedScheduling", message))
    return instructions


def _regarding(group: GroupInfo) -> Iterator[Regarding]:
    """Return the PodGroup, and the Job where the user looks first."""
    podgroup = group.podgroup
    if podgroup is None:
        return
    metadata = podgroup.metadata
    yield Regarding(v1beta1.API_VERSION, "PodGroup", metadata.namespace, metadata.name, metadata.uid)
    owner = metadata.controller
    if owner is not None and podgroup.job_uid is not None:
        yield Regarding(owner.api_version, owner.kind, metadata.namespace, owner.name, owner.uid)


def _pod_ref(info: PodInfo) -> Regarding:
    metadata = info.pod.metadata
    return Regarding("v1", "Pod", metadata.namespace, metadata.name, metadata.uid)


def _pod_condition(info: PodInfo, reason: str, message: str) -> SetPodCondition:
    metadata = info.pod.metadata
    return SetPodCondition(metadata.namespace, metadata.name, metadata.uid, reason, message)


def _trace_uid(group: GroupInfo) -> str:
    """The Job's uid, else the PodGroup's, else (neither exists yet) that of the Job that owns a member."""
    if group.podgroup is not None:
        return group.podgroup.job_uid or group.podgroup.metadata.uid
    owners = (owning_job(info.pod) for info in group.all_pods())
    return next((owner.uid for owner in owners if owner is not None), "")
