"""Against a model that keeps everything: which keys want processing, which are held, and which are overdue."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.clock import FakeClock, settle
from runtime.workqueue import QueueShutDown, RateLimitingQueue

keys = st.sampled_from(["a", "b", "c", "d", "e"])
WORKERS = 2


class QueueMachine(RuleBasedStateMachine):
    """Two workers take keys by themselves; rules say when they finish."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.wanted: set[str] = set()
        self.deadlines: dict[str, float] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.closed = False

        async def begin() -> list[asyncio.Task[None]]:
            self.queue: RateLimitingQueue[str] = RateLimitingQueue(self.clock)
            tasks = [asyncio.ensure_future(self.worker()) for _ in range(WORKERS)]
            await settle()
            return tasks

        self.tasks = self.runner.run(begin())

    async def worker(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueShutDown:
                return
            assert key not in self.held, "two workers hold one key"
            self.fall_due()
            assert key in self.wanted, "nobody asked for this"
            self.wanted.discard(key)
            release = self.held[key] = asyncio.Event()
            try:
                await release.wait()
            finally:
                del self.held[key]
                self.queue.done(key)

    def fall_due(self) -> None:
        now = self.clock.monotonic()
        for key in [key for key, deadline in self.deadlines.items() if deadline <= now]:
            del self.deadlines[key]
            self.wanted.add(key)

    def delay(self, key: str, seconds: float) -> None:
        if not self.closed:
            self.fall_due()
            deadline = self.clock.monotonic() + seconds
            self.deadlines[key] = min(deadline, self.deadlines.get(key, deadline))

    @rule(key=keys, priority=st.integers(-2, 2))
    def add(self, key: str, priority: int) -> None:
        self.queue.add(key, priority)
        if not self.closed:
            self.wanted.add(key)
            self.deadlines.pop(key, None)

    @rule(key=keys, seconds=st.sampled_from([1.0, 2.0, 5.0, 9.0]))
    def add_after(self, key: str, seconds: float) -> None:
        self.queue.add_after(key, seconds)
        self.delay(key, seconds)

    @rule(key=keys)
    def fail(self, key: str) -> None:
        self.delay(key, self.queue.add_rate_limited(key))

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
        self.closed = True
        self.queue.shut_down(drain=drain)
        self.fall_due()
        self.deadlines.clear()
        if not drain:
            self.wanted.clear()

    @invariant()
    def no_lost_wake_up(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.runner.run(settle())
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        self.fall_due()
        free = WORKERS - len(self.held)
        ready = {key for key in self.wanted if key not in self.held}
        assert not (free and ready), "a worker is free and a key waits"

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
            assert self.wanted == set(), "drained"
        finally:
            self.runner.close()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
