"""The queue between events and reconcilers: keys, each at most once, each never by two workers at a time.

*dirty* are keys that want processing, *processing* those a worker holds. An add of a key that is processed
is remembered and queued again when the worker is done; so any number of adds before a
:meth:`~RateLimitingQueue.get` lead to one processing and any add after it to another one.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from runtime.clock import Clock, wait_for

K = TypeVar("K", bound=Hashable)

#: One in so many keys taken is the one that waits longest, whatever its priority: none starves.
FAIRNESS = 16


class QueueShutDown(Exception):  # noqa: N818
    """No more keys will come."""


@dataclass(slots=True)
class _Entry:
    priority: int
    sequence: int
    since: float


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot. Times in seconds."""

    depth: int
    processing: int
    delayed: int
    failing: int
    adds: int
    retries: int
    oldest_wait: float
    longest_processing: float
    shutting_down: bool


class RateLimitingQueue(Generic[K]):
    """A deduplicating priority queue with delays and per-key back-off.

    :param base: seconds of the first back-off, doubled with each failure
    :param cap: the longest back-off in seconds
    """

    def __init__(self, clock: Clock, *, name: str = "", base: float = 0.005, cap: float = 1000.0) -> None:
        self.name = name
        self._clock = clock
        self._base = base
        self._cap = cap
        self._sequence = itertools.count()
        self._dirty: dict[K, _Entry] = {}
        # Both orders hold (.., sequence, key); an entry is stale unless its sequence is the key's.
        self._by_priority: list[tuple[int, int, K]] = []
        self._by_age: deque[tuple[int, K]] = deque()
        self._processing: dict[K, float] = {}
        self._deadlines: dict[K, tuple[float, int]] = {}  # key -> (deadline, priority)
        self._delayed: list[tuple[float, int, K]] = []
        self._failures: dict[K, int] = {}
        self._wakeup = anyio.Event()
        self._idle = anyio.Event()
        self._shut_down = False
        self._taken = 0
        self._adds = 0
        self._retries = 0

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, key: K, priority: int = 0) -> None:
        """Want ``key`` processed as soon as a worker is free; replaces a delay that runs for it.

        :param priority: higher comes sooner; of two adds of one key the higher counts
        """
        if self._shut_down:
            return
        self._adds += 1
        self._deadlines.pop(key, None)
        self._mark(key, priority)

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        """Want ``key`` processed after ``seconds``; of two delays the earlier counts."""
        if seconds <= 0:
            self.add(key, priority)
            return
        if self._shut_down:
            return
        self._promote()  # what is due is no delay any more, whether or not a worker was free to see it
        deadline = self._clock.monotonic() + seconds
        current = self._deadlines.get(key)
        if current is not None and current[0] <= deadline:
            return
        self._deadlines[key] = (deadline, priority)
        heapq.heappush(self._delayed, (deadline, next(self._sequence), key))
        if _outgrown(self._delayed, self._deadlines):
            live = {key: deadline for key, (deadline, _) in self._deadlines.items()}
            self._delayed = [item for item in self._delayed if live.get(item[2]) == item[0]]
            heapq.heapify(self._delayed)
        if self._delayed[0][2] == key:
            self._wake()  # waiters sleep until the deadline that was the first

    def add_rate_limited(self, key: K, priority: int = 0, *, at_least: float = 0.0) -> float:
        """Count a failure of ``key`` and add it after its back-off; returns the delay in seconds.

        :param at_least: seconds the server asked for
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._retries += 1
        delay = max(at_least, float(min(self._cap, self._base * 2 ** min(failures, 64))))
        self.add_after(key, delay, priority)
        return delay

    def forget(self, key: K) -> None:
        """The key is well: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)

    def _mark(self, key: K, priority: int) -> None:
        entry = self._dirty.get(key)
        held = key in self._processing  # then queued by done()
        if entry is None:
            entry = self._dirty[key] = _Entry(priority, next(self._sequence), self._clock.monotonic())
            if not held:
                self._enqueue(key, entry)
        elif priority > entry.priority:
            entry.priority = priority
            if not held:
                heapq.heappush(self._by_priority, (-priority, entry.sequence, key))

    def _enqueue(self, key: K, entry: _Entry) -> None:
        heapq.heappush(self._by_priority, (-entry.priority, entry.sequence, key))
        self._by_age.append((entry.sequence, key))
        self._wake()

    # -- taking ---------------------------------------------------------------------------------------------------

    async def get(self) -> K:
        """Wait for a key and hold it until :meth:`done`.

        :raises QueueShutDown: when shut down and empty
        """
        while True:
            self._promote()
            key = self._pop()
            if key is not None:
                return key
            if self._shut_down:
                raise QueueShutDown(self.name)
            event = self._wakeup
            timeout = self._delayed[0][0] - self._clock.monotonic() if self._delayed else None
            await wait_for(self._clock, event, timeout)

    def done(self, key: K) -> None:
        """The worker lets go of the key; queued again if it was added meanwhile."""
        del self._processing[key]
        entry = self._dirty.get(key)
        if entry is not None:
            self._enqueue(key, entry)
        self._check_idle()

    def _pop(self) -> K | None:
        if (self._taken + 1) % FAIRNESS == 0:
            while self._by_age:
                sequence, key = self._by_age.popleft()
                if self._waits(key, sequence):
                    return self._take(key)
        while self._by_priority:
            _, sequence, key = heapq.heappop(self._by_priority)
            if self._waits(key, sequence):
                return self._take(key)
        return None

    def _waits(self, key: K, sequence: int) -> bool:
        entry = self._dirty.get(key)
        return entry is not None and entry.sequence == sequence

    def _take(self, key: K) -> K:
        del self._dirty[key]
        self._taken += 1
        self._processing[key] = self._clock.monotonic()
        if _outgrown(self._by_age, self._dirty):
            self._by_age = deque(item for item in self._by_age if self._waits(item[1], item[0]))
        if _outgrown(self._by_priority, self._dirty):
            self._by_priority = [item for item in self._by_priority if self._waits(item[2], item[1])]
            heapq.heapify(self._by_priority)
        return key

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self._delayed:
            deadline, _, key = self._delayed[0]
            current = self._deadlines.get(key)
            if current is not None and current[0] == deadline:
                if deadline > now:
                    return
                del self._deadlines[key]
                self._mark(key, current[1])
            heapq.heappop(self._delayed)

    def _wake(self) -> None:
        # All waiters look again: none can be lost with a cancelled one.
        self._wakeup.set()
        self._wakeup = anyio.Event()

    # -- the end --------------------------------------------------------------------------------------------------

    def shut_down(self, *, drain: bool = True) -> None:
        """Ignore adds from now on and drop delays; waiting keys are still handed out if ``drain``."""
        self._promote()
        self._shut_down = True
        self._deadlines.clear()
        if not drain:
            self._dirty.clear()
        self._wake()
        self._check_idle()

    async def wait_idle(self) -> None:
        """After :meth:`shut_down`: return when nothing waits and nothing is processed."""
        await self._idle.wait()

    def _check_idle(self) -> None:
        if self._shut_down and not self._dirty and not self._processing:
            self._idle.set()

    # -- looking --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._dirty)

    @property
    def statistics(self) -> QueueStatistics:
        """A snapshot."""
        now = self._clock.monotonic()
        return QueueStatistics(
            depth=len(self._dirty),
            processing=len(self._processing),
            delayed=len(self._deadlines),
            failing=len(self._failures),
            adds=self._adds,
            retries=self._retries,
            oldest_wait=max((now - entry.since for entry in self._dirty.values()), default=0.0),
            longest_processing=max((now - since for since in self._processing.values()), default=0.0),
            shutting_down=self._shut_down,
        )


def _outgrown(entries: Sized, live: Sized) -> bool:
    """Stale entries go when they surface, or all at once when there are as many of them as live ones."""
    return len(entries) > max(64, 2 * len(live))
