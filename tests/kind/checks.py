"""Outside checkers: they know the API server only, its objects, its watches and its audit log.

A :class:`Watcher` records every change of pods, PodGroups and nodes. Their resource versions are revisions of one
store, so the records of the three watches sort into what really happened, and :func:`violations` replays that and
checks it at every instant.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from api.names import SCHEDULER_NAME, group_name
from api.quantity import parse
from tests.kind.kube import Kube, KubeError, Obj, condition, path, until

#: Longest time in seconds for which a group may run with fewer members than its minimum.
PARTIAL_SECONDS = 30.0
#: Seconds by which a decision may be older than the bind that it led to.
LAG = 3.0

OUR_USERS = "system:serviceaccount:phalanx-system:"

#: All that our ServiceAccounts have any business writing: (account, verb, resource).
ALLOWED_WRITES = {
    ("phalanx-scheduler", "create", "pods/binding"),
    ("phalanx-scheduler", "patch", "pods/status"),
    ("phalanx-scheduler", "patch", "podgroups/status"),
    ("phalanx-scheduler", "create", "events"),
    ("phalanx-scheduler", "patch", "events"),
    ("phalanx-controllers", "create", "workloads"),
    ("phalanx-controllers", "patch", "workloads"),
    ("phalanx-controllers", "create", "podgroups"),
    ("phalanx-controllers", "patch", "podgroups"),
    ("phalanx-controllers", "delete", "podgroups"),
    ("phalanx-controllers", "create", "events"),
    ("phalanx-controllers", "patch", "events"),
    ("phalanx-controllers", "create", "jobs"),
    ("phalanx-controllers", "delete", "jobs"),
}


# --- what is recorded -----------------------------------------------------------------------------------


class Room(NamedTuple):
    """CPU in thousandths of a core, memory in bytes, number of pods."""

    cpu: int = 0
    memory: int = 0
    pods: int = 0

    def plus(self, other: Room) -> Room:
        return Room(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def minus(self, other: Room) -> Room:
        return Room(self.cpu - other.cpu, self.memory - other.memory, self.pods - other.pods)

    def times(self, other: Room) -> int:
        """How many of ``other`` fit in this."""
        return max(min(have // need for have, need in zip(self, other, strict=True) if need > 0), 0)

    @property
    def overdrawn(self) -> bool:
        return min(self) < 0


@dataclass(frozen=True, slots=True)
class PodView:
    uid: str
    namespace: str
    name: str
    node: str
    phase: str
    deleting: bool
    scheduler: str
    group: str
    job_uid: str
    need: Room
    selector: tuple[tuple[str, str], ...]
    nominated: str
    gated: bool

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.group)


@dataclass(frozen=True, slots=True)
class GroupView:
    uid: str
    namespace: str
    name: str
    minimum: int
    deleting: bool
    protected: bool
    job_uid: str
    scheduled: tuple[str, str, str]

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class NodeView:
    uid: str
    name: str
    allocatable: Room
    labels: frozenset[tuple[str, str]]
    usable: bool


View = PodView | GroupView | NodeView


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what the object is now, or None when it is gone."""

    revision: int
    time: float
    resource: str
    uid: str
    view: View | None


def _controller(obj: Obj) -> Obj:
    return next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), {})


def _job_uid(obj: Obj) -> str:
    owner = _controller(obj)
    return str(owner["uid"]) if owner.get("kind") == "Job" else ""


def view_pod(obj: Obj) -> PodView:
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status", {})
    need = Room(pods=1)
    for container in spec["containers"]:
        requests = container.get("resources", {}).get("requests", {})
        need = need.plus(Room(parse(requests.get("cpu", "0"), milli=True), parse(requests.get("memory", "0")), 0))
    return PodView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        deleting="deletionTimestamp" in metadata,
        scheduler=spec.get("schedulerName", ""),
        group=spec.get("schedulingGroup", {}).get("podGroupName", ""),
        job_uid=_job_uid(obj),
        need=need,
        selector=tuple(sorted(spec.get("nodeSelector", {}).items())),
        nominated=status.get("nominatedNodeName", ""),
        gated=bool(spec.get("schedulingGates")),
    )


