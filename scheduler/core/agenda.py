"""What is to be done, by now or by a time: whom events concern, what is queued, told, kept, or believed for so long."""

from __future__ import annotations

import math
from collections import Counter

from api.membership import GroupKey
from scheduler.core.ages import Ages
from scheduler.core.capacity import Need
from scheduler.core.queue import EntityId, Order, Queue
from scheduler.core.state import GroupInfo, PodInfo, PodState, State

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


class Agenda:
    """Cheap to tell; what it means for a group is found out once a cycle, however much happened to it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.queue = Queue()
        #: Groups that something happened to since they were last considered.
        self._dirty: dict[GroupKey, None] = {}
        #: Groups whose minimum was just reached, to be told so.
        self._reached: dict[GroupKey, None] = {}
        #: Groups that lack their PodGroup or members.
        self._incomplete = Ages[GroupKey](INCOMPLETE_AFTER)
        #: Entities with a failed bind and its message, to be tried again after a back-off.
        self._bind_failed: dict[EntityId, str] = {}
        #: Those whose binds keep failing, to be told so.
        self._bind_trouble: dict[EntityId, str] = {}
        #: Pods whose accepted bind the watch has not confirmed.
        self._unconfirmed = Ages[str](CONFIRM_WITHIN)
        #: Groups bound in part that room is kept for.
        self._holding = Ages[GroupKey](HOLD)
        #: When those are tried again that room was freed for in vain; None where there are none.
        self._refresh_at: float | None = None

    # ---- what happened

    def move(self, info: PodInfo, state: PodState, node: str = "") -> None:
        """Move a pod, and queue what that concerns."""
        before = info.state
        self._state.move(info, state, node)
        if state is not before:
            self.touched(info)

    def touched(self, info: PodInfo) -> None:
        """Queue what a changed pod concerns: its group, or the pod where it is scheduled alone."""
        if info.group is not None:
            self.group_touched(info.group)
        elif info.state is PodState.PENDING:
            self.queue.activate(info.uid, info.order())
        else:
            self.queue.discard(info.uid)

    def group_touched(self, key: GroupKey) -> None:
        """Have the group considered, later; of one that nothing refers to any more keep nothing.

        The latter at once: a core that only listens, while another replica leads, never cycles.
        """
        if key in self._state.groups:
            self._dirty[key] = None
        else:
            self.queue.forget(key)
            self._dirty.pop(key, None)
            self._reconsider(key, None)

    def forget_pod(self, uid: str) -> None:
        """Drop everything about a pod that is gone."""
        self._unconfirmed.discard(uid)
        self.queue.forget(uid)

    def accepted(self, info: PodInfo) -> None:
        """Note that the API server accepted the pod's bind."""
        self._unconfirmed.add(info.uid)
        self.queue.succeeded(info.entity)

    def confirmed(self, info: PodInfo) -> None:
        """Note that the watch showed the pod bound."""
        self._unconfirmed.discard(info.uid)
        self.queue.succeeded(info.entity)

    def bind_failed(self, info: PodInfo, message: str) -> None:
        """Note that the pod's bind was not carried out."""
        self._bind_failed[info.entity] = message

    def keep(self, key: GroupKey, now: float) -> None:
        """Note that room is kept for a group since now, if not before."""
        self._holding.add(key, now)

    def gave_up(self, entity: EntityId, now: float, *, any_change_helps: bool) -> None:
        """Have an entity wait that was tried in vain, if it still has something to try."""
        order = self._order_of(entity)
        if order is not None:
            self.queue.fail(entity, now)
            self.queue.wait(entity, order, None if any_change_helps else self._need_of(entity))

    # ---- what follows

    def flush(self) -> None:
        """Consider the groups that something happened to: once each, however much it was."""
        while self._dirty:
            key, _ = self._dirty.popitem()
            self._reconsider(key, self._state.groups.get(key))

    def _reconsider(self, key: GroupKey, group: GroupInfo | None) -> None:
        """Queue the group if it can be tried; note what it lacks if it cannot."""
        complete = group is not None and group.complete
        begun = group is not None and group.begun
        if not (complete and begun):
            # Room is kept only for a group that was bound in part and can be completed.
            self._holding.discard(key)
            if group is not None:
                for info in list(group.members[PodState.RESERVED].values()):
                    self._state.move(info, PodState.PENDING)
                group.hold_over &= begun
        if group is not None and complete and group.wants:
            self.queue.activate(key, group.order())
        else:
            self.queue.discard(key)
        if group is not None and (group.robbed or (not complete and group.to_tell)):
            self._incomplete.add(key)
        else:
            self._incomplete.discard(key)
        if group is not None and group.reached and not group.told_reached:
            self._reached[key] = None
        else:
            self._reached.pop(key, None)  # told by another replica, or gone: nothing piles up while this one waits

    def next_time(self) -> float | None:
        """When `cycle` has something to do: -inf for now, None for not before another event."""
        self.flush()
        if (
            self._bind_failed
            or self._bind_trouble
            or self._reached
            or self._state.nodes.freed
            or self._state.nodes.renewed
        ):
            return -math.inf
        times = [
            self._incomplete.due(),
            self._unconfirmed.due(),
            self._holding.due(),
            self._refresh_at,
            self.queue.next_time(),
        ]
        return min((time for time in times if time is not None), default=None)

    def settle(self, now: float) -> None:
        """Give what events left behind its place, also in time."""
        self.flush()
        while (uid := self._unconfirmed.pop(now)) is not None:
            # A second bind is refused if the first one stands, and its pod is then read.
            if self._state.pods[uid].state is PodState.ACCEPTED:
                self.move(self._state.pods[uid], PodState.PENDING)
        while (key := self._holding.pop(now)) is not None:
            self._state.groups[key].hold_over = True
            for info in list(self._state.groups[key].members[PodState.RESERVED].values()):
                self.move(info, PodState.PENDING)
        self.flush()
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
        nodes = self._state.nodes
        due = self._refresh_at is not None and self._refresh_at <= now
        if nodes.renewed or due:
            self.queue.wake(lambda _: True)
            self._refresh_at = None
        elif nodes.freed and self.queue.wake(self._may_help) and self._refresh_at is None:
            self._refresh_at = now + REFRESH
        nodes.renewed = nodes.freed = False

    def _may_help(self, need: Need | None) -> bool:
        return need is None or self._state.capacities.may_hold(need)

    def _order_of(self, entity: EntityId) -> Order | None:
        """The entity's place in the queue; None where it has nothing to try."""
        if isinstance(entity, GroupKey):
            group = self._state.groups.get(entity)
            return group.order() if group is not None and group.wants and group.complete else None
        info = self._state.pods.get(entity)
        return info.order() if info is not None and info.state is PodState.PENDING else None

    def pop_reached(self) -> GroupInfo | None:
        """Take out a group that is to be told that it reached its minimum."""
        while self._reached:
            key, _ = self._reached.popitem()
            group = self._state.groups.get(key)
            if group is not None and group.reached and not group.told_reached:
                return group
        return None

    def pop_bind_trouble(self) -> tuple[EntityId, str] | None:
        """Take out an entity that is to be told that its binds keep failing, with the reason."""
        while self._bind_trouble:
            entity, message = self._bind_trouble.popitem()
            if self._order_of(entity) is not None:
                return entity, message
        return None

    def pop_incomplete(self, now: float) -> GroupInfo | None:
        """Take out a group that has lacked something for long; it comes back when something about it changes."""
        key = self._incomplete.pop(now)
        return self._state.groups[key] if key is not None else None

    def _need_of(self, entity: EntityId) -> Need | None:
        """The room without which another attempt is in vain; None where any room helps."""
        if not isinstance(entity, GroupKey):
            return Need(1, ((self._state.pods[entity].signature, 1),))
        group = self._state.groups[entity]
        if group.begun:
            return None  # it keeps what it finds
        asks = Counter(
            info.signature for info in group.wanting() + (group.wanting(extras=True) if not group.missing else [])
        )
        return Need(max(group.missing, 1), tuple(asks.items()))
