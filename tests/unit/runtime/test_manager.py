from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.clock import FakeClock, settle
from runtime.controller import Controller
from runtime.manager import Manager
from runtime.workqueue import RateLimitingQueue
from tests.unit.fakes.apiserver import FakeApiServer

from .things import THINGS, cancelled_by_somebody, make, thing, until

pytestmark = pytest.mark.anyio


class World:
    """A manager with one of each, and a diary of what began and ended."""

    def __init__(self, server: FakeApiServer, clock: FakeClock, **options: Any) -> None:
        self.clock = clock
        self.diary: list[str] = []
        self.exits: list[int] = []
        self.manager = Manager(clock, exit_now=self.exits.append, **options)
        self.informer = make(server, clock)
        self.manager.add_informer(self.informer)
        self.manager.add_server("probes", self.task("probes"))
        self.queue: RateLimitingQueue[Any] = RateLimitingQueue(clock)
        self.controller = Controller("c", self.reconcile, self.queue, clock=clock)
        self.controller.enqueue_on(self.informer)
        self.manager.add_controller(self.controller)
        self.manager.add_runnable("loop", self.task("loop"))
        self.manager.add_runnable("events", self.task("events"), needs_leader=False)
        self.gate = anyio.Event()
        self.gate.set()
        self.result: int | None = None

    def task(self, name: str) -> Any:
        async def run() -> None:
            self.diary.append(f"+{name}")
            try:
                await anyio.sleep_forever()
            finally:
                self.diary.append(f"-{name}")

        return run

    async def reconcile(self, key: Any) -> None:
        self.diary.append("+reconcile")
        try:
            await self.gate.wait()
        finally:
            self.diary.append("-reconcile")

    async def run(self) -> None:
        self.result = await self.manager.run(handle_signals=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.run)
            await settle()
            yield
            await settle()
            assert self.result is not None, f"still {self.manager.phase}"


class FakeElection:
    def __init__(self, diary: list[str]) -> None:
        self.diary = diary
        self.elected = anyio.Event()
        self.lost = anyio.Event()
        self.leads = False
        self.succeeds = False

    async def acquire(self) -> bool:
        await self.elected.wait()
        self.leads = True
        self.diary.append("+leader")
        return self.succeeds

    async def hold(self) -> None:
        await self.lost.wait()
        self.diary.append("lost")

    async def release(self) -> None:
        if self.leads:
            self.diary.append("released")


