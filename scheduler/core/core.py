"""The scheduler's state machine: events in, one decision a cycle out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

from api import names
from api.eligibility import Misconfigured, decide, minimum_now
from api.membership import GroupKey, Unknown, group_of, name_taken, owning_job
from api.model import PodGroup
from api.wire import Job, Pod
from scheduler.core import attempt, events, messages
from scheduler.core.capacity import Need
from scheduler.core.instructions import Decision
from scheduler.core.queue import EntityId, Order, Queue
from scheduler.core.state import UNPLACED, GroupInfo, PodInfo, PodState, State

K = TypeVar("K", bound=Hashable)

#: Seconds a group may lack its PodGroup or members before its pods are told what they wait for.
INCOMPLETE_AFTER = 5.0
#: Failed binds in a row after which an entity is told: one is repeated in a second, and mostly succeeds.
BIND_FAILURES_TOLD = 2
#: Seconds for which room is kept for a group that was bound in part and cannot be completed; after that it is still
#: tried first, but what it cannot use is everybody's. (Its first member may have been pinned by its user.)
HOLD = 300.0
#: Seconds after which an accepted bind that the watch never showed is believed no more, and tried again.
CONFIRM_WITHIN = 60.0
#: Seconds after which a group is tried again that freed room is too little for: its reasons may be others by now.
REFRESH = 60.0


class Core:
    """Feed with `handle`, then call `cycle` until it returns None; `next_time` says when to call again.

    Times are seconds of one monotonic clock, given by the caller.
    """

    def __init__(self, scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME})) -> None:
        self.scheduler_names = scheduler_names
        self.state = State()
        self.queue = Queue()
        self._jobs: dict[str, Job] = {}
        #: Groups that something happened to since they were last considered.
        self._dirty: dict[GroupKey, None] = {}
        #: Pods whose group is not decided, by the uid of the Job that decides it.
        self._undecided: dict[str, set[str]] = {}
        #: Groups whose minimum was just reached, to be told so.
        self._reached: dict[GroupKey, None] = {}
        #: Groups that lack their PodGroup or members, oldest first, with the time since (None: since this cycle).
        self._incomplete: dict[GroupKey, float | None] = {}
        #: Entities with a failed bind and its message, to be tried again after a back-off.
        self._bind_failed: dict[EntityId, str] = {}
        #: Those whose binds keep failing, to be told so.
        self._bind_trouble: dict[EntityId, str] = {}
        #: Accepted binds that the watch has not confirmed, oldest first, with the time since (as above).
        self._unconfirmed: dict[str, float | None] = {}
        #: Groups bound in part that room is kept for, oldest first, with the time since (as above).
        self._holding: dict[GroupKey, float | None] = {}
        #: When those are tried again that room was freed for in vain; None where there are none.
        self._refresh_at: float | None = None

    # ---- events

    def handle(self, event: events.Event) -> None:
        """Update the state with one fact. Cheap: what it means for a group is left to the next `cycle`."""
        match event:
            case events.PodSet(pod):
                self._pod_set(pod)
            case events.PodGone(uid):
                self._pod_gone(uid)
            case events.BindDone(uid):
                self._bind_done(uid)
            case events.BindFailed(uid, message):
                self._bind_failure(uid, message)
            case events.NodeSet(node):
                self.state.nodes.set(node)
            case events.NodeGone(name):
                self._node_gone(name)
            case events.GroupSet(group):
                self._group_set(group)
            case events.GroupGone(key):
                self._group_gone(key)
            case events.JobSet(job):
                self._job_set(job)
            case events.JobGone(uid):
                self._job_gone(uid)

    def _pod_set(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        info = self.state.pods.get(uid)
        changed = False
        if info is None:
            info = self.state.add(pod)
        elif info.pod.spec != pod.spec:
            changed = self.state.resign(info, pod)
        info.pod = pod
        if not info.latched:
            changed |= self._decide_group(info)
        before = info.state
        self._move(info, self._state_of(info), pod.spec.node_name or info.node)
        if info.state is PodState.BOUND and before in (PodState.ASSUMED, PodState.ACCEPTED):
            self._confirmed(info)
        if changed:
            self._touched(info)

    def _state_of(self, info: PodInfo) -> PodState:
        pod = info.pod
        deleting = pod.metadata.deletion_timestamp is not None
        if pod.terminal:
            succeeded = pod.status.phase == "Succeeded" and bool(pod.spec.node_name)
            return PodState.SUCCEEDED if succeeded else PodState.OUT
        if pod.spec.node_name:
            return PodState.LEAVING if deleting else PodState.BOUND
        if deleting or pod.spec.scheduler_name not in self.scheduler_names:
            return PodState.OUT
        # An update that does not show our bind yet is older than the bind.
        if info.state in (PodState.ASSUMED, PodState.ACCEPTED):
            return info.state
        if pod.spec.scheduling_gates or not info.latched or self._name_taken(info):
            return PodState.HELD
        return PodState.RESERVED if info.state is PodState.RESERVED else PodState.PENDING

    def _name_taken(self, info: PodInfo) -> bool:
        group = self.state.groups.get(info.group) if info.group is not None else None
        return group is not None and group.podgroup is not None and name_taken(info.pod, group.podgroup)

    def _decide_group(self, info: PodInfo) -> bool:
        """Latch the pod's group if it can be told. Returns whether it was."""
        self._stop_waiting_for_job(info)
        owner = owning_job(info.pod)
        job = self._jobs.get(owner.uid) if owner is not None else None
        group = group_of(info.pod, job, self.scheduler_names)
        if isinstance(group, Unknown):
            info.waits_for_job = group.job.uid
            self._undecided.setdefault(group.job.uid, set()).add(info.uid)
            return False
        self.state.join(info, group)
        return True

    def _stop_waiting_for_job(self, info: PodInfo) -> None:
        waiting = self._undecided.get(info.waits_for_job)
        if waiting is not None:
            waiting.discard(info.uid)
            if not waiting:
                del self._undecided[info.waits_for_job]
        info.waits_for_job = ""

    def _pod_gone(self, uid: str) -> None:
        info = self.state.pods.get(uid)
        if info is None:
            return
        self._move(info, PodState.OUT)
        self._stop_waiting_for_job(info)
        self._unconfirmed.pop(uid, None)
        self.state.forget(info)
        self.queue.forget(uid)
        if info.group is not None:
            self._group_touched(info.group)

    def _bind_done(self, uid: str) -> None:
        info = self.state.pods.get(uid)
        # The watch may have been faster: then the pod is bound already.
        if info is not None and info.state is PodState.ASSUMED:
            self._move(info, PodState.ACCEPTED, info.node)
            self._unconfirmed[uid] = None
            self.queue.succeeded(_entity(info))

    def _confirmed(self, info: PodInfo) -> None:
        self._unconfirmed.pop(info.uid, None)
        self.queue.succeeded(_entity(info))

    def _bind_failure(self, uid: str, message: str) -> None:
        info = self.state.pods.get(uid)
        if info is None or info.state is not PodState.ASSUMED:
            return
        self._bind_failed[_entity(info)] = message
        group = self.state.groups[info.group] if info.group is not None else None
        # A group that already runs below its minimum keeps the room: it is completed before others are started.
        keep = group is not None and uid in group.members[PodState.ASSUMED] and 0 < group.placed - 1 < group.minimum
        self._move(info, PodState.RESERVED if keep else PodState.PENDING, info.node)

    def _node_gone(self, name: str) -> None:
        self.state.nodes.remove(name)
        # Room kept on a node that is gone is no room. Binds under way fail, or end with the pod's deletion.
        for info in [i for i in self.state.pods.values() if i.state is PodState.RESERVED and i.node == name]:
            self._move(info, PodState.PENDING)

    def _group_set(self, podgroup: PodGroup) -> None:
        key = GroupKey(podgroup.metadata.namespace, podgroup.metadata.name)
        group = self.state.group(key)
        before, group.podgroup = group.podgroup, podgroup
        if before is None or before.metadata.uid != podgroup.metadata.uid:
            group.told, group.ever_reached = None, False
        elif (before.spec, before.job_uid, before.metadata.deletion_timestamp) == (
            podgroup.spec,
            podgroup.job_uid,
            podgroup.metadata.deletion_timestamp,
        ):
            return  # only its status changed
        self._regroup(group)

    def _group_gone(self, key: GroupKey) -> None:
        group = self.state.groups.get(key)
        if group is None:
            return
        group.podgroup, group.told, group.ever_reached = None, None, False
        self.queue.forget(key)
        self._regroup(group)
        self.state.drop_if_empty(key)
        self._group_touched(key)

    def _compare_with_job(self, group: GroupInfo) -> bool:
        """Note what the Job of a group which the controllers made asks for. Returns whether that changed."""
        job = self._jobs.get((group.podgroup.job_uid if group.podgroup is not None else None) or "")
        before = (group.job_minimum, group.job_parallelism)
        group.job_minimum, group.job_parallelism = 0, 0
        if job is not None and group.key.name == names.group_name(job.metadata.name, job.metadata.uid):
            group.job_minimum = minimum_now(job, self.scheduler_names)
            group.job_parallelism = job.spec.parallelism
        return (group.job_minimum, group.job_parallelism) != before

    def _regroup(self, group: GroupInfo) -> None:
        """The PodGroup came, went, or became another: judge its pods by it anew."""
        self._compare_with_job(group)
        self.state.refile(group)
        for info in list(group.all_pods()):
            if info.state in (PodState.HELD, *UNPLACED):
                self._move(info, self._state_of(info), info.node)
        self._group_touched(group.key)

    def _job_set(self, job: Job) -> None:
        self._jobs[job.metadata.uid] = job
        self._compare_group(job)
        for uid in list(self._undecided.get(job.metadata.uid, ())):
            info = self.state.pods[uid]
            self._decide_group(info)
            self._move(info, self._state_of(info), info.node)
            self._touched(info)

    def _job_gone(self, uid: str) -> None:
        job = self._jobs.pop(uid, None)
        if job is not None:
            self._compare_group(job)

    def _compare_group(self, job: Job) -> None:
        key = GroupKey(job.metadata.namespace, names.group_name(job.metadata.name, job.metadata.uid))
        group = self.state.groups.get(key)
        if group is not None and (self._compare_with_job(group) or job.finished):
            self._group_touched(key)

    def _move(self, info: PodInfo, state: PodState, node: str = "") -> None:
        """Move a pod, and queue what that concerns."""
        before = info.state
        self.state.move(info, state, node)
        if state is not before:
            self._touched(info)

    def _touched(self, info: PodInfo) -> None:
        """Queue what a changed pod concerns: its group, or the pod where it is scheduled alone."""
        if info.group is not None:
            self._group_touched(info.group)
        elif info.state is PodState.PENDING:
            self.queue.activate(info.uid, order_of_pod(info))
        else:
            self.queue.discard(info.uid)

    def _group_touched(self, key: GroupKey) -> None:
        """Have the group considered, later; of one that nothing refers to any more keep nothing.

        The latter at once: a core that only listens, while another replica leads, never cycles.
        """
        if key in self.state.groups:
            self._dirty[key] = None
        else:
            self.queue.forget(key)
            self._dirty.pop(key, None)
            self._reconsider(key, None)

    def flush(self) -> None:
        """Consider the groups that something happened to: once each, however much it was."""
        while self._dirty:
            key, _ = self._dirty.popitem()
            self._reconsider(key, self.state.groups.get(key))

    def _reconsider(self, key: GroupKey, group: GroupInfo | None) -> None:
        """Queue the group if it can be tried; note what it lacks if it cannot."""
        complete = group is not None and group.complete
        begun = group is not None and group.begun
        if not (complete and begun):
            # Room is kept only for a group that was bound in part and can be completed.
            self._holding.pop(key, None)
            if group is not None:
                for info in list(group.members[PodState.RESERVED].values()):
                    self.state.move(info, PodState.PENDING)
                group.hold_over &= begun
        if group is not None and complete and group.wants:
            self.queue.activate(key, group.order())
        else:
            self.queue.discard(key)
        if group is not None and (group.robbed or (not complete and group.to_tell)):
            self._incomplete.setdefault(key, None)
        else:
            self._incomplete.pop(key, None)
        if group is not None and group.reached and not group.told_reached:
            self._reached[key] = None
        else:
            self._reached.pop(key, None)  # told by another replica, or gone: nothing piles up while this one waits

    # ---- decisions

    def next_time(self) -> float | None:
        """When `cycle` has something to do: -inf for now, None for not before another event."""
        self.flush()
        if (
            self._bind_failed
            or self._bind_trouble
            or self._reached
            or self.state.nodes.freed
            or self.state.nodes.renewed
        ):
            return -math.inf
        times = [
            _due(self._incomplete, INCOMPLETE_AFTER),
            _due(self._unconfirmed, CONFIRM_WITHIN),
            _due(self._holding, HOLD),
            self._refresh_at,
            self.queue.next_time(),
        ]
        return min((time for time in times if time is not None), default=None)

    def cycle(self, now: float) -> Decision | None:
        """Decide one entity on the state as it is, assume what it places, and return what to do about it."""
        self._settle(now)
        return self._tell_reached() or self._tell_bind_trouble() or self._tell_incomplete(now) or self._try_next(now)

    def _settle(self, now: float) -> None:
        """Give what events left behind its place, also in time."""
        self.flush()
        _date(self._unconfirmed, now)
        while (uid := _pop_due(self._unconfirmed, CONFIRM_WITHIN, now)) is not None:
            # A second bind is refused if the first one stands, and its pod is then read.
            if self.state.pods[uid].state is PodState.ACCEPTED:
                self._move(self.state.pods[uid], PodState.PENDING)
        _date(self._holding, now)
        while (key := _pop_due(self._holding, HOLD, now)) is not None:
            self.state.groups[key].hold_over = True
            for info in list(self.state.groups[key].members[PodState.RESERVED].values()):
                self._move(info, PodState.PENDING)
        self.flush()
        _date(self._incomplete, now)
        for entity, message in self._bind_failed.items():
            failures = self.queue.fail(entity, now)
            order = self._order_of(entity)
            if order is not None:
                self.queue.retry(entity, order)
                if failures >= BIND_FAILURES_TOLD:
                    self._bind_trouble[entity] = message
        self._bind_failed.clear()
        self._wake(now)

    def _wake(self, now: float) -> None:
        """Have tried again what may fit now; at times also what does not, as its reasons may be others by now."""
        nodes = self.state.nodes
        due = self._refresh_at is not None and self._refresh_at <= now
        if nodes.renewed or due:
            self.queue.wake(lambda _: True)
            self._refresh_at = None
        elif nodes.freed and self.queue.wake(self._may_help) and self._refresh_at is None:
            self._refresh_at = now + REFRESH
        nodes.renewed = nodes.freed = False

    def _may_help(self, need: Need | None) -> bool:
        return need is None or self.state.capacities.may_hold(need)

    def _order_of(self, entity: EntityId) -> Order | None:
        """The entity's place in the queue; None where it has nothing to try."""
        if isinstance(entity, GroupKey):
            group = self.state.groups.get(entity)
            return group.order() if group is not None and group.wants and group.complete else None
        info = self.state.pods.get(entity)
        return order_of_pod(info) if info is not None and info.state is PodState.PENDING else None

    def _tell_reached(self) -> Decision | None:
        while self._reached:
            key, _ = self._reached.popitem()
            group = self.state.groups.get(key)
            if group is not None and group.reached and not group.told_reached and self._ours(group):
                return attempt.tell_reached(group)
        return None

    def _tell_bind_trouble(self) -> Decision | None:
        while self._bind_trouble:
            entity, message = self._bind_trouble.popitem()
            if self._order_of(entity) is not None:
                if isinstance(entity, GroupKey):
                    return attempt.tell_bind_trouble(self.state.groups[entity], message)
                return attempt.tell_pod_bind_trouble(self.state.pods[entity], message)
        return None

    def _tell_incomplete(self, now: float) -> Decision | None:
        # What was told comes back when something about the group changes.
        while (key := _pop_due(self._incomplete, INCOMPLETE_AFTER, now)) is not None:
            group = self.state.groups[key]
            told = group.told is not None or self._ours(group)
            decision = attempt.tell_incomplete(group, self._job_says(group)) if told else None
            if decision is not None:
                return decision
        return None

    def _job_says(self, group: GroupInfo) -> str | None:
        """Say why nothing comes of the group because of its Job: that is over, or it says something impossible.

        The Event about the latter may have expired by now.
        """
        owner = self._jobs.get(group.podgroup.job_uid or "") if group.podgroup is not None else None
        if owner is not None and owner.finished:
            return messages.job_is_over(owner)
        owners = (owning_job(info.pod) for info in group.all_pods()) if group.podgroup is None else ()
        job = next((self._jobs[owner.uid] for owner in owners if owner is not None and owner.uid in self._jobs), None)
        verdict = decide(job, self.scheduler_names) if job is not None else None
        return f"Job {job.metadata.name}: {verdict.message}" if job and isinstance(verdict, Misconfigured) else None

    def _ours(self, group: GroupInfo) -> bool:
        """Whether any pod of it is ours: of other schedulers' groups nothing is said."""
        return any(info.pod.spec.scheduler_name in self.scheduler_names for info in group.all_pods())

    def _try_next(self, now: float) -> Decision | None:
        entity = self.queue.pop(now)
        if entity is None:
            return None
        # Room that an attempt gives back and takes again has not changed for anybody else.
        nodes = self.state.nodes
        used = nodes.used.copy() if isinstance(entity, GroupKey) and self.state.groups[entity].below_minimum else None
        if isinstance(entity, GroupKey):
            group = self.state.groups[entity]
            decision, done, robbed = attempt.try_group(self.state, group)
            for other in robbed:
                self._group_touched(other)
            if group.members[PodState.RESERVED]:
                self._holding.setdefault(entity, now)
        else:
            decision, done = attempt.try_pod(self.state, self.state.pods[entity])
        nodes.freed = used is not None and bool((nodes.used[: len(used), : used.shape[1]] < used).any())
        order = self._order_of(entity)
        if not done and order is not None:
            self.queue.fail(entity, now)
            self.queue.wait(entity, order, self._need_of(entity) if decision.verdict != "error" else None)
        return decision

    def _need_of(self, entity: EntityId) -> Need | None:
        """The room without which another attempt is in vain; None where any room helps."""
        if not isinstance(entity, GroupKey):
            return Need(1, ((self.state.pods[entity].signature, 1),))
        group = self.state.groups[entity]
        if group.begun:
            return None  # it keeps what it finds
        asks = Counter(
            info.signature for info in group.wanting() + (group.wanting(extras=True) if not group.missing else [])
        )
        return Need(max(group.missing, 1), tuple(asks.items()))


def _entity(info: PodInfo) -> EntityId:
    return info.group if info.group is not None else info.uid


def _date(waiting: dict[K, float | None], now: float) -> None:
    """Give what was added since the last cycle its time; it is at the end."""
    for key in reversed(waiting):
        if waiting[key] is not None:
            break
        waiting[key] = now


def _due(waiting: dict[K, float | None], seconds: float) -> float | None:
    """When the oldest is due; -inf where it has no time yet."""
    if not waiting:
        return None
    since = next(iter(waiting.values()))
    return -math.inf if since is None else since + seconds


def _pop_due(waiting: dict[K, float | None], seconds: float, now: float) -> K | None:
    """Take out the oldest if it is due."""
    due = _due(waiting, seconds)
    if due is None or due > now:
        return None
    key = next(iter(waiting))
    del waiting[key]
    return key


def order_of_pod(info: PodInfo) -> Order:
    """Priority, then age."""
    metadata = info.pod.metadata
    return (1, -info.pod.spec.priority, metadata.creation_timestamp or "", info.key)
