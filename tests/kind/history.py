"""What happened in a cluster, seen from outside: every change of pods, PodGroups and nodes, in order.

Resource versions are revisions of one store, so the records of the three watches sort into what really happened.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from api.quantity import parse
from tests.kind.kube import Kube, KubeError, Obj, condition, path, until


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


def job_uid(obj: Obj) -> str:
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
        job_uid=job_uid(obj),
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
        job_uid=job_uid(obj),
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

    def capacity(self, pod: PodView, taken: dict[str, Room] | None = None, usable: Container[str] = frozenset()) -> int:
        """How many pods like this fit now.

        :param taken: what else is spoken for, by node
        :param usable: names of nodes that count as usable, whatever they are now
        """
        total = 0
        for node in self.nodes.values():
            if (node.usable or node.name in usable) and node.labels.issuperset(pod.selector):
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
