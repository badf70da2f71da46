"""What comes out of the core: a decision and the instructions that carry it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from api.membership import GroupKey


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the pod with this uid to the node. Its room is already assumed."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class SetGroupCondition:
    """Write PodGroupInitiallyScheduled on the PodGroup, if it does not say so already."""

    group: GroupKey
    group_uid: str
    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SetPodCondition:
    """Write PodScheduled=False on the pod, if it does not say so already."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Record an Event where the user looks."""

    regarding: Regarding
    type: Literal["Normal", "Warning"]
    reason: str
    note: str


Instruction = Bind | SetGroupCondition | SetPodCondition | EmitEvent

Verdict = Literal["scheduled", "unschedulable", "error", "waiting"]


@dataclass(frozen=True, slots=True)
class Decision:
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
    instructions: list[Instruction] = field(default_factory=list)
