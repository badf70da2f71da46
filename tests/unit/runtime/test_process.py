"""From a usable cluster to the exit status, and what becomes of a replica that loses its leadership."""

from __future__ import annotations

import functools
import gc
import os
import signal
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.client import Client
from runtime.clock import Clock, FakeClock, settle
from runtime.election import LeaseElection
from runtime.errors import NotLeading
from runtime.exchange import CallNext, Request, RequestStatistics, Response
from runtime.loop import LoopStatistics
from runtime.manager import Manager
from runtime.metrics import ProcessCollector
from runtime.process import GIVE_BACK, PATIENCE, Program, take_part
from runtime.resources import LEASES
from runtime.usable import Waiting
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, make, thing

pytestmark = pytest.mark.anyio


@dataclass
class World:
    """A process called ``p`` in the namespace ``ours``, and all that was made in it, newest last."""

    server: FakeApiServer
    clock: FakeClock
    leader_elect: bool = True
    meanwhile: Callable[[Client, Clock, Waiting], Coroutine[Any, Any, Any]] | None = None
    reads_in: str | None = None
    clients: list[Client] = field(default_factory=list)
    managers: list[Manager] = field(default_factory=list)
    crash: anyio.Event = field(default_factory=anyio.Event)
    status: int | None = None
    hang: bool = False

    async def maybe_hang(self, request: Request, call_next: CallNext) -> Response:
        if self.hang:
            await anyio.sleep_forever()
        return await call_next(request)

    def add_to(self, client: Client, _clock: Clock, manager: Manager) -> None:
        self.clients.append(client)
        self.managers.append(manager)
        manager.add_informer(make(self.server, self.clock))
        manager.add_runnable("work", self.work)

    async def work(self) -> None:
        await self.crash.wait()
        raise RuntimeError("crashed")

    async def run(self) -> None:
        program = Program("p", "ours", [THINGS], {}, self.add_to, self.meanwhile, self.reads_in)
        collector = ProcessCollector("p", RequestStatistics(), LoopStatistics())
        make_client = functools.partial(self.server.client, self.clock, interceptors=[self.maybe_hang])
        self.status = await take_part(program, self.clock, make_client, collector, self.leader_elect, "me")

    def lease(self, holder: str) -> None:
        spec = {"holderIdentity": holder} if holder else {}
        self.server.put(LEASES, {"metadata": {"name": "p", "namespace": "ours"}, "spec": spec})

    @property
    def holder(self) -> str:
        (lease,) = self.server.objects[LEASES.path()].values()
        return str(lease["spec"].get("holderIdentity", ""))


@pytest.fixture
def world(server: FakeApiServer, clock: FakeClock) -> World:
    made = World(server, clock)
    made.lease("")
    return made


async def test_writes_only_while_it_leads(world: World, server: FakeApiServer, clock: FakeClock) -> None:
    world.lease("another")
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(10)
        assert world.managers[0].phase == "waiting for leadership"
        with pytest.raises(NotLeading, match="another does"):
            await world.clients[0].create(THINGS, thing("a"), "ns")
        lists = len(server.seen("GET", path="/things", watch=False))
        await clock.advance(10)
        assert world.managers[0].leading
        assert len(server.seen("GET", path="/things", watch=False)) == lists + 1, (
            "read anew after the other's last write"
        )
        await world.clients[0].create(THINGS, thing("a"), "ns")
        world.managers[0].on_signal(signal.SIGTERM)
    assert world.status == 0
    assert world.holder == ""


async def test_after_a_loss_it_takes_part_again_from_nothing(world: World, clock: FakeClock) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await settle()
        assert world.managers[0].leading
        world.lease("thief")
        await clock.advance(3)
        assert not world.managers[0].leading
        first, second = world.managers
        assert first is not second
        assert first.caches[THINGS.key] is not second.caches[THINGS.key]
        with pytest.raises(NotLeading):
            await world.clients[0].create(THINGS, thing("a"), "ns")
        await clock.advance(20)
        assert second.leading
        with pytest.raises(NotLeading):
            await world.clients[0].create(THINGS, thing("b"), "ns")
        await world.clients[1].create(THINGS, thing("c"), "ns")
        gone = weakref.ref(first)
        del first, world.managers[0], world.clients[0]
        gc.collect()
        assert gone() is None, "nothing of the old life is kept"
        second.stop("test")
    assert world.status == 0


async def test_a_crash_ends_it_whoever_leads(world: World) -> None:
    world.crash.set()
    await world.run()
    assert world.status == 1
    assert len(world.managers) == 1


