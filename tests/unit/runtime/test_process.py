"""From a usable cluster to the exit status, and what becomes of a replica that loses its leadership."""

from __future__ import annotations

import functools
import gc
import signal
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from runtime.client import Client
from runtime.clock import Clock, FakeClock, settle
from runtime.errors import NotLeading
from runtime.exchange import RequestStatistics
from runtime.loop import LoopStatistics
from runtime.manager import Manager
from runtime.metrics import ProcessCollector
from runtime.process import PATIENCE, Program, take_part
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
    clients: list[Client] = field(default_factory=list)
    managers: list[Manager] = field(default_factory=list)
    crash: anyio.Event = field(default_factory=anyio.Event)
    status: int | None = None

    def add_to(self, client: Client, _clock: Clock, manager: Manager) -> None:
        self.clients.append(client)
        self.managers.append(manager)
        manager.add_informer(make(self.server, self.clock))
        manager.add_runnable("work", self.work)

    async def work(self) -> None:
        await self.crash.wait()
        raise RuntimeError("crashed")

    async def run(self) -> None:
        program = Program("p", "ours", [THINGS], {}, self.add_to, self.meanwhile)
        collector = ProcessCollector("p", RequestStatistics(), LoopStatistics())
        make_client = functools.partial(self.server.client, self.clock)
        self.status = await take_part(program, self.clock, make_client, collector, self.leader_elect, "me")

    def lease(self, holder: str) -> None:
        spec = {"holderIdentity": holder} if holder else {}
        self.server.put(LEASES, {"metadata": {"name": "p", "namespace": "ours"}, "spec": spec})


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
    (lease,) = server.objects[LEASES.path()].values()
    assert lease["spec"]["holderIdentity"] == ""


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
