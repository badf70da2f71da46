from __future__ import annotations

import random

import anyio
import pytest

from runtime.clock import FakeClock, settle
from runtime.workqueue import FAIRNESS, QueueShutDown, QueueStatistics, RateLimitingQueue

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
    for key, priority in (("low1", -1), ("n1", 0), ("high", 5), ("n2", None), ("n3", 0), ("low2", -1)):
        if priority is None:
            queue.add(key)
        else:
            queue.add(key, priority)
    assert [await queue.get() for _ in range(6)] == ["high", "n1", "n2", "n3", "low1", "low2"]


async def test_a_later_add_raises_the_priority_and_never_lowers_it(queue: RateLimitingQueue[str]) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("b", 3)
    queue.add("b", 1)
    assert [await queue.get(), await queue.get()] == ["b", "a"]
    assert len(queue) == 0


async def test_one_in_sixteen_is_the_one_that_waits_longest(queue: RateLimitingQueue[str]) -> None:
    queue.add("patient", -10)
    queue.add("next", -10)
    for n in range(50):
        queue.add(f"urgent{n}", 10)
    taken = [await queue.get() for _ in range(2 * FAIRNESS)]
    assert FAIRNESS == 16
    assert (taken.index("patient"), taken.index("next")) == (15, 31)
    assert [key for key in taken if key.startswith("urgent")] == [f"urgent{n}" for n in range(30)]


async def test_a_delayed_add_has_a_priority_too(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    queue.add_after("low", 1, -1)
    queue.add_after("normal", 1)
    queue.add_after("failed", 1)
    queue.add_rate_limited("failed again")
    queue.add_after("at once", 0)
    queue.add("before", 1)
    queue.add_after("high", 1, 1)
    queue.add_after("high at once", 0, 2)
    queue.add_rate_limited("failed high", 3)
    clock.tick(1)
    assert [await queue.get() for _ in range(9)] == [
        *("failed high", "high at once", "before", "high", "at once"),
        *("failed again", "normal", "failed", "low"),
    ]


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


async def test_of_two_equal_delays_the_first_counts(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", 1, 1)
    queue.add_after("a", 1, -1)
    queue.add("b")
    clock.tick(1)
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_what_is_due_is_no_delay_any_more(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", 1)
    clock.tick(2)
    queue.add_after("a", 5)
    assert await queue.get() == "a"
    queue.done("a")
    clock.tick(5)
    assert await queue.get() == "a"


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
    delays = [queue.add_rate_limited("a") for _ in range(3000)]
    assert (delays[0], delays[-1]) == (0.005, 1000)


async def test_shut_down_drains(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    ended: list[str] = []

    async def waiter() -> None:
        with pytest.raises(QueueShutDown, match="test"):
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


async def test_what_is_due_at_the_end_is_drained(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    queue.add_after("due", 1)
    queue.add_after("not yet", 2)
    clock.tick(1)
    queue.shut_down()
    assert await queue.get() == "due"
    queue.done("due")
    with pytest.raises(QueueShutDown):
        await queue.get()
    await queue.wait_idle()


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


async def test_statistics_of_a_queue_without_keys(queue: RateLimitingQueue[str]) -> None:
    assert queue.statistics == QueueStatistics(0, 0, 0, 0, 0, 0, 0.0, 0.0, False)
    queue.shut_down()
    assert queue.statistics == QueueStatistics(0, 0, 0, 0, 0, 0, 0.0, 0.0, True)


@pytest.mark.parametrize(("live", "most"), [(10, 64), (100, 200)])
async def test_replaced_delays_take_no_more_room_than_those_that_run(
    queue: RateLimitingQueue[str], clock: FakeClock, live: int, most: int
) -> None:
    rng = random.Random(0)
    earliest: dict[str, float] = {}
    sizes = []
    for turn in range(1500):
        key, seconds = f"k{rng.randrange(live)}", 10_000 - 5 * turn + rng.random() * 1000
        queue.add_after(key, seconds)
        earliest[key] = min(seconds, earliest.get(key, seconds))
        sizes.append(len(queue._delayed))
    assert max(sizes) == most
    assert queue.statistics.delayed == live
    for key, seconds in sorted(earliest.items(), key=lambda item: item[1]):
        clock.tick(seconds - 1e-6 - (clock.monotonic() - 1000))
        assert queue.statistics.depth == 0
        clock.tick(2e-6)
        assert await queue.get() == key


@pytest.mark.parametrize(("live", "most"), [(20, 64), (100, 200)])
async def test_taken_keys_take_no_more_room_than_those_that_wait(
    queue: RateLimitingQueue[str], live: int, most: int
) -> None:
    """By age they are forgotten when they come up by priority, and those of a priority that was raised by neither."""
    priorities = {f"k{n}": n % 3 for n in range(live)} | {"hot": 5}
    waiting = [*priorities][:-1]
    for key in waiting:
        queue.add(key, priorities[key])
    by_age, by_priority = [], []
    for turn in range(1, 1001):
        queue.add("hot", -5)
        queue.add("hot", 5)
        if "hot" not in waiting:
            waiting.append("hot")
        key = await queue.get()
        assert key == ("hot" if turn % FAIRNESS else waiting[0])
        by_age.append(len(queue._by_age))
        by_priority.append(len(queue._by_priority))
        queue.done(key)
        waiting.remove(key)
        if key != "hot":
            queue.add(key, priorities[key])
            waiting.append(key)
    assert (max(by_age), max(by_priority)) == (most, most)
    for turn in range(1001, 1001 + len(waiting)):
        first = min(waiting, key=lambda key: -priorities[key]) if turn % FAIRNESS else waiting[0]
        assert await queue.get() == first
        waiting.remove(first)


async def test_memory_stays_bounded(queue: RateLimitingQueue[str], clock: FakeClock) -> None:
    for n in range(5000):
        queue.add("a", priority=n)
        queue.add_after("b", 1000 - n / 10)
        queue.add("b")
        for _ in range(2):
            queue.done(await queue.get())
    assert len(queue._by_priority) + len(queue._by_age) + len(queue._delayed) < 1000
