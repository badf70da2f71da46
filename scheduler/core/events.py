"""What goes into the core: facts observed from the API server, and outcomes of its own instructions."""

from __future__ import annotations

from dataclasses import dataclass

from api.membership import GroupKey
from api.model import PodGroup
from api.wire import Job, Node, Pod


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A node exists in this form."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class PodSet:
    """A pod exists in this form: ours or not, bound or not, running or ended."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class GroupSet:
    """A PodGroup exists in this form."""

    group: PodGroup


@dataclass(frozen=True, slots=True)
class GroupGone:
    """A PodGroup was deleted."""

    key: GroupKey


@dataclass(frozen=True, slots=True)
class JobSet:
    """A Job exists in this form: it decides the group of pods that name none."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobGone:
    """A Job was deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class BindDone:
    """The API server accepted a bind."""

    uid: str


@dataclass(frozen=True, slots=True)
class BindFailed:
    """A bind was not carried out, and the pod is still there without a node.

    Nothing is said of a pod that is gone or bound elsewhere: the watch tells that.
    """

    uid: str
    message: str


Event = NodeSet | NodeGone | PodSet | PodGone | GroupSet | GroupGone | JobSet | JobGone | BindDone | BindFailed
