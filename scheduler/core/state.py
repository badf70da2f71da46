"""What is known: every pod in one state, every group with its members by state, the nodes with what is used.

A pod changes state only through ``State.move``, which keeps the room used on nodes and the groups' books;
``scheduler.core.validate`` recounts both in tests.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from weakref import WeakValueDictionary

from api import conditions
from api.membership import GroupKey, counts, name_taken
from api.model import PodGroup
from api.wire import Job, Pod
from scheduler.core import signature as signatures
from scheduler.core.capacity import Capacities
from scheduler.core.nodes import NodeTable
from scheduler.core.queue import EntityId, Order
from scheduler.core.signature import Signature


class PodState(enum.IntEnum):
    """Mutually exclusive states of a pod. Integers, as they key the books that every event looks into."""

    #: Must not be placed: it has scheduling gates, its group is not decidable before its Job is seen, or a stranger
    #: took the name of its Job's group.
    HELD = enum.auto()
    #: Unbound, ours to place.
    PENDING = enum.auto()
    #: Unbound, its room kept on a node while its running group is completed.
    RESERVED = enum.auto()
    #: A bind to a node is under way.
    ASSUMED = enum.auto()
    #: The API server accepted our bind, the watch has not confirmed it yet.
    ACCEPTED = enum.auto()
    #: Bound, running or about to.
    BOUND = enum.auto()
    #: Bound and in deletion: uses its room, counts for nothing.
    LEAVING = enum.auto()
    #: Ended well: uses nothing, counts toward its group's minimum.
    SUCCEEDED = enum.auto()
    #: Failed, or in deletion and never bound, or another scheduler's and unbound: uses and counts nothing.
    OUT = enum.auto()


#: States in which a pod uses room on its node.
ON_NODE = frozenset({PodState.RESERVED, PodState.ASSUMED, PodState.ACCEPTED, PodState.BOUND, PodState.LEAVING})
#: States that fill a group's minimum when a placement is planned.
PLACED = frozenset({PodState.ASSUMED, PodState.ACCEPTED, PodState.BOUND, PodState.SUCCEEDED})
#: States of a member that has been bound for certain and was not lost.
EVER_BOUND = frozenset({PodState.ACCEPTED, PodState.BOUND, PodState.SUCCEEDED})
#: States that still want a node.
UNPLACED = frozenset({PodState.PENDING, PodState.RESERVED})


#: Pods by state and uid.
Books = dict["PodState", dict[str, "PodInfo"]]


@dataclass(slots=True, eq=False)
class PodInfo:
    """A pod as the scheduler sees it; ``group`` is latched when first decided."""

    pod: Pod
    signature: Signature
    state: PodState = PodState.OUT
    group: GroupKey | None = None
    #: Whether `group` was decided for good.
    latched: bool = False
    #: The uid of the Job that must be seen before `group` can be decided.
    waits_for_job: str = ""
    #: The node it uses room on (states in `ON_NODE`).
    node: str = ""
    #: Where its group files it: the group's `members` or `extras`; None before `latched`, and without a group.
    books: Books | None = None
    #: Orders the pods of a group: completion index, then name.
    rank: tuple[int, str] = (0, "")

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.metadata.uid

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def entity(self) -> EntityId:
        """What is tried when the pod is to be placed: its group, or the pod itself."""
        return self.group if self.group is not None else self.uid

    def order(self) -> Order:
        """Place in the queue of a pod that is scheduled alone: priority, then age."""
        metadata = self.pod.metadata
        return (1, -self.pod.spec.priority, metadata.creation_timestamp or "", self.key)


@dataclass(slots=True, eq=False)
class GroupInfo:
    """A group and the pods that name it, whether or not its PodGroup exists."""

    key: GroupKey
    podgroup: PodGroup | None = None
    #: Pods that count toward the minimum, by state; extras the same.
    members: Books = field(default_factory=lambda: {s: {} for s in PodState})
    extras: Books = field(default_factory=lambda: {s: {} for s in PodState})
    #: The minimum and the parallelism of its Job now; 0 where it is not a Job's group that the controllers made.
    job_minimum: int = 0
    job_parallelism: int = 0
    #: Room was kept for it for long enough.
    hold_over: bool = False
    #: Verdict last told (status, reason, message), so that nothing is told twice.
    told: tuple[str, str, str] | None = None
    #: Whether this PodGroup was told to have reached its minimum.
    ever_reached: bool = False

    @property
    def minimum(self) -> int:
        """Members that must be placed together; 0 for the basic policy."""
        return self.podgroup.min_count if self.podgroup is not None else 0

    @property
    def placed(self) -> int:
        """Members with a place, binds under way included."""
        return sum(len(self.members[state]) for state in PLACED)

    @property
    def bound(self) -> int:
        """Members bound for certain: seen so, or the API server accepted the bind."""
        return sum(len(self.members[state]) for state in EVER_BOUND)

    @property
    def unplaced(self) -> int:
        """Members that want a node."""
        return sum(len(self.members[state]) for state in UNPLACED)

    @property
    def wants(self) -> bool:
        """Whether any member or extra wants a node."""
        return any(books[state] for books in (self.members, self.extras) for state in UNPLACED)

    @property
    def missing(self) -> int:
        """Members still to be placed before the minimum is reached."""
        return max(self.minimum - self.placed, 0)

    @property
    def below_minimum(self) -> bool:
        """Whether it runs with fewer members than its minimum: completed before anything new is started."""
        return self.missing > 0 and any(self.members[state] for state in PLACED)

    @property
    def complete(self) -> bool:
        """Whether it can be tried: its PodGroup takes members, and enough of them exist for the minimum."""
        if self.podgroup is None or self.terminating or self.behind:
            return False
        return self.placed + self.unplaced >= self.minimum

    @property
    def behind(self) -> bool:
        """Whether its Job has grown and its minimum has not: new members would start in part.

        Seen from the Job, or from more live members than the Job as last seen can have.
        """
        if not self.job_parallelism > 0 or not self.minimum:
            return False
        live = self.placed - len(self.members[PodState.SUCCEEDED]) + self.unplaced
        return self.minimum < self.job_minimum or live > self.job_parallelism

    @property
    def reached(self) -> bool:
        """Whether its minimum is bound (for the basic policy: anything is)."""
        return self.podgroup is not None and self.bound >= max(self.minimum, 1)

    @property
    def told_reached(self) -> bool:
        """Whether the PodGroup's condition says so, or is about to; that is terminal."""
        return self.ever_reached or (
            self.podgroup is not None
            and conditions.is_true(self.podgroup.status.conditions, conditions.INITIALLY_SCHEDULED)
        )

    @property
    def begun(self) -> bool:
        """Whether it was bound in part and never reached its minimum: it must say so, whatever it waits for."""
        return self.below_minimum and not self.told_reached

    @property
    def stale(self) -> bool:
        """Whether what was told of it was about pods that are all gone."""
        return self.told is not None and not self.told_reached and not any(True for _ in self.all_pods())

    @property
    def to_tell(self) -> bool:
        """Whether anybody waits for a word on what it lacks."""
        return self.wants or self.begun or self.stale or bool(self.gated)

    @property
    def robbed(self) -> list[PodInfo]:
        """Pods held because this PodGroup has the name of their Job's group, and is not their Job's."""
        podgroup = self.podgroup
        if podgroup is None:
            return []
        held = [*self.members[PodState.HELD].values(), *self.extras[PodState.HELD].values()]
        return [info for info in held if name_taken(info.pod, podgroup)]

    @property
    def gated(self) -> list[PodInfo]:
        """Members that exist and wait for their scheduling gates."""
        return [info for info in self.members[PodState.HELD].values() if info.pod.spec.scheduling_gates]

    @property
    def terminating(self) -> bool:
        """Whether the PodGroup is in deletion: it takes no new members."""
        return self.podgroup is not None and self.podgroup.metadata.deletion_timestamp is not None

    @property
    def empty(self) -> bool:
        """Whether nothing refers to it any more."""
        return self.podgroup is None and not any(self.all_pods())

    def all_pods(self) -> Iterable[PodInfo]:
        """Every pod that names the group."""
        for books in (self.members, self.extras):
            for pods in books.values():
                yield from pods.values()

    def order(self) -> Order:
        """Groups below their minimum that already run come first, then priority, then age."""
        podgroup = self.podgroup
        priority = podgroup.spec.priority if podgroup is not None else None
        if priority is None:
            wanting = (info for state in UNPLACED for info in self.members[state].values())
            priority = max((info.pod.spec.priority for info in wanting), default=0)
        created = (podgroup.metadata.creation_timestamp if podgroup is not None else None) or ""
        return (0 if self.below_minimum else 1, -priority, created, str(self.key))

    def wanting(self, *, extras: bool = False) -> list[PodInfo]:
        """Members (or extras) that want a node, in the order of their completion indexes."""
        books = self.extras if extras else self.members
        return sorted((info for state in UNPLACED for info in books[state].values()), key=_RANK)


