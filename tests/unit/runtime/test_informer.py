from __future__ import annotations

import functools
import gc
import random
import weakref
from typing import Any, ClassVar

import anyio
import msgspec
import pytest
from pydantic import BaseModel, Field
from structlog.testing import capture_logs

from runtime.client import Client
from runtime.clock import FakeClock, settle
from runtime.exchange import SLICE, CallNext, Request, Response
from runtime.informer import Informer, InformerStatistics
from runtime.reflector import ReflectorStatistics
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, Highest, Recorder, Spec, Thing, content, make, running, thing, truth

pytestmark = pytest.mark.anyio


async def test_lists_then_watches(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("b"))
        server.put(THINGS, thing("a", size=2))
        server.remove(THINGS, "b", "ns")
        await settle()
        assert seen.summary == ["add a", "add b", "update a", "delete b"]
        _, held, last = seen.events[3]
        assert held is seen.events[1][2]
        assert last is not None
        assert last.metadata.resource_version == str(server.version), "its last state"
        assert content(informer) == truth(server)
        assert informer.healthy
    assert not informer.healthy, "a reflector that does not run is not healthy"


async def test_counts(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    server.put(THINGS, thing("unreadable", color=7))
    server.fail(status(503, "ServiceUnavailable"), times=2, watch=False)
    server.fail(status(503, "ServiceUnavailable"), watch=True)
    informer = make(server, clock, rng=Highest())
    assert informer.statistics == InformerStatistics(0, False, False, 0, ReflectorStatistics())
    async with running(informer.run):
        await clock.advance(0.8 + 1.6 + 3.2)
        server.put(THINGS, thing("b"))
        server.put(THINGS, thing("b", size=2))
        server.send_raw(b'{"type":"NEW","object":{"metadata":{}}}\n')
        server.send_raw(b'{"type":"NEW","object":{"metadata":{}}}\n')
        for _ in range(4):
            server.bookmark()
        await settle()
        server.end_watches()
        await settle()
        expected = ReflectorStatistics(lists=1, watches=3, events=2, bookmarks=4, undecodable=3, failures=3)
        assert informer.statistics == InformerStatistics(2, True, True, 0, expected)
        before = informer.statistics
        server.put(THINGS, thing("c"))
        await settle()
        assert before.reflector == expected, "a copy"


async def test_not_healthy_before_the_first_answer(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    server.fail("refuse")
    assert not informer.healthy
    async with running(informer.run):
        assert not informer.healthy
        await clock.advance(1)
        assert informer.healthy
    assert not informer.healthy


async def test_the_defaults_of_a_list_and_a_watch(server: FakeApiServer, clock: FakeClock) -> None:
    class Bounds(random.Random):
        bounds: ClassVar[list[int]] = []

        def randint(self, a: int, b: int) -> int:
            self.bounds += [a, b]
            return b

    async with running(make(server, clock, rng=Bounds()).run):
        list_request, watch_request = server.requests
        assert (list_request.params or {})["limit"] == "500"
        assert (watch_request.params or {})["timeoutSeconds"] == "600"
        assert Bounds.bounds == [300, 600]


async def test_synced_means_the_handlers_know_all(server: FakeApiServer, clock: FakeClock) -> None:
    for n in range(7):
        server.put(THINGS, thing(f"t{n}"))
    informer, known_when_synced = make(server, clock, page_size=3), []
    informer.add_handler(lambda *_: known_when_synced.append(informer.synced.is_set()))
    async with running(informer.run):
        assert informer.synced.is_set()
        assert known_when_synced == [False] * 7
    assert [r.params["limit"] for r in server.seen("GET", watch=False) if r.params] == ["3", "3", "3"]


async def test_a_refresh_is_a_list_that_begins_after_it(server: FakeApiServer, clock: FakeClock) -> None:
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        for watch in server.watches:
            watch.stalled = True
        server.put(THINGS, thing("a"))
        await settle()
        assert seen.summary == []
        await informer.refresh()
        assert seen.summary == ["add a"]
        assert len(server.seen("GET", watch=False)) == 2
        await settle()
        server.put(THINGS, thing("b"))
        await settle()
        assert seen.summary == ["add a", "add b"], "and watches on from there"
        assert len(server.seen("GET", watch=True)) == 2


async def test_a_refresh_waits_for_a_server_that_is_down_and_for_a_list_of_its_own(
    server: FakeApiServer, clock: FakeClock
) -> None:
    listing, gate = anyio.Event(), anyio.Event()

    async def slow(request: Request, call_next: CallNext) -> Response:
        answer = await call_next(request)
        if "watch" not in (request.params or {}) and not gate.is_set():
            listing.set()
            await gate.wait()
        return answer

    informer = Informer(server.client(clock, interceptors=[slow]), THINGS, Thing, clock=clock)
    done = anyio.Event()

    async def refresh() -> None:
        await informer.refresh()
        done.set()

    async with running(informer.run) as group:
        await listing.wait()
        server.put(THINGS, thing("a"))  # the first list has been read without it
        group.start_soon(refresh)
        await settle()
        server.fail("refuse", times=2)
        gate.set()
        await settle()
        assert not done.is_set()
        await clock.advance(90)
        assert done.is_set()
        assert content(informer) == truth(server)


async def test_a_late_handler_is_told_what_is_there(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    informer, late = make(server, clock), Recorder()
    async with running(informer.run):
        informer.add_handler(late)
        server.put(THINGS, thing("a", size=2))
        await settle()
        assert late.summary == ["add a", "update a"]


async def test_a_deletion_missed_while_disconnected_is_told_once(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", color="red"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.fail("refuse", times=1)
        server.end_watches("reset")
        server.remove(THINGS, "a", "ns")
        server.compact()
        await clock.advance(120)
        deletions = [event for event in seen.events if event[0] == "delete"]
        assert len(deletions) == 1
        _, old, new = deletions[0]
        assert old is not None
        assert old.spec.color == "red", "the last known object"
        assert new is None, "nobody told its last state"
        assert content(informer) == truth(server) == {}


@pytest.mark.parametrize("missed", [False, True])
async def test_recreation_is_a_deletion_and_an_addition(server: FakeApiServer, clock: FakeClock, missed: bool) -> None:
    server.put(THINGS, thing("a", color="red"))
    informer, seen = make(server, clock), Recorder()
    informer.store.add_index("color", lambda o: [o.spec.color])
    informer.add_handler(seen)
    async with running(informer.run):
        if missed:
            server.end_watches("reset")
        server.remove(THINGS, "a", "ns")
        server.put(THINGS, thing("a", color="blue"))
        if missed:
            server.compact()
        await clock.advance(60)
        assert seen.summary == ["add a", "delete a", "add a"]
        first, second = seen.events[0][2], seen.events[2][2]
        assert first is not None
        assert second is not None
        assert first.metadata.uid != second.metadata.uid
        assert informer.store.by_index("color", "red") == []
        assert [o.spec.color for o in informer.store.by_index("color", "blue")] == ["blue"]


async def test_handler_exceptions_are_counted_and_harmless(server: FakeApiServer, clock: FakeClock) -> None:
    informer, seen = make(server, clock), Recorder()

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    nameless = functools.partial(broken)
    informer.add_handler(nameless)
    informer.add_handler(seen)
    async with running(informer.run):
        with capture_logs() as logs:
            server.put(THINGS, thing("a"))
            server.put(THINGS, thing("b"))
            await settle()
            informer.add_handler(broken)
        assert seen.summary == ["add a", "add b"]
        assert informer.statistics.handler_errors == 4
        assert [(log["resource"], log["exc_info"]) for log in logs] == [("things.test.dev", True)] * 4
        named = "test_handler_exceptions_are_counted_and_harmless.<locals>.broken"
        assert [log["handler"] for log in logs] == [repr(nameless)] * 2 + [named] * 2


async def test_a_long_list_is_told_in_slices(server: FakeApiServer, clock: FakeClock) -> None:
    """Others run in between: what they see is the whole store, and that handlers do not know all of it yet."""
    for n in range(5):
        server.put(THINGS, thing(f"t{n}"))
    informer, seen, late = make(server, clock), Recorder(), Recorder()
    between: list[tuple[int, int, bool]] = []

    def slow(*change: Any) -> None:
        assert informer.replacing
        seen(*change)
        clock.tick(0.6 * SLICE)

    async def other() -> None:
        while not informer.synced.is_set():
            if informer.replacing:
                between.append((len(seen.events), len(informer.store), informer.synced.is_set()))
                if len(between) == 1:
                    informer.add_handler(late)
            await anyio.lowlevel.checkpoint()

    informer.add_handler(slow)
    async with running(other, informer.run):
        assert between == [(2, 5, False), (4, 5, False)]
        assert seen.summary == late.summary == [f"add t{n}" for n in range(5)]
        assert not informer.replacing


async def test_a_long_list_is_filed_in_slices(server: FakeApiServer, clock: FakeClock) -> None:
    """Others run in between: what they see is the whole state from before, also by the indexes."""
    for n in range(5):
        server.put(THINGS, thing(f"t{n}", size=n))
    informer = make(server, clock)
    filed: list[str] = []
    between: list[tuple[int, int, int]] = []

    def sizes(obj: Thing) -> list[int]:
        filed.append(obj.metadata.name)
        clock.tick(0.6 * SLICE)
        return [obj.spec.size]

    async def other() -> None:
        while not informer.synced.is_set():
            seen = (len(filed), len(informer.store), len(informer.store.index_keys("size")))
            if seen not in between:
                between.append(seen)
            await anyio.lowlevel.checkpoint()

    informer.store.add_index("size", sizes)
    async with running(other, informer.run):
        assert between == [(0, 0, 0), (2, 0, 0), (4, 0, 0)]
        assert content(informer) == truth(server)
        assert sorted(o.spec.size for o in informer.store.by_index("size", 4)) == [4]


async def test_selectors_namespace_and_transform(server: FakeApiServer, clock: FakeClock) -> None:
    for name, namespace, color in (("a", "ns", "red"), ("b", "ns", "blue"), ("c", "other", "red")):
        server.put(THINGS, thing(name, namespace, color=color, size=9))
    informer = make(
        server,
        clock,
        namespace="ns",
        field_selector="spec.color!=blue",
        transform=lambda o: msgspec.structs.replace(o, spec=msgspec.structs.replace(o.spec, size=0)),
    )
    seen = Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("a", color="blue"))
        server.put(THINGS, thing("d", color="red", size=3))
        await settle()
        assert seen.summary == ["add a", "delete a", "add d"], "out of the selector is a deletion"
        assert [o.spec.size for o in informer.store] == [0]


async def test_a_transform_and_a_decoder_for_each_way_in(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("listed", size=9))

    def decode(data: bytes) -> Thing:
        obj = msgspec.json.decode(data, type=Thing)
        return msgspec.structs.replace(obj, spec=Spec("decoded", obj.spec.size))

    def transform(obj: Thing) -> Thing:
        return msgspec.structs.replace(obj, spec=Spec(obj.spec.color, obj.spec.size + 1))

    informer = make(server, clock, decode=decode, transform=transform, label_selector="hidden!=yes")
    async with running(informer.run):
        server.put(THINGS, thing("watched", size=4))
        hidden = thing("hidden")
        hidden["metadata"]["labels"] = {"hidden": "yes"}
        server.put(THINGS, hidden)
        await settle()
        assert {o.metadata.name: o.spec for o in informer.store} == {
            "listed": Spec("decoded", 10),
            "watched": Spec("decoded", 5),
        }


async def test_an_informer_that_is_gone_keeps_nothing_alive(server: FakeApiServer, clock: FakeClock) -> None:
    class Reader:
        def decode(self, data: bytes) -> Thing:
            return msgspec.json.decode(data, type=Thing)

        def transform(self, obj: Thing) -> Thing:
            return obj

    reader = Reader()
    informers = [make(server, clock, decode=reader.decode, transform=t) for t in (None, reader.transform)]
    for informer in informers:
        async with running(informer.run):
            assert informer.synced.is_set()
    gone = weakref.ref(reader)
    del reader, informer, informers
    gc.collect()
    assert gone() is None


async def test_an_event_of_the_usual_shape_is_decoded_once(server: FakeApiServer, clock: FakeClock) -> None:
    read: list[bytes] = []

    def decode(data: bytes) -> Thing:
        read.append(bytes(data))
        return msgspec.json.decode(data, type=Thing)

    async with running(make(server, clock, decode=decode).run):
        written = server.put(THINGS, thing("a"))
        server.remove(THINGS, "a", "ns")
        await settle()
        assert len(read) == 2
        assert msgspec.json.decode(read[0]) == written


async def test_what_it_is_called(server: FakeApiServer, clock: FakeClock) -> None:
    assert make(server, clock).name == "things.test.dev"


async def test_a_pydantic_kind(server: FakeApiServer, clock: FakeClock) -> None:
    class PMeta(BaseModel):
        name: str
        namespace: str | None = None
        uid: str | None = None
        resource_version: str | None = Field(default=None, alias="resourceVersion")

    class PThing(BaseModel):
        metadata: PMeta

    server.put(THINGS, thing("a"))
    informer = Informer(server.client(clock), THINGS, PThing, clock=clock)
    async with running(informer.run):
        found = informer.store.get("ns", "a")
        assert isinstance(found, PThing)
        assert found.metadata.resource_version == str(server.version)


async def test_cached_objects_cannot_be_changed(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    informer = make(server, clock)
    async with running(informer.run):
        obj = informer.store.get("ns", "a")
        with pytest.raises(AttributeError):
            obj.spec.color = "black"  # type: ignore[union-attr,misc]


async def test_many_informers_share_a_client(server: FakeApiServer, clock: FakeClock) -> None:
    client: Client = server.client(clock)
    informers = [Informer(client, THINGS, Thing, clock=clock, namespace=f"n{i}") for i in range(20)]
    async with running(*(informer.run for informer in informers)):
        server.put(THINGS, thing("a", "n7"))
        await settle()
        assert [len(informer.store) for informer in informers] == [int(i == 7) for i in range(20)]
    assert server.watches == [], "no stream outlives its informer"


async def test_a_transform_that_fails_skips_that_object(server: FakeApiServer, clock: FakeClock) -> None:
    def transform(obj: Thing) -> Thing:
        if obj.spec.color == "odd":
            raise KeyError(obj.metadata.name)
        return obj

    server.put(THINGS, thing("a"))
    server.put(THINGS, thing("b", color="odd"))
    informer = make(server, clock, transform=transform)
    async with running(informer.run):
        server.put(THINGS, thing("c", color="odd"))
        server.put(THINGS, thing("d"))
        await settle()
        assert sorted(obj.metadata.name for obj in informer.store) == ["a", "d"]
        assert informer.statistics.reflector.undecodable == 2


async def test_objects_without_metadata_are_refused_at_once(server: FakeApiServer, clock: FakeClock) -> None:
    with pytest.raises(TypeError, match=r"things\.test\.dev needs a type"):
        Informer(server.client(clock), THINGS, clock=clock)
