"""What goes into the core: facts observed from the API server, and outcomes of its own instructions."""

from __future__ import annotations

import msgspec

from api.membership import GroupKey
from api.model import PodGroup
from api.wire import Job, Node, Pod


class NodeSet(msgspec.Struct, frozen=True, gc=False):
    """A node exists in this form."""

    node: Node


class NodeGone(msgspec.Struct, frozen=True, gc=False):
    """A node was deleted."""

    name: str


class PodSet(msgspec.Struct, frozen=True, gc=False):
    """A pod exists in this form: ours or not, bound or not, running or ended."""

    pod: Pod


class PodGone(msgspec.Struct, frozen=True, gc=False):
    """A pod was deleted."""

    uid: str


class GroupSet(msgspec.Struct, frozen=True, gc=False):
    """A PodGroup exists in this form."""

    group: PodGroup


class GroupGone(msgspec.Struct, frozen=True, gc=False):
    """A PodGroup was deleted."""

    key: GroupKey


class JobSet(msgspec.Struct, frozen=True, gc=False):
    """A Job exists in this form: it decides the group of pods that name none."""

    job: Job


class JobGone(msgspec.Struct, frozen=True, gc=False):
    """A Job was deleted."""

    uid: str


class BindDone(msgspec.Struct, frozen=True, gc=False):
    """The API server accepted a bind."""

    uid: str


class BindFailed(msgspec.Struct, frozen=True, gc=False):
    """A bind was not carried out, and the pod is still there without a node.

    Nothing is said of a pod that is gone or bound elsewhere: the watch tells that.
    """

    uid: str
    message: str


Event = NodeSet | NodeGone | PodSet | PodGone | GroupSet | GroupGone | JobSet | JobGone | BindDone | BindFailed