async def test_what_it_says_while_it_waits_it_says_as_the_leader(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    said: list[str] = []

    async def meanwhile(client: Client, _clock: Clock, waiting: Waiting) -> None:
        await client.create(THINGS, thing("word"), "ns")
        said.append(waiting.lacks)
        await anyio.sleep_forever()

    world.meanwhile = meanwhile
    fault = server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    world.lease("another")
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE + 14)
        assert said == [], "the other may lead"
        assert [r for r in server.requests if r.verb != "GET"] == []
        await clock.advance(5)
        assert ["test.dev/v1" in line for line in said] == [True]
        server.faults.remove(fault)
        await clock.advance(40)
        assert world.managers[0].leading, "and goes on to work without waiting for itself"
        world.managers[0].stop("test")


@dataclass
class Words:
    """What a process says while it waits: each time it begins, and how often it was stopped."""

    begun: list[Client] = field(default_factory=list)
    ended: int = 0

    async def say(self, client: Client, _clock: Clock, _waiting: Waiting) -> None:
        self.begun.append(client)
        try:
            await anyio.sleep_forever()
        finally:
            self.ended += 1


async def test_a_stop_while_it_waits_gives_leadership_back(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    words = Words()
    world.meanwhile = words.say
    server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE + 1)
        assert (len(words.begun), world.holder) == (1, "me")
        os.kill(os.getpid(), signal.SIGTERM)
    assert world.status == 0
    assert (words.ended, world.holder) == (1, "")


async def test_a_stop_is_not_held_up_by_an_api_server_that_does_not_take_leadership_back(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    words = Words()
    world.meanwhile = words.say
    server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE + 1)
        world.hang = True
        os.kill(os.getpid(), signal.SIGTERM)
        await settle()
        assert world.status is None
        await clock.advance(GIVE_BACK)
        assert world.status == 0
    assert words.ended == 1


async def test_what_it_says_while_it_waits_it_says_again_as_a_new_leader(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    words = Words()
    world.meanwhile = words.say
    fault = server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE + 1)
        world.lease("thief")
        await clock.advance(3)
        assert (len(words.begun), words.ended, world.holder) == (1, 1, "thief"), "nothing is taken from the new leader"
        await clock.advance(20)
        first, second = words.begun
        assert world.holder == "me"
        await second.create(THINGS, thing("word"), "ns")
        with pytest.raises(NotLeading):
            await first.create(THINGS, thing("old"), "ns")
        server.faults.remove(fault)
        await clock.advance(40)
        assert (words.ended, world.managers[0].leading) == (2, True)
        world.managers[0].stop("test")


async def test_an_election_that_fails_while_it_waits_is_a_loss(
    world: World, server: FakeApiServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words()
    world.meanwhile = words.say
    server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    hold, failures = LeaseElection.hold, [RuntimeError("broken")]

    async def hold_or_fail(self: LeaseElection) -> None:
        await clock.sleep(1)
        if failures:
            raise failures.pop()
        await hold(self)

    monkeypatch.setattr(LeaseElection, "hold", hold_or_fail)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        with capture_logs() as logs:
            await clock.advance(PATIENCE + 10)
        assert [log["event"] for log in logs if log["log_level"] == "error"] == ["leadership was lost"]
        assert (len(words.begun), words.ended, world.holder) == (2, 1, "me")
        os.kill(os.getpid(), signal.SIGTERM)
    assert world.status == 0


@pytest.mark.parametrize("namespace", [None, "ours"])
async def test_it_looks_where_it_reads(world: World, server: FakeApiServer, namespace: str | None) -> None:
    """A Role in one namespace does not allow to list them all."""
    world.reads_in = namespace
    world.crash.set()
    await world.run()
    looked = server.seen("GET", path="/things", watch=False)[0]
    assert looked.path == THINGS.path(namespace)


async def test_what_a_starting_server_lacks_for_a_moment_is_not_told(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    world.meanwhile = None
    server.fail(status(403, "Forbidden"), path="/things", verb="GET", times=2)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE)
        assert world.managers[0].leading
        world.managers[0].stop("test")


async def test_without_election_it_works_at_once_and_writes_no_lease(world: World, server: FakeApiServer) -> None:
    world.leader_elect = False
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await settle()
        assert world.managers[0].leading
        await world.clients[0].create(THINGS, thing("a"), "ns")
        world.managers[0].stop("test")
    assert not [request for request in server.requests if "/leases" in request.path]


async def test_what_it_says_without_election_may_come_to_its_end(
    world: World, server: FakeApiServer, clock: FakeClock
) -> None:
    said: list[str] = []

    async def meanwhile(_client: Client, _clock: Clock, waiting: Waiting) -> None:
        said.append(waiting.lacks)

    world.meanwhile, world.leader_elect = meanwhile, False
    fault = server.fail(status(404, "NotFound"), path="/things", verb="GET", times=10**6)
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await clock.advance(PATIENCE + 1)
        server.faults.remove(fault)
        await clock.advance(40)
        assert world.managers[0].leading
        world.managers[0].stop("test")
    assert len(said) == 1
