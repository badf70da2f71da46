from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from runtime.clock import FakeClock, SystemClock, fail_after, move_on_after, settle, wait_for

from .things import running

pytestmark = pytest.mark.anyio


async def test_timers_fire_in_order_at_their_time(clock: FakeClock) -> None:
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, clock.monotonic() - 1000))

    clock.call_later(5, lambda: note("b"))
    clock.call_later(2, lambda: (note("a"), clock.call_later(1, lambda: note("nested")))[0])
    cancelled = clock.call_later(3, lambda: note("never"))
    cancelled.cancel()
    await clock.advance(4)
    assert fired == [("a", 2), ("nested", 3)]
    await clock.advance(1)
    assert fired[2:] == [("b", 5)]
    assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=5)


async def test_sleep(clock: FakeClock) -> None:
    woken: list[float] = []

    async def sleeper() -> None:
        for seconds in (1, 0, 2):
            await clock.sleep(seconds)
            woken.append(clock.monotonic() - 1000)

    async with running(sleeper):
        await clock.advance(10)
    assert woken == [1, 1, 3]
    assert clock.slept == [1, 0, 2]
    assert clock.next_timer is None


@pytest.mark.parametrize("kind", [FakeClock, SystemClock])
async def test_limits(kind: type[FakeClock] | type[SystemClock]) -> None:
    clock = kind()
    with move_on_after(clock, None) as scope:
        pass
    assert not scope.cancelled_caught
    with fail_after(clock, 60):
        pass
    event = anyio.Event()
    results: list[bool] = []

    async def waiter() -> None:
        results.append(await wait_for(clock, event, 0.01))

    async def hanging() -> None:
        with pytest.raises(TimeoutError, match=r"0\.01 s"), fail_after(clock, 0.01):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(waiter)
        group.start_soon(hanging)
        if isinstance(clock, FakeClock):
            await clock.advance(1)
    assert results == [False]
    event.set()
    assert await wait_for(clock, event, 0)
    await clock.sleep(0)
    assert clock.now().tzinfo is UTC


async def test_an_outer_cancellation_is_not_a_time_out(clock: FakeClock) -> None:
    with anyio.CancelScope() as outer, fail_after(clock, 10):
        outer.cancel()
        await anyio.sleep_forever()
    assert outer.cancelled_caught


async def test_settle_gives_up_on_a_busy_loop() -> None:
    async def busy() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(busy)
        with pytest.raises(RuntimeError, match="busy"):
            await settle(limit=100)
        group.cancel_scope.cancel()
