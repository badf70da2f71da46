from __future__ import annotations

import anyio
import pytest

from runtime.clock import FakeClock, settle
from runtime.workqueue import FAIRNESS, QueueShutDown, RateLimitingQueue

from .things import running

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(clock: FakeClock) -> RateLimitingQueue[str]:
    return RateLimitingQueue(clock, name="test")


async def test_many_adds_are_one_processing(queue: RateLimitingQueue[str]) -> None:
    for _ in range(5):
        queue.add("a")
    assert await queue.get() == "a"
    assert len(queue) == 0
    queue.done("a")
    assert queue.statistics.adds == 5


@pytest.mark.parametrize("adds", [1, 3])
async def test_adds_while_processing_are_one_more(queue: RateLimitingQueue[str], adds: int) -> None:
    queue.add("a")
    await queue.get()
    for _ in range(adds):
        queue.add("a", priority=adds)
    queue.add("b")
    assert await queue.get() == "b", "a is held by a worker"
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_waiter_wakes(queue: RateLimitingQueue[str]) -> None:
    got: list[str] = []

    async def work() -> None:
        got.append(await queue.get())

    async with running(work, work):
        queue.add("a")
        await settle()
        assert got == ["a"]
        queue.add("b")
        await settle()
        assert got == ["a", "b"]


async def test_a_cancelled_waiter_takes_no_wake_up_with_it(queue: RateLimitingQueue[str]) -> None:
    got: list[str] = []

    async def work() -> None:
        got.append(await queue.get())

    async with running(work):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await queue.get()
        queue.add("a")
        await settle()
    assert got == ["a"]


async def test_priorities_then_age(queue: RateLimitingQueue[str]) -> None:
    for key, priority in (("low1", -1), ("n1", 0), ("high", 5), ("n2", 0), ("low2", -1)):
        queue.add(key, priority)
    assert [await queue.get() for _ in range(5)] == ["high", "n1", "n2", "low1", "low2"]


async def test_a_later_add_raises_the_priority_and_never_lowers_it(queue: RateLimitingQueue[str]) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("b", 3)
    queue.add("b", 1)
    assert [await queue.get(), await queue.get()] == ["b", "a"]
    assert len(queue) == 0


async def test_low_priority_does_not_starve(queue: RateLimitingQueue[str]) -> None:
    queue.add("patient", -10)
    taken = []
    for n in range(2 * FAIRNESS):
        queue.add(f"urgent{n}", 10)
        taken.append(await queue.get())
    assert "patient" in taken


async def test_of_two_delays_the_earlier_counts(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    got: list[float] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            got.append(clock.monotonic() - 1000)
            queue.done(key)

    async with running(work):
        queue.add_after("a", 10)
        queue.add_after("a", 5)
        queue.add_after("a", 20)
        await clock.advance(60)
        assert got == [5]
        queue.add_after("a", 10)
        queue.add("a")
        await clock.advance(60)
        assert got == [5, 60], "an immediate add replaces the delay"
        queue.add_after("b", 0)
        await settle()
        assert got == [5, 60, 120]


async def test_a_shorter_delay_of_another_key_wakes_the_waiter(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    got: list[str] = []

    async def work() -> None:
        while True:
            got.append(key := await queue.get())
            queue.done(key)

    async with running(work):
        queue.add_after("slow", 100)
        await settle()
        queue.add_after("fast", 1)
        await clock.advance(2)
        assert got == ["fast"]


async def test_backoff_doubles_to_its_cap_and_is_forgotten(clock: FakeClock) -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue(clock, base=1, cap=10)
    assert [queue.add_rate_limited("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.add_rate_limited("b") == 1, "each key has its own"
    assert queue.failures("a") == 6
    queue.forget("a")
    assert queue.add_rate_limited("a") == 1
    assert queue.add_rate_limited("c", at_least=30) == 30


async def test_backoff_of_a_long_series_does_not_overflow(clock: FakeClock) -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue(clock)
    assert [queue.add_rate_limited("a") for _ in range(3000)][-1] == 1000


async def test_shut_down_drains(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    ended: list[str] = []

    async def waiter() -> None:
        with pytest.raises(QueueShutDown):
            await queue.get()
        ended.append("waiter")

    async def idle() -> None:
        await queue.wait_idle()
        ended.append("idle")

    queue.add("a")
    queue.add("b")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add_after("later", 1)
    queue.shut_down()
    queue.add("ignored")
    queue.add_after("ignored", 1)
    assert await queue.get() == "b"
    async with running(waiter, idle):
        assert ended == ["waiter"], "a worker still holds keys"
        queue.done("b")
        queue.done("a")
        assert await queue.get() == "a", "added before the end, while it was processed"
        queue.done("a")
        await settle()
        assert ended == ["waiter", "idle"]
    assert queue.statistics.delayed == 0


async def test_shut_down_without_draining(queue: RateLimitingQueue[str]) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("b")
    queue.shut_down(drain=False)
    queue.done("a")
    with pytest.raises(QueueShutDown):
        await queue.get()
    await queue.wait_idle()


async def test_statistics(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    queue.add("a")
    queue.add("b")
    clock.tick(3)
    await queue.get()
    clock.tick(4)
    queue.add_after("c", 5)
    queue.add_rate_limited("d")
    found = queue.statistics
    assert (found.depth, found.processing, found.delayed, found.failing, found.retries) == (1, 1, 2, 1, 1)
    assert (found.oldest_wait, found.longest_processing) == (7, 4)


async def test_memory_stays_bounded(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    for n in range(5000):
        queue.add("a", priority=n)
        queue.add_after("b", 1000 - n / 10)
        queue.add("b")
        for _ in range(2):
            queue.done(await queue.get())
    assert len(queue._by_priority) + len(queue._by_age) + len(queue._delayed) < 1000
