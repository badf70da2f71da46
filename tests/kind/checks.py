"""Outside checkers: they know the API server only, its objects, its watches and its audit log.

:func:`replay` goes through a history that a :class:`~tests.kind.history.Watcher` recorded and checks it at every
instant; the others look at a cluster that is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from api.names import SCHEDULER_NAME, group_name
from tests.kind.audit import AuditLog
from tests.kind.history import (
    VIEWS,
    Change,
    GroupView,
    NodeView,
    PodView,
    Room,
    View,
    Watcher,
    World,
    job_uid,
    view_pod,
)
from tests.kind.kube import Kube, Obj

__all__ = [
    "AuditLog",
    "PodView",
    "Report",
    "Watcher",
    "could_start",
    "left_over",
    "replay",
    "settle",
    "timeline",
    "view_pod",
    "world_of",
    "wrong_objects",
]

#: Longest time in seconds for which a group may run with fewer members than its minimum.
PARTIAL_SECONDS = 30.0
#: Seconds by which a decision may be older than the bind that it led to.
LAG = 3.0


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
        # Nodes and pods come by watches of their own: that of a node may be behind, as seen from the other.
        usable: set[str] = set()
        self._recently(index, lambda world: usable.update(n.name for n in world.nodes.values() if n.usable))

        def fits(world: World) -> bool:
            known = world.groups.get(group.key)
            if known is None or known.uid != group.uid:
                return False
            members = [p for p in world.counting(known) if not p.deleting and p.phase != "Failed"]
            alike = len({(p.need, p.selector) for p in members}) <= 1
            enough = len(members) >= known.minimum
            return enough and (not alike or world.capacity(pod, committed, usable) >= known.minimum)

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

    def _recently(self, index: int, holds: Callable[[World], object]) -> bool:
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
        if uid not in self.partial or self.lost.get(uid, (0.0, ""))[0] < self.partial[uid] - LAG:
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


def timeline(changes: Iterable[Change], namespace: str, group: str = "") -> list[str]:
    """What happened to a group and its members, or to all pods and groups of a namespace and its nodes, for people."""
    lines: list[str] = []
    known: dict[str, View] = {}
    for change in changes:
        view = change.view or known.get(change.uid)
        known |= {change.uid: change.view} if change.view is not None else {}
        if isinstance(view, NodeView):
            about = not group and namespace in view.name
            what = f"node {view.name}: {view.allocatable}{'' if view.usable else ', takes no pods'}"
        elif isinstance(view, PodView):
            about = view.namespace == namespace and group in ("", view.group)
            leaving = ", in deletion" if view.deleting else ""
            what = f"pod {view.name} of {view.need}: {view.phase} on {view.node or 'no node'}{leaving}"
        elif view is not None:
            about = view.namespace == namespace and group in ("", view.name)
            what = f"PodGroup {view.name}: minimum {view.minimum}, {view.scheduled}"
            what += ", in deletion" if view.deleting else ""
        else:
            continue
        if about:
            lines.append(f"{change.time:.3f} rev {change.revision} {what}{'' if change.view else ': gone'}")
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
                owner = job_uid(item)
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
