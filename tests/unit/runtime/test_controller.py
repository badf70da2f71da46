from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.clock import FakeClock, settle
from runtime.controller import Controller, Result
from runtime.errors import Conflict, TerminalError, TooManyRequests
from runtime.workqueue import RateLimitingQueue
from tests.unit.fakes.apiserver import FakeApiServer

from .things import THINGS, Thing, make, running, thing

pytestmark = pytest.mark.anyio

Key = tuple[str, str]


def build(
    clock: FakeClock, reconcile: Callable[[Any], Awaitable[Result | None]], **options: Any
) -> tuple[Controller[Any], RateLimitingQueue[Any]]:
    queue: RateLimitingQueue[Any] = RateLimitingQueue(clock, base=1)
    return Controller("test", reconcile, queue, clock=clock, **options), queue


class Script:
    """Plays one outcome a call and notes when it was called."""

    def __init__(self, clock: FakeClock, *outcomes: Result | Exception | None) -> None:
        self.clock = clock
        self.outcomes = list(outcomes)
        self.times: list[float] = []

    async def __call__(self, key: Any) -> Result | None:
        self.times.append(self.clock.monotonic() - 1000)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_success_forgets(clock: FakeClock) -> None:
    script = Script(clock, ValueError(), None, ValueError(), None)
    controller, queue = build(clock, script)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(10)
        queue.add("a")
        await clock.advance(10)
    assert script.times == [0, 1, 10, 11], "the second failure is a first one again"
    assert queue.failures("a") == 0
    assert (controller.statistics.reconciles, controller.statistics.errors) == (4, 2)


async def test_requeue_after_is_no_failure(clock: FakeClock) -> None:
    script = Script(clock, ValueError(), Result(requeue_after=30), ValueError(), None)
    controller, queue = build(clock, script)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(100)
    assert script.times == [0, 1, 31, 32]


async def test_errors_back_off(clock: FakeClock) -> None:
    script = Script(clock, *[Conflict(409, "Conflict", "m")] * 4, None)
    controller, queue = build(clock, script)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(100)
    assert script.times == [0, 1, 3, 7, 15]


async def test_retry_after_counts_when_it_is_later(clock: FakeClock) -> None:
    slow = TooManyRequests(429, "TooManyRequests", "m")
    slow.retry_after = 20
    script = Script(clock, slow, None)
    controller, queue = build(clock, script)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(100)
    assert script.times == [0, 20]


async def test_a_terminal_error_is_told_and_not_tried_again(clock: FakeClock) -> None:
    script = Script(clock, ValueError(), TerminalError("spec.x can never work"), None)
    controller, queue = build(clock, script)
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(1000)
            assert script.times == [0, 1]
            assert queue.failures("a") == 0
            queue.add("a")
            await clock.advance(1)
    assert len(script.times) == 3, "until it changes"
    assert [entry["error"] for entry in logs if entry["event"].startswith("gave up")] == ["spec.x can never work"]


async def test_a_reconcile_that_hangs_is_cut_off(clock: FakeClock) -> None:
    calls = []

    async def hang(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            await anyio.sleep_forever()

    controller, queue = build(clock, hang, timeout=30)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(29)
        assert controller.statistics.timeouts == 0
        await clock.advance(3)
        assert controller.statistics.timeouts == 1
        assert calls == ["a", "a"]
    assert clock.next_timer is None


async def test_workers_share_the_keys(clock: FakeClock) -> None:
    busy: set[str] = set()
    most = 0
    gate = anyio.Event()

    async def reconcile(key: str) -> None:
        nonlocal most
        assert key not in busy
        busy.add(key)
        most = max(most, len(busy))
        await gate.wait()
        busy.remove(key)

    controller, queue = build(clock, reconcile, workers=3)
    async with running(controller.run):
        for key in "aabbccdd":
            queue.add(key)
        await settle()
        assert most == 3
        queue.add("a")
        gate.set()
        await settle()
    assert controller.statistics.reconciles == 5


async def test_a_cancelled_worker_lets_its_key_go(clock: FakeClock) -> None:
    async def reconcile(key: str) -> None:
        await anyio.sleep_forever()

    controller, queue = build(clock, reconcile)
    async with running(controller.run):
        queue.add("a")
        await settle()
        queue.add("a")
        assert queue.statistics.processing == 1
    assert queue.statistics.processing == 0
    assert await queue.get() == "a"


async def test_it_ends_when_the_queue_is_shut_down(clock: FakeClock) -> None:
    controller, queue = build(clock, Script(clock), workers=2)
    queue.add("a")
    queue.shut_down()
    with anyio.fail_after(5):
        await controller.run()
    assert controller.statistics.reconciles == 1


async def test_enqueue_on(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", color="red"))
    informer = make(server, clock)
    # Without workers: they only take note, and the test is the worker.
    own, own_queue = build(clock, Script(clock), workers=0)
    by_color, color_queue = build(clock, Script(clock), workers=0)
    filtered, filtered_queue = build(clock, Script(clock), workers=0)
    own.enqueue_on(informer)

    def colors(obj: Thing) -> list[str]:
        return [obj.spec.color] if obj.spec.color else []

    by_color.enqueue_on(informer, colors)
    filtered.enqueue_on(informer, lambda o: o.metadata.name, predicate=lambda event, *_: event == "delete")
    async with running(informer.run):
        for name in "bcd":
            server.put(THINGS, thing(name, color="green"))
            await settle()
            server.remove(THINGS, name, "ns")
        await settle()
        assert [len(own_queue), len(color_queue)] == [0, 0], "nothing piles up while it only waits"
        for controller in (own, by_color, filtered):
            await controller.run()
        assert [len(own_queue), len(color_queue)] == [1, 1], "what is there when it begins"
        assert await own_queue.get() == ("ns", "a")
        own_queue.done(("ns", "a"))
        assert await color_queue.get() == "red"
        color_queue.done("red")
        server.put(THINGS, thing("a", color="blue"))
        await settle()
        assert {await color_queue.get(), await color_queue.get()} == {"red", "blue"}, "the old owner hears too"
        assert len(filtered_queue) == 0
        server.remove(THINGS, "a", "ns")
        await settle()
        assert await filtered_queue.get() == "a"


async def test_a_no_op_reconcile_of_many_keys_lets_others_run(clock: FakeClock) -> None:
    turns = 0
    done = 0

    async def reconcile(key: int) -> None:
        nonlocal done
        done += 1

    async def other() -> None:
        nonlocal turns
        while done < 1000:
            turns += 1
            await anyio.lowlevel.checkpoint()

    controller, queue = build(clock, reconcile)
    for key in range(1000):
        queue.add(key)
    queue.shut_down()
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        group.start_soon(other)
    assert turns > 500
