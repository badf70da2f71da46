from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.clock import FakeClock, settle
from runtime.controller import Controller, Result
from runtime.errors import Conflict, TerminalError, TooManyRequests
from runtime.workqueue import RateLimitingQueue
from tests.unit.fakes.apiserver import FakeApiServer

from .things import THINGS, Thing, cancelled_by_somebody, local, make, running, thing

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


def limited(seconds: float) -> TooManyRequests:
    error = TooManyRequests(429, "TooManyRequests", "m")
    error.retry_after = seconds
    return error


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
    script = Script(clock, limited(20), None)
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


async def test_a_time_out_of_the_reconcile_itself_has_its_traceback(clock: FakeClock) -> None:
    controller, queue = build(clock, Script(clock, TimeoutError("a read of its own")))
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(1)
    assert controller.statistics.timeouts == 0
    assert [(entry["event"], entry.get("exc_info")) for entry in logs] == [("reconcile failed", True)]


async def test_a_cancellation_that_nobody_asked_of_the_worker_is_a_failure(clock: FakeClock) -> None:
    times = []

    async def reconcile(key: str) -> None:
        times.append(clock.monotonic() - 1000)
        if len(times) == 2:
            await anyio.sleep_forever()  # the time-out's cancellation is over when the next one comes
        if len(times) <= 3:
            await cancelled_by_somebody()

    controller, queue = build(clock, reconcile, timeout=30)
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(100)
    assert times == [0, 1, 33, 37]
    failed = ("reconcile failed", True)
    seen = [(entry["event"], entry.get("exc_info")) for entry in logs]
    assert seen == [failed, ("reconcile took too long", None), failed]


@pytest.mark.parametrize(("before", "seconds"), [("a time-out", 31), ("a foreign cancellation", 2)])
async def test_a_cancellation_of_the_worker_ends_it(clock: FakeClock, before: str, seconds: float) -> None:
    calls: list[asyncio.Task[Any] | None] = []

    async def reconcile(key: str) -> None:
        calls.append(asyncio.current_task())
        if len(calls) == 1 and before == "a foreign cancellation":
            await cancelled_by_somebody()
        await anyio.sleep_forever()

    controller, queue = build(clock, reconcile, timeout=30)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        queue.add("a")
        await clock.advance(seconds)
        assert len(calls) == 2
        group.cancel_scope.cancel()
    assert controller.statistics.errors == 1, "not the cancellation"

    async with running(controller.run):
        queue.add("b")
        await settle()
        worker = calls[-1]
        assert worker is not None
        worker.cancel()  # as asyncio.run does with what is left
        await settle()
        assert worker.cancelled()
    assert controller.statistics.errors == 1


async def test_a_group_of_terminal_errors_is_terminal(clock: FakeClock) -> None:
    inner = ExceptionGroup("inner", [TerminalError("y")])
    script = Script(clock, ExceptionGroup("outer", [TerminalError("x"), inner]))
    controller, queue = build(clock, script)
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(1000)
    assert script.times == [0]
    assert [entry["error"] for entry in logs] == ["x; y"]


async def test_the_longest_retry_after_of_a_group_counts(clock: FakeClock) -> None:
    group = ExceptionGroup("group", [TerminalError("x"), limited(20), ExceptionGroup("inner", [limited(30)])])
    script = Script(clock, group, None)
    controller, queue = build(clock, script)
    async with running(controller.run):
        queue.add("a")
        await clock.advance(100)
    assert script.times == [0, 30]


async def test_a_group_of_one_error_is_told_as_that_error(clock: FakeClock) -> None:
    controller, queue = build(clock, Script(clock, ExceptionGroup("group", [Conflict(409, "Conflict", "m")])))
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(1)
    assert [entry["event"] for entry in logs] == ["changed meanwhile; again"]


@pytest.mark.parametrize("make_result", [lambda: 5, lambda: Result(timedelta(seconds=5))])  # type: ignore[arg-type]
async def test_a_result_that_is_none_is_a_failure(clock: FakeClock, make_result: Callable[[], Any]) -> None:
    times = []

    async def reconcile(key: str) -> Any:
        times.append(clock.monotonic() - 1000)
        return make_result() if len(times) == 1 else None

    controller, queue = build(clock, reconcile)
    with capture_logs() as logs:
        async with running(controller.run):
            queue.add("a")
            await clock.advance(10)
    assert times == [0, 1]
    assert [entry["event"] for entry in logs] == ["reconcile failed"]


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


async def test_an_error_in_a_key_function_costs_the_keys_of_that_state_only(
    server: FakeApiServer, clock: FakeClock
) -> None:
    server.put(THINGS, thing("a", color="odd"))
    server.put(THINGS, thing("b"))
    informer = make(server, clock)
    controller, _ = build(clock, Script(clock))

    def name(obj: Thing) -> str:
        if obj.spec.color == "odd":
            raise KeyError("label")
        return obj.metadata.name

    controller.enqueue_on(informer, name)
    with capture_logs() as logs:
        async with running(informer.run), running(controller.run):
            assert controller.statistics.reconciles == 1, "b"
            server.put(THINGS, thing("a", color="good"))
            await settle()
            assert controller.statistics.reconciles == 2, "a, whose old state has no key"
    failures = [entry for entry in logs if entry["event"] == "a key function failed"]
    assert [(entry["resource"], entry["key"]) for entry in failures] == [(THINGS.key, ("ns", "a"))] * 2
    assert informer.statistics.handler_errors == 2


async def test_an_error_in_a_predicate_drops_that_change_only(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", color="odd"))
    server.put(THINGS, thing("b"))
    informer = make(server, clock)
    controller, queue = build(clock, Script(clock), workers=0)
    controller.enqueue_on(informer, predicate=lambda _, old, new: bool(1 / (new.spec.color != "odd")))  # type: ignore[union-attr]
    with capture_logs() as logs:
        async with running(informer.run):
            await controller.run()
    assert len(queue) == 1
    assert await queue.get() == ("ns", "b")
    assert [entry["key"] for entry in logs if entry["event"] == "a predicate failed"] == [("ns", "a")]


async def test_a_tuple_is_one_key_and_a_generator_none(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    informer = make(server, clock)
    controller, queue = build(clock, Script(clock), workers=0)
    controller.enqueue_on(informer, lambda o: ("x", o.metadata.name))
    controller.enqueue_on(informer, lambda o: (name for name in "yz"))
    with capture_logs() as logs:
        async with running(informer.run):
            await controller.run()
    assert len(queue) == 1
    assert await queue.get() == ("x", "a")
    assert [entry["key"] for entry in logs if entry["event"] == "a key function failed"] == [("ns", "a")]


async def test_others_run_while_it_takes_what_is_there(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    turns = 0
    controller, queue = build(clock, Script(clock), workers=0)

    def slow(obj: Thing) -> str:
        clock.tick(0.001)
        return obj.metadata.name

    async def other() -> None:
        nonlocal turns
        while len(queue) < 100:
            turns += 1
            await anyio.lowlevel.checkpoint()

    for number in range(100):
        informer.changed(local(str(number)))
    controller.enqueue_on(informer, slow)
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        group.start_soon(controller.run)
    assert turns > 10


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