async def test_order_up_and_down(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    world = World(server, clock)
    election = FakeElection(world.diary)
    world.manager._election = election
    async with world.running():
        assert world.diary == ["+probes", "+events"]
        assert world.manager.ready, "a standby is ready"
        assert not world.manager.leading
        election.elected.set()
        await settle()
        assert world.manager.leading
        assert world.diary[2:] == ["+leader", "+loop", "+reconcile", "-reconcile"]
        del world.diary[:]
        world.gate = anyio.Event()
        world.queue.add("held")
        world.queue.add("waiting")
        await settle()
        world.manager.on_signal(signal.SIGTERM)
        await settle()
        assert not world.manager.ready
        assert world.diary == ["+reconcile"], "what a worker holds is finished"
        world.gate.set()
        await settle()
        assert world.diary == ["+reconcile", "-reconcile", "-loop", "-events", "released", "-probes"]
    assert world.result == 0
    assert not world.manager.leading
    assert not server.watches
    assert world.exits == []


async def test_ready_needs_caches(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("refuse", times=10**6)
    world = World(server, clock)
    async with world.running():
        assert not world.manager.ready
        assert world.manager.why_not_ready() == ["cache of things.test.dev is not complete"]
        assert world.diary == ["+probes"], "probes answer before anything else works"
        server.faults.clear()
        await clock.advance(60)
        assert world.manager.ready
        assert world.manager.why_not_ready() == []
        server.end_watches("reset")
        server.fail("refuse", times=10**6)
        await clock.advance(200)
        assert not world.manager.ready
        assert "has not heard" in world.manager.why_not_ready()[0]
        world.manager.on_signal(signal.SIGTERM)
        await settle()
    assert world.result == 0


async def test_a_stop_before_the_caches_are_complete(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("refuse", times=10**6)
    world = World(server, clock)
    async with world.running():
        world.manager.on_signal(signal.SIGINT)
    assert world.result == 0
    assert world.diary == ["+probes", "-probes"]


async def test_caches_that_never_complete(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("refuse", times=10**6)
    world = World(server, clock, sync_timeout=120)
    with capture_logs() as logs:
        async with world.running():
            await clock.advance(119)
            assert world.result is None
            await clock.advance(2)
    assert world.result == 1
    assert any("things.test.dev is not complete" in entry["event"] for entry in logs)


async def test_the_second_signal_exits_at_once(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.gate = anyio.Event()
        world.queue.add("held")
        await settle()
        world.manager.on_signal(signal.SIGTERM)
        await settle()
        assert world.exits == []
        world.manager.on_signal(signal.SIGTERM)
        assert world.exits == [128 + signal.SIGTERM]
        world.gate.set()


async def test_a_worker_that_does_not_finish_is_cut_off_inside_the_grace(
    server: FakeApiServer, clock: FakeClock
) -> None:
    world = World(server, clock, grace=30)
    started = clock.monotonic()
    async with world.running():
        world.gate = anyio.Event()
        world.queue.add("hangs")
        await settle()
        world.manager.on_signal(signal.SIGTERM)
        await clock.advance(19)
        assert world.result is None
        await clock.advance(2)
        assert world.result == 0
    assert clock.monotonic() - started < 30
    assert "-reconcile" in world.diary


@pytest.mark.parametrize("where", ["loop", "events", "probes", "informer"])
@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_a_crash_ends_the_process(server: FakeApiServer, clock: FakeClock, where: str, how: str) -> None:
    world = World(server, clock)
    crash = anyio.Event()

    async def run() -> None:
        await crash.wait()
        if how == "raises":
            raise ZeroDivisionError("the reason")

    if where == "loop":
        world.manager.add_runnable("x", run)
    elif where == "events":
        world.manager.add_runnable("x", run, needs_leader=False)
    elif where == "probes":
        world.manager.add_server("x", run)
    else:
        other = make(server, clock)
        other.synced.set()
        other.run = run  # type: ignore[method-assign,assignment]
        world.manager.add_informer(other)
    with capture_logs() as logs:
        async with world.running():
            assert world.manager.leading
            crash.set()
    assert world.result == 1
    if how == "raises":
        assert [entry for entry in logs if entry.get("exc_info")], "with its traceback"
    assert not server.watches


async def test_a_controller_that_crashes_or_ends(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.queue.shut_down()
    assert world.result == 1


async def test_a_one_off_task_may_return(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)

    async def once() -> None:
        world.diary.append("once")

    world.manager.add_runnable("once", once, may_return=True)
    async with world.running():
        assert "once" in world.diary
        assert world.result is None
        world.manager.stop("test")
    assert world.result == 0


async def test_lost_leadership_cuts_off_work_at_once(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    election = FakeElection(world.diary)
    world.manager._election = election
    async with world.running():
        election.elected.set()
        await settle()
        world.gate = anyio.Event()
        world.queue.add("held")
        await settle()
        election.lost.set()
        await settle()
        assert world.result == 0
        assert world.manager.lost_leadership
    assert world.diary.index("lost") < world.diary.index("-reconcile")
    assert "released" not in world.diary, "it is not ours to give back"


async def test_leadership_lost_while_draining(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    election = FakeElection(world.diary)
    world.manager._election = election
    async with world.running():
        election.elected.set()
        await settle()
        world.gate = anyio.Event()
        world.queue.add("held")
        await settle()
        world.manager.on_signal(signal.SIGTERM)
        await settle()
        assert world.result is None
        election.lost.set()
        await settle()
        assert world.result == 0
        assert not world.manager.lost_leadership, "it was told to end"
    assert "released" not in world.diary


async def test_a_standby_stops(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.manager._election = FakeElection(world.diary)
    async with world.running():
        world.manager.on_signal(signal.SIGTERM)
    assert world.result == 0
    assert world.diary == ["+probes", "+events", "-events", "-probes"]


async def test_an_election_that_fails(server: FakeApiServer, clock: FakeClock) -> None:
    class Broken(FakeElection):
        async def acquire(self) -> None:
            raise PermissionError("leases")

    world = World(server, clock)
    world.manager._election = Broken(world.diary)
    async with world.running():
        pass
    assert world.result == 1


async def test_a_release_that_hangs_is_bounded(server: FakeApiServer, clock: FakeClock) -> None:
    class Hanging(FakeElection):
        async def release(self) -> None:
            await anyio.sleep_forever()

    world = World(server, clock, grace=30)
    election = Hanging(world.diary)
    election.elected.set()
    world.manager._election = election
    async with world.running():
        world.manager.on_signal(signal.SIGTERM)
        await clock.advance(31)
        assert world.result == 0


@pytest.mark.parametrize("how", ["signal", "loss"])
async def test_what_cannot_be_stopped_ends_with_the_process(server: FakeApiServer, clock: FakeClock, how: str) -> None:
    world = World(server, clock, grace=30)
    election = world.manager._election = FakeElection(world.diary)
    election.elected.set()
    let_go = anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await let_go.wait()

    world.manager.add_runnable("stubborn", stubborn)
    with capture_logs() as logs:
        async with world.running():
            assert world.manager.leading
            if how == "signal":
                world.manager.on_signal(signal.SIGTERM)
            else:
                election.lost.set()
                await settle()
                assert not world.manager.leading
            await clock.advance(29)
            assert world.exits == []
            await clock.advance(1)
            assert world.exits == [1]
            let_go.set()
    (said,) = [entry for entry in logs if "did not stop in time" in entry["event"]]
    assert (said["log_level"], said["still_running"]) == ("error", ["stubborn"])


async def test_who_stopped_in_time_is_left_alone(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock, grace=30)
    async with world.running():
        world.manager.on_signal(signal.SIGTERM)
    await clock.advance(60)
    assert world.exits == []


async def test_who_cannot_catch_up_does_not_work(server: FakeApiServer, clock: FakeClock) -> None:
    """A cancellation that nobody asked for would end the reading anew as if it were done."""
    world = World(server, clock)
    election = world.manager._election = FakeElection(world.diary)
    election.succeeds = True
    election.elected.set()
    world.informer.refresh = cancelled_by_somebody  # type: ignore[method-assign]
    with capture_logs() as logs:
        async with world.running():
            pass
    assert world.result == 1
    assert "+loop" not in world.diary
    (said,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (said["event"], said["task"]) == ("a task crashed", "reading anew things.test.dev")
    assert "released" in world.diary


@pytest.mark.parametrize("where", ["leader", "common", "hold"])
async def test_a_cancellation_that_nobody_asked_for_is_no_silent_end(
    server: FakeApiServer, clock: FakeClock, where: str
) -> None:
    world = World(server, clock)
    if where == "hold":
        election = FakeElection(world.diary)
        election.elected.set()
        election.hold = cancelled_by_somebody  # type: ignore[method-assign]
        world.manager._election = election
    else:
        world.manager.add_runnable("x", cancelled_by_somebody, needs_leader=where == "leader")
    with capture_logs() as logs:
        async with world.running():
            pass
    assert world.result == (0 if where == "hold" else 1)
    (said,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert said["event"] == ("leadership was lost" if where == "hold" else "a task crashed")


async def test_leadership_acquired_while_it_stops_is_given_back(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    election = world.manager._election = FakeElection(world.diary)
    async with world.running():
        election.elected.set()
        world.manager.on_signal(signal.SIGTERM)
    assert "+loop" not in world.diary
    assert "released" in world.diary


async def test_two_caches_of_one_resource_are_told_apart(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", "one"))
    manager = Manager(clock)
    for namespace in ("one", "two"):
        manager.add_informer(make(server, clock, namespace=namespace))
    assert len(manager.why_not_ready()) == len(set(manager.why_not_ready())) == 2
    async with anyio.create_task_group() as group:
        with capture_logs() as logs:
            group.start_soon(lambda: manager.run(handle_signals=False))
            await settle()
        manager.stop("test")
    (said,) = [entry for entry in logs if entry["event"] == "caches are complete"]
    assert said["objects"] == {"things.test.dev": 1, "things.test.dev#2": 0}


async def test_real_signals(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            world.result = await world.manager.run()

        group.start_soon(run)
        await until(lambda: world.manager.leading)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: world.result is not None)
    assert world.result == 0