_RANK = attrgetter("rank")
_INDEX = "batch.kubernetes.io/job-completion-index"


def _rank(pod: Pod) -> tuple[int, str]:
    metadata = pod.metadata
    index = metadata.labels.get(_INDEX) or metadata.annotations.get(_INDEX) or ""
    # The annotation is the user's: it may be anything.
    known = index.isascii() and index.isdigit() and len(index) < 10
    return (int(index) if known else 2**31, metadata.name)


#: Specs as written whose signatures are kept at hand.
RECENT = 4096


class State:
    """Pods, groups and nodes, and the one way a pod changes state."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.capacities = Capacities(self.nodes)
        self.pods: dict[str, PodInfo] = {}
        self.groups: dict[GroupKey, GroupInfo] = {}
        #: By uid.
        self.jobs: dict[str, Job] = {}
        self._signatures: WeakValueDictionary[bytes, Signature] = WeakValueDictionary()
        self._recent: dict[bytes, Signature] = {}

    def signature(self, pod: Pod) -> Signature:
        """Return the interned signature of a pod."""
        raw = signatures.raw_key_of(pod)
        found = self._recent.get(raw)
        if found is None:
            key = signatures.key_of(pod)
            found = self._signatures.get(key)
            if found is None:
                found = self._signatures[key] = signatures.of_pod(pod)
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[raw] = found
        return found

    def add(self, pod: Pod) -> PodInfo:
        """Take in a pod not seen before; it is OUT until moved."""
        info = self.pods[pod.metadata.uid] = PodInfo(pod, self.signature(pod), rank=_rank(pod))
        return info

    def group(self, key: GroupKey) -> GroupInfo:
        """Return the group's entry, made on first mention."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = GroupInfo(key)
        return group

    def drop_if_empty(self, key: GroupKey) -> None:
        """Forget a group that nothing refers to."""
        group = self.groups.get(key)
        if group is not None and group.empty:
            del self.groups[key]

    def move(self, info: PodInfo, state: PodState, node: str = "") -> None:
        """Move a pod to a state; ``node`` is where it uses room, for the states that do."""
        if info.state in ON_NODE and (state not in ON_NODE or node != info.node):
            self.nodes.give_back(info.node, info.signature)
            info.node = ""
        if state in ON_NODE and not info.node:
            self.nodes.take(node, info.signature)
            info.node = node
        if state is not info.state:
            if info.books is not None:
                info.books[state][info.uid] = info.books[info.state].pop(info.uid)
            info.state = state

    def assume(self, plan: Sequence[tuple[PodInfo, str]]) -> None:
        """Move PENDING pods to ASSUMED on the nodes given, as `move` does one by one."""
        nodes: dict[Signature, list[str]] = {}
        for info, node in plan:
            nodes.setdefault(info.signature, []).append(node)
            info.node = node
            if info.books is not None:
                info.books[PodState.ASSUMED][info.uid] = info.books[info.state].pop(info.uid)
            info.state = PodState.ASSUMED
        for signature, names in nodes.items():
            self.nodes.take_all(names, signature)

    def join(self, info: PodInfo, group: GroupKey | None) -> None:
        """Latch the pod's group, once."""
        info.latched = True
        info.group = group
        self._file(info)

    def resign(self, info: PodInfo, pod: Pod) -> bool:
        """Take over a changed pod spec (a resize, an added toleration). Returns whether it matters to filters."""
        before, info.signature = info.signature, self.signature(pod)
        if info.signature is before:
            return False
        if info.state in ON_NODE:
            self.nodes.give_back(info.node, before)
            self.nodes.take(info.node, info.signature)
        return True

    def forget(self, info: PodInfo) -> None:
        """Remove a pod and give back what it used."""
        self.move(info, PodState.OUT)
        if info.books is not None:
            del info.books[PodState.OUT][info.uid]
        del self.pods[info.uid]
        if info.group is not None:
            self.drop_if_empty(info.group)

    def refile(self, group: GroupInfo) -> None:
        """Sort the group's pods into members and extras anew: its PodGroup came, went or changed its owner."""
        for info in list(group.all_pods()):
            if info.books is not None:
                del info.books[info.state][info.uid]
            self._file(info)

    def _file(self, info: PodInfo) -> None:
        if info.group is None:
            return
        group = self.group(info.group)
        info.group = group.key  # one for all of them
        member = group.podgroup is None or counts(info.pod, group.podgroup)
        info.books = group.members if member else group.extras
        info.books[info.state][info.uid] = info