def view_group(obj: Obj) -> GroupView:
    metadata = obj["metadata"]
    found = condition(obj, "PodGroupInitiallyScheduled") or {}
    return GroupView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        minimum=obj["spec"]["schedulingPolicy"].get("gang", {}).get("minCount", 0),
        deleting="deletionTimestamp" in metadata,
        protected=bool(metadata.get("finalizers")),
        job_uid=_job_uid(obj),
        scheduled=(found.get("status", ""), found.get("reason", ""), found.get("message", "")),
    )


def view_node(obj: Obj) -> NodeView:
    metadata, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    offers = status.get("allocatable", {})
    taints = [t for t in spec.get("taints") or () if t["effect"] in ("NoSchedule", "NoExecute")]
    return NodeView(
        uid=metadata["uid"],
        name=metadata["name"],
        allocatable=Room(
            parse(offers.get("cpu", "0"), milli=True), parse(offers.get("memory", "0")), int(offers.get("pods", 0))
        ),
        labels=frozenset(metadata.get("labels", {}).items()),
        usable=not taints and not spec.get("unschedulable", False),
    )


VIEWS: dict[str, Callable[[Obj], View]] = {"pods": view_pod, "podgroups": view_group, "nodes": view_node}


class Watcher:
    """Records all changes of pods, PodGroups and nodes of a cluster, from ``with`` on.

    A watch that ends goes on where it was; one that cannot begins again with a list, and what changed meanwhile is
    recorded with the list's revision.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._current: dict[str, dict[str, tuple[int, View]]] = {resource: {} for resource in VIEWS}
        self._stop = threading.Event()
        self._sockets: dict[str, socket.socket] = {}
        self._listed = {resource: threading.Event() for resource in VIEWS}
        #: How often a watch had to begin again with a list.
        self.relists = 0
        self._threads = [threading.Thread(target=self._follow, args=(r,), daemon=True) for r in VIEWS]

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        for resource, listed in self._listed.items():
            assert listed.wait(30), f"the watcher cannot list {resource}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for sock in list(self._sockets.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def changes(self, since: float = 0.0) -> list[Change]:
        """Everything recorded, in the order in which the API server did it."""
        with self._lock:
            found = [c for c in self._changes if c.time >= since]
        return sorted(found, key=lambda c: c.revision)

    def world(self, namespace: str | None = None) -> World:
        """The cluster as last seen, or only one namespace of it and all nodes."""
        with self._lock:
            views = [
                (resource, uid, *entry)
                for resource, known in self._current.items()
                for uid, entry in known.items()
                if namespace is None or getattr(entry[1], "namespace", namespace) == namespace
            ]
        world = World()
        for resource, uid, revision, view in views:
            world.apply(Change(revision, 0.0, resource, uid, view))
        return world

    def catch_up(self, namespace: str | None = None) -> None:
        """Return once everything that the API server has now (in a namespace) is recorded."""
        for resource in VIEWS:
            answer = self._kube.request("GET", path(resource, namespace if resource != "nodes" else None))
            until(lambda r=resource, a=answer: self._has(r, a, namespace), 20, f"the watcher has caught up: {resource}")

    def _has(self, resource: str, answer: Obj, namespace: str | None) -> bool:
        listed = int(answer["metadata"]["resourceVersion"])
        wanted = {i["metadata"]["uid"]: int(i["metadata"]["resourceVersion"]) for i in answer["items"]}
        with self._lock:
            current = dict(self._current[resource])
            gone = {c.uid for c in self._changes if c.view is None} if wanted.keys() - current.keys() else set()
        here = {
            uid: revision
            for uid, (revision, view) in current.items()
            if namespace is None or getattr(view, "namespace", namespace) == namespace
        }
        return all(here.get(uid, 0) >= revision or uid in gone for uid, revision in wanted.items()) and not any(
            uid not in wanted and revision <= listed for uid, revision in here.items()
        )

    # --- one watch ----------------------------------------------------------------------------------------

    def _follow(self, resource: str) -> None:
        revision = ""
        while not self._stop.is_set():
            try:
                if not revision:
                    revision = self._list(resource)
                revision = self._watch(resource, revision)
            except (OSError, http.client.HTTPException, KubeError, ValueError):
                self._stop.wait(0.2)

    def _list(self, resource: str) -> str:
        answer = self._kube.request("GET", path(resource))
        revision = answer["metadata"]["resourceVersion"]
        seen = set()
        for item in answer["items"]:
            seen.add(item["metadata"]["uid"])
            self._record(resource, item)
        with self._lock:
            for uid in [uid for uid in self._current[resource] if uid not in seen]:
                self._gone(resource, uid, int(revision))
        if self._listed[resource].is_set():
            self.relists += 1
        self._listed[resource].set()
        return str(revision)

    def _watch(self, resource: str, revision: str) -> str:
        """Follow until the stream ends; the revision to go on from, empty when that is too old."""
        query = f"?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion={revision}"
        connection, response = self._kube.open(path(resource) + query, timeout=330)
        try:
            if response.status != 200:
                return ""
            sock = connection.sock
            if sock is not None:
                self._sockets[resource] = sock
            while line := response.readline():
                event = json.loads(line)
                obj = event["object"]
                if event["type"] == "ERROR":
                    return ""
                revision = obj["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    with self._lock:
                        self._gone(resource, obj["metadata"]["uid"], int(revision))
                elif event["type"] != "BOOKMARK":
                    self._record(resource, obj)
        except (OSError, http.client.HTTPException):
            pass  # goes on from the last revision
        finally:
            connection.close()
        return revision

    def _record(self, resource: str, obj: Obj) -> None:
        view = VIEWS[resource](obj)
        revision = int(obj["metadata"]["resourceVersion"])
        with self._lock:
            known = self._current[resource].get(view.uid)
            if known is not None and (known[0] >= revision or known[1] == view):
                self._current[resource][view.uid] = (max(revision, known[0]), view)
                return
            self._current[resource][view.uid] = (revision, view)
            self._changes.append(Change(revision, time.time(), resource, view.uid, view))

    def _gone(self, resource: str, uid: str, revision: int) -> None:
        if self._current[resource].pop(uid, None) is not None:
            self._changes.append(Change(revision, time.time(), resource, uid, None))


# --- replay -----------------------------------------------------------------------------------------------


@dataclass
class World:
    """The cluster at one instant."""

    pods: dict[str, PodView] = field(default_factory=dict)
    groups: dict[tuple[str, str], GroupView] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    members: dict[tuple[str, str], dict[str, PodView]] = field(default_factory=dict)
    on_node: dict[str, dict[str, PodView]] = field(default_factory=dict)
    _keys: dict[str, Any] = field(default_factory=dict)

    def apply(self, change: Change) -> View | None:
        """Take over one change; what was there before."""
        if change.resource == "pods":
            before = self.pods.pop(change.uid, None)
            if before is not None:
                self.members.get(before.key, {}).pop(change.uid, None)
                self.on_node.get(before.node, {}).pop(change.uid, None)
            if isinstance(change.view, PodView):
                self.pods[change.uid] = change.view
                if change.view.group:
                    self.members.setdefault(change.view.key, {})[change.uid] = change.view
                if change.view.node:
                    self.on_node.setdefault(change.view.node, {})[change.uid] = change.view
            return before
        table: dict[Any, Any] = self.groups if change.resource == "podgroups" else self.nodes
        key = self._keys.pop(change.uid, None)
        old: View | None = table.get(key)
        if old is not None and old.uid == change.uid:
            del table[key]
        else:
            old = None
        if isinstance(change.view, GroupView | NodeView):
            key = change.view.key if isinstance(change.view, GroupView) else change.view.name
            table[key] = change.view
            self._keys[change.uid] = key
        return old

    def free(self, node: NodeView) -> Room:
        """What is left of a node; negative where it is overdrawn."""
        room = node.allocatable
        for pod in self.on_node.get(node.name, {}).values():
            if not pod.ended:
                room = room.minus(pod.need)
        return room

    def capacity(self, pod: PodView, taken: dict[str, Room] | None = None) -> int:
        """How many pods like this fit now; ``taken``: what else is spoken for, by node."""
        total = 0
        for node in self.nodes.values():
            if node.usable and node.labels.issuperset(pod.selector):
                total += self.free(node).minus((taken or {}).get(node.name, Room())).times(pod.need)
        return total

    def counting(self, group: GroupView) -> list[PodView]:
        """The pods that count toward the group's minimum; the ended ones too."""
        pods = self.members.get(group.key, {}).values()
        return [pod for pod in pods if not group.job_uid or pod.job_uid == group.job_uid]

    def bound(self, group: GroupView) -> int:
        """Members that have, or had, a node."""
        return sum(1 for pod in self.counting(group) if pod.node and (pod.ended or not pod.deleting))

    def waiting(self, group: GroupView) -> list[PodView]:
        """Members without a node that could get one."""
        return [pod for pod in self.counting(group) if not (pod.node or pod.ended or pod.deleting or pod.gated)]


