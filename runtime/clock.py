"""Time as a dependency.

Everything in the framework that waits, backs off or stamps takes a :class:`Clock`, so that a test moves
hours in microseconds and never sleeps. All durations are seconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

import anyio
import anyio.lowlevel


class TimerHandle(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Forget the callback; a no-op once it ran."""


class Clock(Protocol):
    """What the framework asks of time."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary origin."""

    def now(self) -> datetime:
        """The wall clock in UTC, for timestamps only, never for durations."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; at least one checkpoint even when 0."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Run ``callback`` on the event loop after ``seconds``."""


@contextmanager
def move_on_after(clock: Clock, seconds: float | None, *, shield: bool = False) -> Iterator[anyio.CancelScope]:
    """``anyio.move_on_after`` on an injected clock; ``None`` never expires.

    Costs one timer and one scope: for a reconcile or a connection, not for an event or a bind.
    """
    with anyio.CancelScope(shield=shield) as scope:
        if seconds is None:
            yield scope
            return
        timer = clock.call_later(max(0.0, seconds), scope.cancel)
        try:
            yield scope
        finally:
            timer.cancel()


@contextmanager
def fail_after(clock: Clock, seconds: float | None) -> Iterator[None]:
    """``anyio.fail_after`` on an injected clock.

    :raises TimeoutError: when the block was cut off by this limit
    """
    with move_on_after(clock, seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError(f"took longer than {seconds:g} s")


async def wait_for(clock: Clock, event: anyio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most ``seconds``; false on time-out."""
    with move_on_after(clock, seconds):
        await event.wait()
    return event.is_set()


class SystemClock(Clock):
    """The real clock."""

    __slots__ = ()

    # As it is: each event of each watch asks for it.
    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        """See :class:`Clock`."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        await anyio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See :class:`Clock`."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class _FakeTimer:
    __slots__ = ("callback", "deadline")

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self.deadline = deadline
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock(Clock):
    """Time that moves only when a test says so, one timer at a time and in deadline order."""

    def __init__(self, start: datetime | None = None, monotonic: float = 1000.0) -> None:
        self._origin = monotonic
        self._monotonic = monotonic
        self._start = start or datetime(2030, 1, 1, tzinfo=UTC)
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._sequence = itertools.count()
        #: Every duration passed to :meth:`sleep`, for tests of back-off.
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """See :class:`Clock`."""
        return self._monotonic

    def now(self) -> datetime:
        """See :class:`Clock`."""
        return self._start + timedelta(seconds=self._monotonic - self._origin)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See :class:`Clock`."""
        timer = _FakeTimer(self._monotonic + seconds, callback)
        heapq.heappush(self._timers, (timer.deadline, next(self._sequence), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        self.slept.append(seconds)
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        timer = self.call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()

    @property
    def next_timer(self) -> float | None:
        """Seconds until the next live timer."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._monotonic if self._timers else None

    def tick(self, seconds: float) -> None:
        """Advance at once, firing what falls due, without letting tasks run in between."""
        end = self._monotonic + seconds
        while (wait := self.next_timer) is not None and self._monotonic + wait <= end:
            deadline, _, timer = heapq.heappop(self._timers)
            self._monotonic = max(self._monotonic, deadline)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._monotonic = end

    async def advance(self, seconds: float) -> None:
        """Advance timer by timer, letting every task run until it blocks before and after each.

        Tasks blocked on a socket or a thread count as blocked: over real sockets, wait for the effect instead.
        """
        end = self._monotonic + seconds
        await settle()
        while (wait := self.next_timer) is not None and self._monotonic + wait <= end:
            self.tick(wait)
            await settle()
        self._monotonic = max(self._monotonic, end)
        await settle()


async def settle(limit: int = 10_000) -> None:
    """Let every other task run until it waits for something; for tests.

    ``anyio.wait_all_tasks_blocked`` does the same in steps of a tenth of a real second.

    :raises RuntimeError: when some task never stops running
    """
    ready: Collection[object] | None = getattr(asyncio.get_running_loop(), "_ready", None)
    for turn in range(limit):
        await asyncio.sleep(0)
        if (turn >= 100) if ready is None else not ready:
            return
    raise RuntimeError("a task is busy without end")
