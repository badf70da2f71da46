"""What comes out of the core: a decision and the instructions that carry it out."""

from __future__ import annotations

from typing import Literal

import msgspec

from api.membership import GroupKey


class Bind(msgspec.Struct, frozen=True, gc=False):
    """Bind the pod with this uid to the node. Its room is already assumed."""

    namespace: str
    name: str
    uid: str
    node: str


class SetGroupCondition(msgspec.Struct, frozen=True, gc=False):
    """Write PodGroupInitiallyScheduled on the PodGroup, if it does not say so already."""

    group: GroupKey
    group_uid: str
    status: Literal["True", "False"]
    reason: str
    message: str


class SetPodCondition(msgspec.Struct, frozen=True, gc=False):
    """Write PodScheduled=False on the pod, if it does not say so already."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str


class Regarding(msgspec.Struct, frozen=True, gc=False):
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class EmitEvent(msgspec.Struct, frozen=True, gc=False):
    """Record an Event where the user looks."""

    regarding: Regarding
    type: Literal["Normal", "Warning"]
    reason: str
    note: str


Instruction = Bind | SetGroupCondition | SetPodCondition | EmitEvent

Verdict = Literal["scheduled", "unschedulable", "error", "waiting"]


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one cycle over one entity (a group, or a pod that is scheduled alone)."""

    #: The group's key, or ``namespace/name`` of a single pod.
    entity: str
    #: The uid whose trace the cycle belongs to: the Job's, else the PodGroup's, else the pod's.
    trace_uid: str
    verdict: Verdict
    message: str
    #: Members bound by this decision, and members it looked at.
    placed: int
    considered: int
    instructions: list[Instruction] = []
