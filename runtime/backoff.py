"""Waiting between attempts, and not saying the same thing twice."""

from __future__ import annotations

import random

from runtime.clock import Clock


class Backoff:
    """Full jitter: a random share of ``base · 2^n`` seconds, at most ``cap``; forgotten after a quiet period.

    :param reset_after: seconds without a failure after which the next one counts as the first
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        base: float = 0.8,
        cap: float = 30.0,
        reset_after: float = 120.0,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._base = base
        self._cap = cap
        self._reset_after = reset_after
        self._failures = 0
        self._quiet_from = clock.monotonic()

    @property
    def ceiling(self) -> float:
        """The longest that the next wait can be, in seconds."""
        return float(min(self._cap, self._base * 2 ** min(self._failures, 32)))

    def next(self, at_least: float = 0.0) -> float:
        """Count a failure and return how long to wait; ``at_least`` is what the server asked for (Retry-After)."""
        now = self._clock.monotonic()
        if now - self._quiet_from > self._reset_after:
            self._failures = 0
        delay = at_least + self._rng.uniform(0.0, self.ceiling)
        self._failures += 1
        self._quiet_from = now + delay
        return delay


class Repeats:
    """Lets a line through once a minute, however often and beside however many others it comes."""

    #: Different lines remembered; when there are more, the oldest may be said again early.
    CAPACITY = 64

    def __init__(self, clock: Clock, every: float = 60.0) -> None:
        self._clock = clock
        self._every = every
        #: Line -> when it was let through, oldest first.
        self._let: dict[str, float] = {}
        self._told = False

    def allows(self, line: str) -> bool:
        """True when ``line`` should be written now."""
        now = self._clock.monotonic()
        if now - self._let.get(line, -self._every) < self._every:
            return False
        self._let.pop(line, None)
        self._let[line] = now
        if len(self._let) > self.CAPACITY:
            del self._let[next(iter(self._let))]
        self._told = True
        return True

    def recovered(self) -> bool:
        """All is well; true when a line was let through since this was last said, so that the end of it is news."""
        told, self._told = self._told, False
        return told