@dataclass
class Report:
    """What a replay found."""

    violations: list[str] = field(default_factory=list)
    #: Groups below their minimum for long, but for a loss outside of us (a member deleted, a node gone).
    excused: list[str] = field(default_factory=list)
    #: Groups below their minimum when the history ends, without a loss outside of us.
    partial_now: list[str] = field(default_factory=list)
    #: How long each group was bound in part that was so at all, in seconds, longest first.
    partial: list[tuple[float, str]] = field(default_factory=list)
    groups_started: int = 0
    binds: int = 0


def replay(
    changes: Sequence[Change],
    *,
    namespaces: Iterable[str] | None = None,
    schedulers: Iterable[str] = (SCHEDULER_NAME,),
    now: float | None = None,
) -> Report:
    """Check a history at every instant.

    :param namespaces: report on these only (the others' pods still take room)
    :param now: when the history ends; the present, when left out
    """
    return _Replay(list(changes), namespaces, schedulers, time.time() if now is None else now).run()


class _Replay:
    def __init__(
        self, changes: list[Change], namespaces: Iterable[str] | None, schedulers: Iterable[str], now: float
    ) -> None:
        self.changes = changes
        self.namespaces = None if namespaces is None else set(namespaces)
        self.schedulers = set(schedulers)
        self.now = now
        self.world = World()
        self.report = Report()
        #: By the group's uid: since when it is bound in part, and whether it ever reached its minimum.
        self.partial: dict[str, float] = {}
        self.reached: set[str] = set()
        self.started: set[str] = set()
        #: By the group's uid: the last loss outside of us before its partial time, or else the first one in it.
        self.lost: dict[str, tuple[float, str]] = {}

    def run(self) -> Report:
        for index, change in enumerate(self.changes):
            if change.resource == "pods":
                self._judge_bind(index, change)
            before = self.world.apply(change)
            if change.resource == "pods":
                self._pod(change, before)
            elif change.resource == "podgroups":
                self._group(change, before)
            elif change.view is None or not getattr(change.view, "usable", True):
                self._node_lost(change, before)
        for uid in list(self.partial):
            group = next((g for g in self.world.groups.values() if g.uid == uid), None)
            if group is not None and not self._excused(uid):
                text = f"group {group.namespace}/{group.name}: {self.world.bound(group)} of {group.minimum} bound"
                self.report.partial_now.append(text)
            self._end_partial(uid, self.now, "the end")
        return self.report

    def _mine(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    def _blame(self, change: Change, text: str) -> None:
        self.report.violations.append(f"rev {change.revision} at {change.time:.3f}: {text}")

    # --- pods ---------------------------------------------------------------------------------------------

    def _pod(self, change: Change, before: View | None) -> None:
        pod = change.view
        assert isinstance(before, PodView | None)
        assert isinstance(pod, PodView | None)
        about = pod or before
        if about is None or not self._mine(about.namespace):
            return
        if before is not None and pod is not None and before.node and pod.node != before.node:
            self._blame(change, f"pod {pod.name} moved from {before.node} to {pod.node}")
        group = self.world.groups.get(about.key) if about.group else None
        if group is not None:
            if pod is None or pod.deleting or pod.phase == "Failed":
                self._lose(group.uid, change.time, f"member {about.name} was deleted or failed")
            self._count(group, change.time)

    def _judge_bind(self, index: int, change: Change) -> None:
        """Judge a bind by the world right before it."""
        pod, before, world = change.view, self.world.pods.get(change.uid), self.world
        if not isinstance(pod, PodView) or before is None or before.node or not pod.node:
            return
        if not self._mine(pod.namespace):
            return
        self.report.binds += 1
        node = world.nodes.get(pod.node)
        if node is None:
            if not self._recently(index, lambda world: pod.node in world.nodes):
                self._blame(change, f"pod {pod.name} was bound to {pod.node}, which does not exist")
        elif (left := world.free(node).minus(pod.need)).overdrawn:
            self._blame(change, f"pod {pod.name} overdraws node {node.name}: {node.allocatable} offered, {left} left")
        elif not node.labels.issuperset(pod.selector):
            self._blame(change, f"pod {pod.name} does not belong on {node.name}")
        elif not self._recently(index, lambda world: pod.node in world.nodes and world.nodes[pod.node].usable):
            self._blame(change, f"pod {pod.name} was bound to {node.name}, which takes no pods")
        if pod.group and pod.scheduler in self.schedulers:
            self._judge_member(index, change, pod)

    def _judge_member(self, index: int, change: Change, pod: PodView) -> None:
        def exists(world: World) -> bool:
            return pod.key in world.groups and not world.groups[pod.key].deleting

        group = self.world.groups.get(pod.key)
        if not self._recently(index, exists):
            state = "in deletion" if group is not None else "absent"
            self._blame(change, f"pod {pod.name} was bound while its PodGroup {pod.group} is {state}")
        if group is None or group.uid in self.started:
            return
        self.started.add(group.uid)
        if self.world.bound(group):
            return  # it started before the record did
        self.report.groups_started += 1
        committed = self._committed(index, group)

        def fits(world: World) -> bool:
            known = world.groups.get(group.key)
            if known is None or known.uid != group.uid:
                return False
            members = [p for p in world.counting(known) if not p.deleting and p.phase != "Failed"]
            alike = len({(p.need, p.selector) for p in members}) <= 1
            enough = len(members) >= known.minimum
            return enough and (not alike or world.capacity(pod, committed) >= known.minimum)

        if not self._recently(index, fits):
            self._blame(
                change,
                f"group {group.namespace}/{group.name} was started with {len(self.world.counting(group))} members and "
                f"room for {self.world.capacity(pod, committed)}: its minimum is {group.minimum}",
            )

    def _committed(self, index: int, group: GroupView) -> dict[str, Room]:
        """By node, what groups started before this one and not yet complete were given right after."""
        open_groups = {
            other.key: other.minimum - self.world.bound(other)
            for other in self.world.groups.values()
            if other.uid in self.partial and other.uid != group.uid
        }
        taken: dict[str, Room] = {}
        if not open_groups:
            return taken
        for later in self.changes[index + 1 :]:
            if later.time > self.changes[index].time + 1.0:
                break
            pod, before = later.view, self.world.pods.get(later.uid)
            if not isinstance(pod, PodView) or before is None or before.node or not pod.node:
                continue
            if open_groups.get(pod.key, 0) > 0:
                open_groups[pod.key] -= 1
                taken[pod.node] = taken.get(pod.node, Room()).plus(pod.need)
        return taken

    def _recently(self, index: int, holds: Callable[[World], bool]) -> bool:
        """Whether something held right before a change, or at an instant that a decision may have been made at."""
        if holds(self.world):
            return True
        end = self.changes[index].time
        start = index
        while start > 0 and self.changes[start - 1].time > end - LAG:
            start -= 1
        world = World()
        for change in self.changes[:start]:
            world.apply(change)
        if holds(world):
            return True
        for change in self.changes[start:index]:
            world.apply(change)
            if holds(world):
                return True
        return False

    # --- groups -------------------------------------------------------------------------------------------

    def _group(self, change: Change, before: View | None) -> None:
        group = change.view
        assert isinstance(before, GroupView | None)
        assert isinstance(group, GroupView | None)
        about = group or before
        if about is None or not self._mine(about.namespace):
            return
        if group is None:
            self._end_partial(about.uid, change.time, "its PodGroup went")
            holders = [p.name for p in self.world.members.get(about.key, {}).values() if p.node and not p.ended]
            if holders and about.protected:
                self._blame(change, f"PodGroup {about.name} went while {', '.join(holders)} still ran")
            return
        if before is not None and before.scheduled[0] == "True" and group.scheduled[0] != "True":
            self._blame(change, f"PodGroup {group.name}: the condition went from True to {group.scheduled}")
        if group.scheduled[0] == "False" and not (group.scheduled[1] and group.scheduled[2]):
            self._blame(change, f"PodGroup {group.name}: False without a reason: {group.scheduled}")
        if before is not None and group.minimum > before.minimum:
            self._lose(group.uid, change.time, f"its minimum was raised from {before.minimum} to {group.minimum}")
        self._count(group, change.time)

    def _count(self, group: GroupView, when: float) -> None:
        bound = self.world.bound(group)
        if group.uid in self.reached:
            return
        if bound >= group.minimum:
            if bound:
                self.reached.add(group.uid)
            self._end_partial(group.uid, when, "it was completed")
        elif bound:
            self.partial.setdefault(group.uid, when)
        else:
            self._end_partial(group.uid, when, "it had no member left")

    def _end_partial(self, uid: str, when: float, why: str) -> None:
        since = self.partial.get(uid)
        if since is None:
            return
        excused = self._excused(uid)
        del self.partial[uid]
        group = next((g for g in self.world.groups.values() if g.uid == uid), None)
        name = f"{group.namespace}/{group.name}" if group else uid
        bound = f"{self.world.bound(group)} of {group.minimum} bound, " if group else ""
        text = f"group {name} was partial for {when - since:.1f} s ({bound}until {why})"
        if excused:
            text += f"; {self.lost[uid][1]}"
        self.report.partial = sorted([*self.report.partial, (round(when - since, 3), text)], reverse=True)
        if when - since > PARTIAL_SECONDS:
            (self.report.excused if excused else self.report.violations).append(text)

    def _lose(self, uid: str, when: float, what: str) -> None:
        if uid not in self.partial or self.lost.get(uid, (0.0, ""))[0] < self.partial[uid]:
            self.lost[uid] = (when, what)

    def _excused(self, uid: str) -> bool:
        """Whether a member or a node was lost while the group was being bound, and not only after too long."""
        since, lost = self.partial[uid], self.lost.get(uid)
        return lost is not None and since - LAG <= lost[0] <= since + PARTIAL_SECONDS

    def _node_lost(self, change: Change, before: View | None) -> None:
        """A node went, or takes no more pods: a loss for the groups that could have had members on it."""
        node = before if isinstance(before, NodeView) else change.view
        if not isinstance(node, NodeView) or (isinstance(before, NodeView) and not before.usable):
            return
        for group in self.world.groups.values():
            members = self.world.members.get(group.key, {}).values()
            if any(node.labels.issuperset(pod.selector) for pod in members):
                self._lose(group.uid, change.time, f"node {node.name} was lost")


def timeline(changes: Iterable[Change], namespace: str, group: str) -> list[str]:
    """What happened to a group and its members, for people."""
    lines: list[str] = []
    known: dict[str, View] = {}
    for change in changes:
        view = change.view or known.get(change.uid)
        known |= {change.uid: change.view} if change.view is not None else {}
        if isinstance(view, PodView) and view.key == (namespace, group):
            what = f"{view.phase} on {view.node or 'no node'}{', in deletion' if view.deleting else ''}"
            lines.append(f"{change.time:.3f} rev {change.revision} pod {view.name}: {what if change.view else 'gone'}")
        elif isinstance(view, GroupView) and view.key == (namespace, group):
            what = f"minimum {view.minimum}, {view.scheduled}{', in deletion' if view.deleting else ''}"
            lines.append(f"{change.time:.3f} rev {change.revision} PodGroup: {what if change.view else 'gone'}")
    return lines


# --- when it is quiet -------------------------------------------------------------------------------------


def world_of(kube: Kube) -> World:
    """The cluster as it is now."""
    world = World()
    for resource, view in VIEWS.items():
        for item in kube.list(resource):
            seen = view(item)
            world.apply(Change(int(item["metadata"]["resourceVersion"]), 0.0, resource, seen.uid, seen))
    return world


def could_start(world: World, namespaces: Iterable[str]) -> list[str]:
    """Groups and single pods of ours that wait although they fit."""
    wanted, found = set(namespaces), []
    for group in world.groups.values():
        waiting = world.waiting(group)
        if group.namespace not in wanted or group.deleting or not waiting:
            continue
        alive = sum(1 for p in world.counting(group) if p.node and p.phase != "Failed" and not p.deleting)
        missing = max(group.minimum - alive, 1)
        if len(waiting) >= missing and len({(p.need, p.selector) for p in waiting}) == 1:
            room = world.capacity(waiting[0])
            if room >= missing:
                found.append(f"group {group.name}: {len(waiting)} wait, {missing} are missing, {room} fit")
    for pod in world.pods.values():
        single = pod.namespace in wanted and not pod.group and pod.scheduler == SCHEDULER_NAME and not pod.job_uid
        if single and not (pod.node or pod.deleting or pod.ended or pod.gated) and world.capacity(pod):
            found.append(f"pod {pod.name} waits although it fits")
    return found


def left_over(world: World, namespaces: Iterable[str]) -> list[str]:
    """What must not be there when it is quiet: groups in deletion that nothing holds, nominations, waiting
    without a reason."""
    wanted, found = set(namespaces), []
    for group in world.groups.values():
        if group.namespace not in wanted:
            continue
        members = world.members.get(group.key, {}).values()
        if group.deleting and not any(p.node and not p.ended for p in members):
            found.append(f"PodGroup {group.name} is in deletion and nothing holds it")
        waiting = [p for p in world.waiting(group) if p.scheduler == SCHEDULER_NAME]
        if waiting and group.scheduled[0] != "True" and not any(c.isdigit() for c in group.scheduled[2]):
            found.append(f"PodGroup {group.name} waits without a reason with counts: {group.scheduled}")
    found += [f"pod {p.name} is nominated to {p.nominated}" for p in world.pods.values() if p.nominated]
    return found


def wrong_objects(kube: Kube, namespaces: Iterable[str]) -> list[str]:
    """What is not as it should be with the Workloads and PodGroups of Jobs: one of each for each of ours."""
    found: list[str] = []
    for namespace in namespaces:
        jobs = {job["metadata"]["uid"]: job for job in kube.list("jobs", namespace)}
        owned: dict[str, dict[str, list[Obj]]] = {uid: {"workloads": [], "podgroups": []} for uid in jobs}
        for resource in ("workloads", "podgroups"):
            for item in kube.list(resource, namespace):
                owner = _job_uid(item)
                if owner in owned:
                    owned[owner][resource].append(item)
        for uid, job in jobs.items():
            labels = job["spec"]["template"]["metadata"].get("labels", {})
            ours = labels.get("phalanx.dev/gang") == "job"
            over = any(c["type"] in ("Complete", "Failed") for c in job.get("status", {}).get("conditions") or ())
            if "deletionTimestamp" in job["metadata"] or over or job["spec"].get("suspend"):
                continue
            found += _wrong(job, owned[uid], ours)
    return found


def _wrong(job: Obj, owned: dict[str, list[Obj]], ours: bool) -> Iterator[str]:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    for resource, items in owned.items():
        live = [item for item in items if "deletionTimestamp" not in item["metadata"]]
        if len(live) != int(ours):
            yield f"Job {name}: {len(live)} {resource} of its own, not {int(ours)}"
        for item in live:
            if item["metadata"]["name"] != group_name(name, uid):
                yield f"Job {name}: its {resource} is called {item['metadata']['name']}"
            owners = [(o["kind"], o.get("controller", False)) for o in item["metadata"]["ownerReferences"]]
            wanted = [("Job", True)] + ([("Workload", False)] if resource == "podgroups" else [])
            if sorted(owners) != sorted(wanted):
                yield f"Job {name}: the owners of its {resource} are {owners}, not {wanted}"


def settle(look: Callable[[], World], namespaces: Sequence[str], timeout: float = 40) -> World:
    """Wait until nothing of ours that fits waits, and nothing is left over; the cluster then.

    :param look: gives the cluster as it is: ``watcher.world``, or a call of `world_of`
    """
    deadline = time.monotonic() + timeout
    while True:
        world = look()
        problems = could_start(world, namespaces) + left_over(world, namespaces)
        if not problems:
            return world
        assert time.monotonic() < deadline, f"after {timeout:g} s still: {problems}"
        time.sleep(0.25)


# --- audit log ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audited:
    """One request, as the API server logged it when it had answered."""

    user: str
    agent: str
    verb: str
    #: With the subresource: ``pods/binding``.
    resource: str
    namespace: str
    name: str
    code: int
    #: Seconds since the epoch: when it came, and when it was answered.
    received: float
    answered: float

    @property
    def account(self) -> str:
        return self.user.removeprefix(OUR_USERS)

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch")


class AuditLog:
    """Reads an API server's audit log."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def mark(self) -> int:
        """A position, for :meth:`since`: now."""
        return self._file.stat().st_size

    def since(self, mark: int = 0, user: str = "") -> list[Audited]:
        """All requests answered since, of users whose name begins so."""
        with self._file.open("rb") as file:
            file.seek(mark)
            lines = file.read().split(b"\n")[:-1]
        # Most lines are other people's: they are not even decoded.
        sign = user.encode()
        found = [_audited(json.loads(line)) for line in lines if sign in line]
        return [event for event in found if event.user.startswith(user)]

    def ours(self, mark: int = 0) -> list[Audited]:
        """All requests of our ServiceAccounts."""
        return self.since(mark, OUR_USERS)

    def our_writes(self, mark: int = 0) -> list[Audited]:
        """All writes of our ServiceAccounts."""
        return [event for event in self.ours(mark) if event.is_write]

    def binds(self, namespace: str, mark: int = 0) -> list[Audited]:
        """Accepted binds of our scheduler in a namespace, by time."""
        found = [e for e in self.our_writes(mark) if e.resource == "pods/binding" and e.code == 201]
        return sorted((e for e in found if e.namespace == namespace), key=lambda e: e.answered)

    def not_ours_to_write(self, mark: int = 0) -> list[Audited]:
        """Writes of our ServiceAccounts to anything else than what they are for."""
        return [
            e
            for e in self.our_writes(mark)
            if (e.account, e.verb, e.resource) not in ALLOWED_WRITES
            or (e.resource == "jobs" and e.namespace != "phalanx-system")
        ]


def _audited(event: Obj) -> Audited:
    ref = event.get("objectRef") or {}
    resource = "/".join(part for part in (ref.get("resource", ""), ref.get("subresource", "")) if part)
    return Audited(
        user=event["user"]["username"],
        agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource=resource,
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        received=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        answered=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )
