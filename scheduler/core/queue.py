"""Which entity is tried next. An entity is a group's key or the uid of a pod that is scheduled alone.

An entity is in exactly one place: active (tried in order), backing off until a time, waiting for a change that
can help it, or nowhere (it is not complete, or has nothing left to schedule). A change in the cluster wakes what
waits, but nothing is tried again before its back-off ends: a group that does not fit blocks nobody.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

from api.membership import GroupKey

EntityId = GroupKey | str

#: Seconds; doubled with each failed attempt up to the cap (upstream's defaults).
INITIAL_BACKOFF = 1.0
MAX_BACKOFF = 10.0

#: Smaller is tried earlier: (0 for a group below its minimum that already runs, -priority, creation time, name).
Order = tuple[int, int, str, str]

Where = Literal["active", "backoff", "waiting"]


@dataclass(slots=True)
class Entry:
    """An entity's place in the queue."""

    order: Order
    where: Where
    backoff_until: float = 0.0
    #: Identifies the entry's newest heap item; older items are dead.
    ticket: int = 0


class Queue:
    """Active heap, back-off heap and waiting set."""

    def __init__(self) -> None:
        self.entries: dict[EntityId, Entry] = {}
        self._active: list[tuple[Order, int, EntityId]] = []
        self._backoff: list[tuple[float, int, EntityId]] = []
        self._waiting: dict[EntityId, None] = {}
        #: Failed attempts since the last success; outlives an entry, since a bind may fail after a placement.
        self._attempts: dict[EntityId, int] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, entity: EntityId) -> bool:
        return entity in self.entries

    def activate(self, entity: EntityId, order: Order) -> None:
        """Put the entity where it is tried as soon as its back-off allows."""
        entry = self.entries.get(entity)
        if entry is None:
            entry = self.entries[entity] = Entry(order, "active")
        elif entry.where == "active" and entry.order == order:
            return
        entry.order = order
        self._place(entity, entry, _due(entry))

    def failed(self, entity: EntityId, order: Order, now: float, *, retry: bool = False) -> int:
        """Record a failed attempt: wait for a change that helps, or with ``retry`` only for the back-off.

        Returns how many attempts have failed since the last success.
        """
        entry = self.entries.setdefault(entity, Entry(order, "waiting"))
        attempts = self._attempts.get(entity, 0)
        delay = min(INITIAL_BACKOFF * 2.0 ** min(attempts, 10), MAX_BACKOFF)
        self._attempts[entity] = attempts + 1
        entry.order = order
        entry.backoff_until = now + delay
        self._place(entity, entry, "backoff" if retry else "waiting")
        return attempts + 1

    def discard(self, entity: EntityId) -> None:
        """Take the entity out: it was placed, or it is incomplete."""
        self.entries.pop(entity, None)
        self._waiting.pop(entity, None)

    def reset_attempts(self, entity: EntityId) -> None:
        """Start its back-off anew: it was bound."""
        self._attempts.pop(entity, None)

    def forget(self, entity: EntityId) -> None:
        """Drop everything about an entity that is gone."""
        self.discard(entity)
        self.reset_attempts(entity)

    def wake_all(self) -> None:
        """Something changed that can help what waits: room was freed, or a node came or changed."""
        for entity in list(self._waiting):
            entry = self.entries[entity]
            self._place(entity, entry, _due(entry))

    def pop(self, now: float) -> EntityId | None:
        """Return the next entity to try; it stays out of every heap until it is activated or has failed."""
        self._end_backoffs(now)
        while self._active:
            order, ticket, entity = heapq.heappop(self._active)
            entry = self.entries.get(entity)
            if entry is not None and entry.ticket == ticket and entry.order == order:
                entry.ticket = -1
                return entity
        return None

    def next_time(self) -> float | None:
        """When the next back-off ends; -inf when something is active now, None when nothing will become active."""
        while self._backoff and not self._live(self._backoff[0][2], self._backoff[0][1]):
            heapq.heappop(self._backoff)
        while self._active and not self._live(self._active[0][2], self._active[0][1]):
            heapq.heappop(self._active)
        if self._active:
            return float("-inf")
        return self._backoff[0][0] if self._backoff else None

    def _live(self, entity: EntityId, ticket: int) -> bool:
        entry = self.entries.get(entity)
        return entry is not None and entry.ticket == ticket

    def _end_backoffs(self, now: float) -> None:
        while self._backoff and self._backoff[0][0] <= now:
            _, ticket, entity = heapq.heappop(self._backoff)
            if self._live(entity, ticket):
                entry = self.entries[entity]
                entry.backoff_until = 0.0
                self._place(entity, entry, "active")

    def _place(self, entity: EntityId, entry: Entry, where: Where) -> None:
        self._tickets += 1
        entry.ticket = self._tickets
        entry.where = where
        if where == "waiting":
            self._waiting[entity] = None
            return
        self._waiting.pop(entity, None)
        if where == "active":
            heapq.heappush(self._active, (entry.order, entry.ticket, entity))
        else:
            heapq.heappush(self._backoff, (entry.backoff_until, entry.ticket, entity))


def _due(entry: Entry) -> Where:
    """Where an entry goes that a change may help: through its back-off, but for groups that run below their minimum.

    Those get new room before anything else may take it. A failed bind of theirs still waits: its room is reserved.
    """
    if entry.where == "waiting" and entry.order[0] == 0:
        return "active"
    return "backoff" if entry.backoff_until > 0.0 else "active"
