"""Which entity is tried next. An entity is a group's key or the uid of a pod that is scheduled alone.

An entity is in exactly one place: active (tried in order), backing off until a time, waiting for a change that can
help it, or nowhere (it is not complete, or has nothing left to schedule). A change in the cluster wakes what waits,
but nothing is tried again before its back-off ends: a group that does not fit blocks nobody. Only groups that run
below their minimum skip it when room changes: they get new room before anything else may.

Failures are kept apart from places: a bind may fail after its entity was placed and left the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from api.membership import GroupKey
from scheduler.core.capacity import Need

EntityId = GroupKey | str

#: Seconds; doubled with each failed attempt up to the cap (upstream's defaults).
INITIAL_BACKOFF = 1.0
MAX_BACKOFF = 10.0

#: Smaller is tried earlier: (0 for a group below its minimum that already runs, -priority, creation time, name).
Order = tuple[int, int, str, str]

Where = Literal["active", "backoff", "waiting"]


@dataclass(slots=True)
class Failures:
    """Failed attempts since the last success, and until when the entity is not tried again."""

    attempts: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Entry:
    """An entity's place in the queue."""

    order: Order
    where: Where
    #: The room without which another attempt is in vain, where that is known.
    need: Need | None = None
    #: Identifies the entry's newest heap item; older items are dead.
    ticket: int = 0


class Queue:
    """Active heap, back-off heap and waiting set."""

    def __init__(self) -> None:
        self.entries: dict[EntityId, Entry] = {}
        self.failures: dict[EntityId, Failures] = {}
        self._active: list[tuple[Order, int, EntityId]] = []
        self._backoff: list[tuple[float, int, EntityId]] = []
        #: By need: those that wait for the same are judged together.
        self._waiting: dict[Need | None, dict[EntityId, None]] = {}
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
        elif entry.where != "waiting" and entry.order == order:
            return
        entry.order = order
        self._place(entity, entry, self._due(entity, entry))

    def fail(self, entity: EntityId, now: float) -> int:
        """Count a failed attempt, once for all that fails until its back-off ends. Returns how many there were."""
        failures = self.failures.setdefault(entity, Failures())
        if failures.until <= now:
            failures.until = now + min(INITIAL_BACKOFF * 2.0 ** min(failures.attempts, 10), MAX_BACKOFF)
            failures.attempts += 1
        return failures.attempts

    def wait(self, entity: EntityId, order: Order, need: Need | None = None) -> None:
        """Leave the entity until a change that can help it: any, or one that makes room for its need."""
        entry = self.entries.setdefault(entity, Entry(order, "waiting"))
        self._leave_waiting(entity, entry)
        entry.order, entry.need = order, need
        self._place(entity, entry, "waiting")

    def retry(self, entity: EntityId, order: Order) -> None:
        """Try the entity again when its back-off ends, whatever happens until then."""
        entry = self.entries.setdefault(entity, Entry(order, "backoff"))
        entry.order = order
        self._place(entity, entry, "backoff")

    def discard(self, entity: EntityId) -> None:
        """Take the entity out: it was placed, or it is incomplete. Its failures are kept."""
        entry = self.entries.pop(entity, None)
        if entry is not None:
            self._leave_waiting(entity, entry)

    def succeeded(self, entity: EntityId) -> None:
        """Start its back-off anew: it was bound."""
        self.failures.pop(entity, None)

    def forget(self, entity: EntityId) -> None:
        """Drop everything about an entity that is gone."""
        self.discard(entity)
        self.succeeded(entity)

    def wake(self, helps: Callable[[Need | None], bool]) -> bool:
        """Something changed that can help what waits; ``helps`` says whom. Returns whether any waits on."""
        for need in [need for need in self._waiting if helps(need)]:
            for entity in list(self._waiting[need]):
                entry = self.entries[entity]
                self._place(entity, entry, self._due(entity, entry))
        return bool(self._waiting)

    def pop(self, now: float) -> EntityId | None:
        """Return the next entity to try and take it out; it comes back by `activate`, `wait` or `retry`."""
        self._end_backoffs(now)
        while self._active:
            _, ticket, entity = heapq.heappop(self._active)
            if self._live(entity, ticket):
                del self.entries[entity]
                return entity
        return None

    def next_time(self) -> float | None:
        """When the next back-off ends; -inf when something is active now, None when nothing will become active."""
        while self._active and not self._live(self._active[0][2], self._active[0][1]):
            heapq.heappop(self._active)
        if self._active:
            return float("-inf")
        while self._backoff and not self._live(self._backoff[0][2], self._backoff[0][1]):
            heapq.heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def _live(self, entity: EntityId, ticket: int) -> bool:
        entry = self.entries.get(entity)
        return entry is not None and entry.ticket == ticket

    def _end_backoffs(self, now: float) -> None:
        while self._backoff and self._backoff[0][0] <= now:
            _, ticket, entity = heapq.heappop(self._backoff)
            if self._live(entity, ticket):
                self._place(entity, self.entries[entity], "active")

    def _due(self, entity: EntityId, entry: Entry) -> Where:
        """Where an entity goes that a change may help: through its back-off, if it has one."""
        if entry.where == "waiting" and entry.order[0] == 0:
            return "active"
        return "backoff" if entity in self.failures else "active"

    def _place(self, entity: EntityId, entry: Entry, where: Where) -> None:
        self._leave_waiting(entity, entry)
        self._tickets += 1
        entry.ticket = self._tickets
        entry.where = where
        if where == "waiting":
            self._waiting.setdefault(entry.need, {})[entity] = None
            return
        if where == "active":
            heapq.heappush(self._active, (entry.order, entry.ticket, entity))
        else:
            until = self.failures[entity].until if entity in self.failures else 0.0
            heapq.heappush(self._backoff, (until, entry.ticket, entity))

    def _leave_waiting(self, entity: EntityId, entry: Entry) -> None:
        waiting = self._waiting.get(entry.need, {})
        waiting.pop(entity, None)
        if not waiting:
            self._waiting.pop(entry.need, None)
