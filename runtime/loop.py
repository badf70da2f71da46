"""The event loop, and how long it ever stood still.

While one callback runs, nothing else does: no heartbeat, no renewal of the Lease. So each turn of the loop is timed
from the moment it has something to do until it waits again, which costs two readings of a clock and no wake-up.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio

#: Seconds of one turn beyond which it counts as a stall.
STALL = 0.05


@dataclass(slots=True)
class LoopStatistics:
    """Since the start; ``longest`` since it was last taken. Seconds."""

    turns: int = 0
    busy: float = 0.0
    stalls: int = 0
    longest: float = 0.0

    def take_longest(self) -> float:
        """Return the longest turn since the last call."""
        longest, self.longest = self.longest, 0.0
        return longest


class _TimedSelector(selectors.DefaultSelector):
    """Times what the loop does between two waits."""

    def __init__(self, statistics: LoopStatistics) -> None:
        super().__init__()
        self._statistics = statistics
        self._began: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        statistics = self._statistics
        if self._began is not None:
            took = time.perf_counter() - self._began
            statistics.turns += 1
            statistics.busy += took
            if took > statistics.longest:
                statistics.longest = took
            if took > STALL:
                statistics.stalls += 1
        ready = super().select(timeout)
        self._began = time.perf_counter()
        return ready


def run(main: Callable[[LoopStatistics], Coroutine[Any, Any, int]]) -> int:
    """Run a process's main coroutine on a timed loop and return its status."""
    statistics = LoopStatistics()

    async def start() -> int:
        return await main(statistics)

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_TimedSelector(statistics))

    return anyio.run(start, backend_options={"loop_factory": loop})
