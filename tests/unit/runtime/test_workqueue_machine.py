"""Against a model that keeps everything: which keys want processing, in which order, and which are held or overdue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.clock import FakeClock, settle
from runtime.workqueue import FAIRNESS, QueueShutDown, RateLimitingQueue

keys = st.sampled_from(["a", "b", "c", "d", "e"])
priorities = st.integers(-2, 2)
WORKERS = 2
BASE, CAP = 0.25, 3.0


@dataclass
class Want:
    priority: int
    nth: int
    since: float


class QueueMachine(RuleBasedStateMachine):
    """Two workers take keys by themselves; rules say when they finish."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.count = itertools.count()
        self.wanted: dict[str, Want] = {}
        self.deadlines: dict[str, tuple[float, int, int]] = {}
        self.failures: dict[str, int] = {}
        self.adds = 0
        self.retries = 0
        self.taken = 0
        self.held: dict[str, asyncio.Event] = {}
        self.held_since: dict[str, float] = {}
        self.closed = False

        async def begin() -> list[asyncio.Task[None]]:
            self.queue: RateLimitingQueue[str] = RateLimitingQueue(self.clock, base=BASE, cap=CAP)
            tasks = [asyncio.ensure_future(self.worker()) for _ in range(WORKERS)]
            self.idle = asyncio.ensure_future(self.queue.wait_idle())
            await settle()
            return tasks

        self.tasks = self.runner.run(begin())

    async def worker(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueShutDown:
                assert self.closed
                assert not self.ready, "what waited at the end is handed out"
                return
            assert key not in self.held, "two workers hold one key"
            self.fall_due()
            assert key in self.wanted, "nobody asked for this"
            self.taken += 1
            if self.taken % FAIRNESS:
                first = min(self.ready, key=lambda k: (-self.wanted[k].priority, self.wanted[k].nth))
                assert key == first, "by priority, then by age"
            del self.wanted[key]
            release = self.held[key] = asyncio.Event()
            self.held_since[key] = self.clock.monotonic()
            try:
                await release.wait()
            finally:
                del self.held[key], self.held_since[key]
                self.queue.done(key)

    @property
    def ready(self) -> list[str]:
        return [key for key in self.wanted if key not in self.held]

    def want(self, key: str, priority: int) -> None:
        known = self.wanted.get(key)
        if known is None:
            self.wanted[key] = Want(priority, next(self.count), self.clock.monotonic())
        else:
            known.priority = max(known.priority, priority)

    def fall_due(self) -> None:
        """When the queue looks: a worker asks, or a delay is added."""
        now = self.clock.monotonic()
        for key, (deadline, _, priority) in sorted(self.deadlines.items(), key=lambda item: item[1]):
            if deadline <= now:
                del self.deadlines[key]
                self.want(key, priority)

    def is_added(self, key: str, priority: int) -> None:
        if not self.closed:
            self.adds += 1
            self.want(key, priority)
            self.deadlines.pop(key, None)

    def delay(self, key: str, seconds: float, priority: int) -> None:
        if not self.closed:
            self.fall_due()
            deadline = self.clock.monotonic() + seconds
            if key not in self.deadlines or deadline < self.deadlines[key][0]:
                self.deadlines[key] = (deadline, next(self.count), priority)

    @rule(key=keys, priority=priorities)
    def add(self, key: str, priority: int) -> None:
        self.queue.add(key, priority)
        self.is_added(key, priority)

    @rule(key=keys, seconds=st.sampled_from([0.0, 1.0, 2.0, 5.0, 9.0]), priority=priorities)
    def add_after(self, key: str, seconds: float, priority: int) -> None:
        self.queue.add_after(key, seconds, priority)
        if seconds:
            self.delay(key, seconds, priority)
        else:
            self.is_added(key, priority)

    @rule(key=keys, priority=priorities, at_least=st.sampled_from([0.0, 1.5]))
    def fail(self, key: str, priority: int, at_least: float) -> None:
        failures = self.failures.get(key, 0)
        self.failures[key] = failures + 1
        self.retries += 1
        assert self.queue.failures(key) == failures
        delay = self.queue.add_rate_limited(key, priority, at_least=at_least)
        assert delay == max(at_least, min(CAP, BASE * 2**failures))
        self.delay(key, delay, priority)

    @rule(key=keys)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), cancel=st.booleans())
    def finish(self, data: st.DataObject, cancel: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        if cancel:  # a worker that dies lets go, and another takes its place

            async def replace() -> None:
                task = next(t for t in self.tasks if not t.done() and self.owns(t, key))
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                self.tasks.append(asyncio.ensure_future(self.worker()))

            self.runner.run(replace())
        else:
            self.held[key].set()

    def owns(self, task: asyncio.Task[None], key: str) -> bool:
        coroutine = task.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        return frame is not None and frame.f_locals.get("key") == key and key in self.held

    @precondition(lambda self: not self.closed)
    @rule(drain=st.booleans())
    def shut_down(self, drain: bool) -> None:
        self.queue.shut_down(drain=drain)
        self.fall_due()
        self.closed = True
        self.deadlines.clear()
        if not drain:
            self.wanted.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.runner.run(settle())
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        if len(self.held) < WORKERS:
            self.fall_due()
            assert not self.ready, "a worker is free and a key waits"
        now, found = self.clock.monotonic(), self.queue.statistics
        assert len(self.queue) == found.depth == len(self.wanted)
        assert found.processing == len(self.held)
        assert found.delayed == len(self.deadlines)
        assert found.failing == len(self.failures)
        assert (found.adds, found.retries) == (self.adds, self.retries)
        # A worker that waits sees a delay end in the middle of pass_time.
        assert found.oldest_wait >= max((now - want.since for want in self.wanted.values()), default=0)
        assert found.longest_processing == max((now - since for since in self.held_since.values()), default=0)
        assert found.shutting_down is self.closed
        assert self.idle.done() is (self.closed and not self.wanted and not self.held)

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        if not self.closed:
            self.shut_down(drain=True)

        async def end() -> None:
            for _ in range(50):
                for event in list(self.held.values()):
                    event.set()
                await settle()
            assert all(task.done() for task in self.tasks), "a worker never ends"
            await self.queue.wait_idle()

        try:
            self.runner.run(end())
            assert all(task.cancelled() or task.result() is None for task in self.tasks)
            assert self.wanted == {}, "drained"
        finally:
            self.runner.close()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
