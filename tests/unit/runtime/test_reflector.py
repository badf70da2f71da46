from __future__ import annotations

import json
import random

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.clock import FakeClock, settle
from runtime.exchange import CallNext, Request, Response
from runtime.informer import Informer
from runtime.reflector import CONTACT_LIMIT
from tests.unit.fakes.apiserver import FakeApiServer, status, streamed

from .things import THINGS, Highest, Recorder, Thing, content, make, running, thing, truth

pytestmark = pytest.mark.anyio

FORBIDDEN = (
    'things.test.dev is forbidden: User "system:serviceaccount:phalanx-system:controllers" cannot list resource '
    '"things" in API group "test.dev" at the cluster scope'
)


@pytest.mark.parametrize("how", ["status", "event"])
async def test_410_lists_once_and_never_resumes_there(server: FakeApiServer, clock: FakeClock, how: str) -> None:
    server.gone_as = how  # type: ignore[assignment]
    informer = make(server, clock)
    async with running(informer.run):
        await clock.advance(5)
        server.end_watches()
        server.put(THINGS, thing("a"))
        server.compact()
        expired = [r.params["resourceVersion"] for r in server.seen("GET", watch=True) if r.params][-1]
        await settle()
        assert len(server.seen("GET", watch=False)) == 1, "only after a back-off"
        await clock.advance(0.8)
        assert len(server.seen("GET", watch=False)) == 2
        assert content(informer) == truth(server)
        versions = [r.params["resourceVersion"] for r in server.seen("GET", watch=True) if r.params]
        assert versions.count(expired) == 2, "once for the first watch, once to learn that it is gone"
        assert versions[-1] == str(server.version)


async def test_a_clean_close_resumes_without_a_list(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("b"))
        await settle()
        last = str(server.version)
        server.end_watches()
        server.put(THINGS, thing("c"))
        await settle()
        assert seen.summary == ["add a", "add b", "add c"]
        assert len(server.seen("GET", watch=False)) == 1
        assert server.seen("GET", watch=True)[-1].params["resourceVersion"] == last  # type: ignore[index]
        assert clock.slept == [], "a server that ends a watch in its own time is not a failure"


async def test_a_bookmark_moves_the_version_and_is_nothing_else(server: FakeApiServer, clock: FakeClock) -> None:
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("elsewhere"))
        await settle()
        seen.events.clear()
        server.version += 50  # other resources' writes
        server.bookmark()
        await settle()
        server.end_watches()
        await settle()
        request = server.seen("GET", watch=True)[-1]
        assert request.params["resourceVersion"] == str(server.version)  # type: ignore[index]
        assert request.params["allowWatchBookmarks"] == "true"  # type: ignore[index]
        assert seen.events == []


async def test_a_server_that_hangs_up_at_once_is_not_asked_in_a_loop(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(Response(200, chunks=None), watch=True, times=1000)
    informer = make(server, clock)
    async with running(informer.run):
        await clock.advance(60)
        assert 3 < len(server.seen("GET", watch=True)) < 30


async def test_a_server_that_hangs_up_after_events_is_not_asked_in_a_loop(
    server: FakeApiServer, clock: FakeClock
) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.put(THINGS, thing("a"))
        server.bookmark()
        server.bookmark()
        await settle()
        server.fail(Response(200, chunks=None), watch=True, times=1000)
        server.end_watches()
        await clock.advance(60)
        assert 3 < len(server.seen("GET", watch=True)) < 30


@pytest.mark.parametrize(("seconds", "waits"), [(0.9, 1), (1.0, 0), (30.0, 0)])
async def test_a_watch_is_short_below_a_second(
    server: FakeApiServer, clock: FakeClock, seconds: float, waits: int
) -> None:
    async with running(make(server, clock).run):
        await clock.advance(seconds)
        server.end_watches()
        await settle()
        assert len(clock.slept) == waits


async def test_a_silent_stream_is_given_up_and_resumed(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.watches[0].stalled = True
        await clock.advance(50)
        server.put(THINGS, thing("a"))  # stuck in the half-open connection
        await clock.advance(24)
        assert len(server.seen("GET", watch=True)) == 1
        await clock.advance(2)
        assert len(server.seen("GET", watch=True)) == 2
        assert len(server.seen("GET", watch=False)) == 1, "no list"
        assert content(informer) == truth(server)


async def test_a_quiet_resource_alarms_nobody(server: FakeApiServer, clock: FakeClock) -> None:
    """The first bookmark of a resource that never changes comes late: the watch is opened anew, and that is all."""
    informer = make(server, clock)
    with capture_logs() as logs:
        async with running(informer.run):
            await clock.advance(76)
            assert len(server.seen("GET", watch=True)) == 2
    assert logs == []
    assert informer.statistics.reflector.failures == 1


async def test_a_watch_that_is_never_answered_is_told(server: FakeApiServer, clock: FakeClock) -> None:
    async def hang(request: Request, call_next: CallNext) -> Response:
        if "watch" in (request.params or {}):
            server.requests.append(request)
            await anyio.sleep_forever()
        return await call_next(request)

    informer = Informer(server.client(clock, interceptors=[hang]), THINGS, Thing, clock=clock)
    with capture_logs() as logs:
        async with running(informer.run):
            await clock.advance(5 * 60)
            assert 3 <= len(server.seen("GET", watch=True)) <= 4, "and tried again"
            assert not informer.healthy
    assert len(logs) == 3
    assert all("did not answer (no answer to a watch within 75 s)" in line["event"] for line in logs)


async def test_bookmarks_keep_a_quiet_stream_alive(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        for _ in range(5):
            await clock.advance(60)
            server.bookmark()
            await settle()
        assert len(server.seen("GET", watch=True)) == 1
        assert informer.healthy


async def test_an_expired_continue_token_starts_the_list_over(server: FakeApiServer, clock: FakeClock) -> None:
    for n in range(5):
        server.put(THINGS, thing(f"t{n}"))
    views: list[int] = []
    informer = make(server, clock, page_size=2)

    def expire(_request: Request) -> Response:
        views.append(len(informer.store))
        server.remove(THINGS, "t0", "ns")  # between two pages
        return status(410, "Expired", "The provided continue parameter is too old")

    async with running(informer.run):
        assert len(informer.store) == 5
        server.compact()
        server.fail(expire, path="things", watch=False, times=0)
        server.faults[-1].matches = lambda r: "continue" in (r.params or {})
        server.faults[-1].times = 1
        server.end_watches("reset")
        server.put(THINGS, thing("t9"))
        server.compact()
        await clock.advance(60)
        assert views == [5], "the old state stays readable until the new one is whole"
        assert "limit" not in (server.seen("GET", watch=False)[-1].params or {}), "pages were too slow: all in one"
        assert content(informer) == truth(server)
        assert len(informer.store) == 5
        server.end_watches("reset")
        server.put(THINGS, thing("t8"))
        server.compact()
        await clock.advance(60)
        assert (server.seen("GET", watch=False)[-1].params or {})["limit"] == "2", "for that time only"
        assert content(informer) == truth(server)


async def test_429_waits_as_long_as_it_is_told(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(status(429, "TooManyRequests", retryAfterSeconds=17), watch=False)
    informer = make(server, clock, rng=random.Random(1))
    async with running(informer.run):
        await clock.advance(16.9)
        assert len(server.seen("GET")) == 1
        await clock.advance(1)
        assert informer.synced.is_set()


async def test_failures_back_off_to_a_cap_and_are_forgotten(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("refuse", times=9)
    informer = make(server, clock, rng=Highest())
    async with running(informer.run):
        await clock.advance(141)
        assert clock.slept == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
        assert informer.synced.is_set()
        for _ in range(5):  # healthy for a while
            await clock.advance(60)
            server.bookmark()
            await settle()
        server.fail("refuse", times=1)
        server.end_watches("reset")
        await clock.advance(5)
        # The reset is the first failure of a new series, and the refusal the second.
        assert clock.slept[9:] == [0.8, 1.6]


async def test_an_outage_does_not_delay_the_list_that_follows_it(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock, rng=Highest())
    async with running(informer.run):
        server.fail("refuse", times=8)
        server.end_watches("reset")
        server.put(THINGS, thing("a"))
        server.compact()
        await clock.advance(0.8 + 1.6 + 3.2 + 6.4 + 12.8 + 25.6 + 30 * 3)
        assert clock.slept[-1] == 0.8
        await clock.advance(0.8)
        assert content(informer) == truth(server)


async def test_lists_that_expire_each_time_wait_longer_each_time(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(status(410, "Expired"), times=4)
    async with running(make(server, clock, rng=Highest()).run):
        await clock.advance(20)
        assert clock.slept == [0.8, 1.6, 3.2, 6.4]


async def test_jitter_is_full(clock: FakeClock, server: FakeApiServer) -> None:
    server.fail("refuse", times=40)
    informer = make(server, clock, rng=random.Random(7))
    async with running(informer.run):
        await clock.advance(600)
        late = clock.slept[8:40]
        assert max(late) <= 30
        assert min(late) < 10 < 20 < max(late)


@pytest.mark.parametrize(
    ("line", "lists", "logged", "fields"),
    [
        (b"this is not JSON\n", 2, "not an event", {}),
        (b'{"type":"ADDED","object":[]}\n', 2, "no readable metadata", {}),
        (b'{"type":"ERROR","object":[]}\n', 2, "an unreadable ERROR", {}),
        (
            b'{"type":"WEIRD","object":{"metadata":{"resourceVersion":"100"}}}\n',
            1,
            "unknown type",
            {"type": "WEIRD", "log_level": "error"},
        ),
        (
            b'{"type":"ADDED","object":{"metadata":{"name":"x","uid":"u"},"spec":7}}\n',
            1,
            "cannot be read",
            {"key": ("", "x"), "error": "Expected `object`, got `int` - at `$.spec`", "log_level": "error"},
        ),
        (b'{"type":"ERROR","object":{"code":500,"message":"etcd has no leader"}}\n', 1, "etcd has no leader", {}),
    ],
)
async def test_a_bad_line_is_never_a_dead_task(
    server: FakeApiServer, clock: FakeClock, line: bytes, lists: int, logged: str, fields: dict[str, object]
) -> None:
    informer = make(server, clock, rng=Highest())
    with capture_logs() as logs:
        async with running(informer.run):
            server.send_raw(line)
            await clock.advance(1)
            server.put(THINGS, thing("after"))
            await settle()
            assert len(server.seen("GET", watch=False)) == lists
            assert content(informer) == truth(server)
    [found] = [entry for entry in logs if logged in str(entry)]
    expected = {"event": found["event"], "resource": "things.test.dev"}
    assert found == expected | (fields or {"log_level": "warning", "retry_in": 0.8})


async def test_an_error_names_the_namespace_that_was_watched(server: FakeApiServer, clock: FakeClock) -> None:
    with capture_logs() as logs:
        async with running(make(server, clock, namespace="ns").run):
            server.send_raw(b'{"type":"ERROR","object":{"code":500,"message":"etcd has no leader"}}\n')
            await settle()
    assert "things.test.dev in namespace ns" in logs[0]["event"]


async def test_an_event_of_unknown_type_is_not_asked_for_again(server: FakeApiServer, clock: FakeClock) -> None:
    async with running(make(server, clock).run):
        server.send_raw(b'{"type":"WEIRD","object":{"metadata":{"resourceVersion":"107"}}}\n')
        server.send_raw(b'{"type":"WEIRD","object":{"metadata":{}}}\n')
        await clock.advance(2)
        server.end_watches()
        await settle()
        assert (server.seen("GET", watch=True)[-1].params or {})["resourceVersion"] == "107"


@pytest.mark.parametrize(
    "shape",
    [
        b'{"type":"ADDED","object":%b}\n',
        b'{"type": "ADDED", "object": %b}\n',
        b'{"type":"ADDED","object":%b} \n',
        b'{"type":"ADDED","object":%b,"extra":{"object":1}}\n',
        b'{"object":%b,"type":"ADDED"}\n',
        b'{"extra":{"type":"DELETED","object":{}},"type":"ADDED","object":%b}\n',
    ],
)
async def test_events_of_any_shape_are_read(server: FakeApiServer, clock: FakeClock, shape: bytes) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.send_raw(shape % b'{"metadata":{"name":"x","namespace":"ns","uid":"u","resourceVersion":"101"}}')
        await settle()
        assert content(informer) == {("ns", "x"): ("u", "101")}
        assert informer.statistics.reflector.lists == 1
        assert informer.statistics.reflector.undecodable == 0


async def test_an_unreadable_object_keeps_its_last_state_until_deleted(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", color="red"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("a", color=["not", "a", "string"]))
        await settle()
        assert [o.spec.color for o in informer.store] == ["red"]
        server.end_watches("reset")
        server.compact()
        server.put(THINGS, thing("b"))
        server.compact()
        await clock.advance(30)
        assert informer.statistics.reflector.lists == 2
        assert seen.summary == ["add a", "add b"], "a list that cannot be read whole deletes nothing"
        server.remove(THINGS, "a", "ns")
        await settle()
        assert seen.summary[-1] == "delete a"
        assert informer.statistics.reflector.undecodable == 3


async def test_an_event_told_twice_does_not_bring_back_what_was_deleted(
    server: FakeApiServer, clock: FakeClock
) -> None:
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.put(THINGS, thing("a"))
        server.remove(THINGS, "a", "ns")
        for _, _, kind, obj, _ in server.history:
            server.watches[0].send_event(kind, obj)
        await settle()
        assert seen.summary == ["add a", "delete a"]


async def test_a_server_that_counts_otherwise_is_taken_at_its_word(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        for kind, version in (("ADDED", "x9"), ("BOOKMARK", "x8"), ("MODIFIED", "x7"), ("BOOKMARK", "")):
            meta = {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": version}
            server.watches[0].send_event(kind, {"metadata": meta})
        await settle()
        assert content(informer) == {("ns", "a"): ("u", "x7")}
        assert informer.statistics.reflector.failures == 0


@pytest.mark.parametrize("sign", ["bookmark", "status"])
async def test_a_server_restored_to_an_older_state_is_listed_again(
    server: FakeApiServer, clock: FakeClock, sign: str
) -> None:
    server.put(THINGS, thing("a"))
    informer = make(server, clock)
    async with running(informer.run):
        server.remove(THINGS, "a", "ns")
        server.version = 50
        server.history.clear()
        server.put(THINGS, thing("old"))
        if sign == "bookmark":
            server.watches[0].lines.clear()
            server.bookmark()
        else:
            server.end_watches("reset")
            server.fail(status(504, "Timeout", "Timeout: Too large resource version: 102, current: 51"), watch=True)
        await clock.advance(5)
        assert content(informer) == truth(server)
        assert set(content(informer)) == {("ns", "old")}


async def test_a_failing_list_says_so_once_a_minute_and_recovers(server: FakeApiServer, clock: FakeClock) -> None:
    class Early(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return 0.86 * b

    server.fail(status(403, "Forbidden", FORBIDDEN), watch=False, times=40)
    informer = make(server, clock, rng=Early())
    with capture_logs() as logs:
        async with running(informer.run):
            await clock.advance(59)
            warnings = [entry for entry in logs if entry["log_level"] == "warning"]
            assert len(server.seen("GET")) > 3
            assert len(warnings) == 1
            assert "ServiceAccount phalanx-system/controllers" in warnings[0]["event"]
            assert "'list' on things.test.dev" in warnings[0]["event"]
            assert warnings[0] | {"event": ""} == {
                "event": "",
                "log_level": "warning",
                "resource": "things.test.dev",
                "retry_in": 0.7,
            }
            await clock.advance(240)
            warnings = [entry for entry in logs if entry["log_level"] == "warning"]
            assert 3 <= len(warnings) <= 5
            server.faults.clear()
            await clock.advance(31)
            assert informer.synced.is_set()
    assert [entry for entry in logs if entry["log_level"] == "info"] == [
        {"event": "reading again", "log_level": "info", "resource": "things.test.dev"}
    ]


async def test_silence_longer_than_a_reconnect_is_unhealthy(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.end_watches("reset")
        server.fail("refuse", times=10**6)
        await clock.advance(CONTACT_LIMIT)
        assert CONTACT_LIMIT == 150
        assert informer.healthy
        clock.tick(0.1)
        assert not informer.healthy
        server.faults.clear()
        await clock.advance(31)
        assert informer.healthy


@pytest.mark.parametrize("sign", ["list", "event", "bookmark", "unknown", "unreadable", "end"])
async def test_any_word_of_the_server_counts(server: FakeApiServer, clock: FakeClock, sign: str) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        await clock.advance(70)
        match sign:
            case "list":
                server.fail("refuse", watch=True, times=10**6)
                server.send_raw(b"not JSON\n")
                await clock.advance(0.9)
                assert len(server.seen("GET", watch=False)) == 2
            case "event":
                server.put(THINGS, thing("a"))
            case "bookmark":
                server.bookmark()
            case "unknown":
                server.send_raw(b'{"type":"NEW","object":{"metadata":{}}}\n')
            case "unreadable":
                server.put(THINGS, thing("a", size="big"))
            case "end":
                server.fail("refuse", times=10**6)
                server.end_watches()
        await settle()
        server.fail("refuse", times=10**6)
        server.end_watches("reset")
        await clock.advance(149)
        assert informer.healthy, "150 s after that, not after the watch began"
        await clock.advance(2)
        assert not informer.healthy


async def test_a_programming_error_ends_the_reflector(server: FakeApiServer, clock: FakeClock) -> None:
    async def broken(request: Request, call_next: CallNext) -> Response:
        raise ZeroDivisionError

    informer = Informer(server.client(clock, interceptors=[broken]), THINGS, Thing, clock=clock)
    with pytest.raises(ZeroDivisionError):
        await informer.run()
    assert not informer.healthy


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}',
        b'{"kind":"ThingList","metadata":{},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"900"},"items":[null]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"900","continue":"x"},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"900"},"items":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["a Status", "no version", "an item that is null", "a page that leads to itself", "nested without end"],
)
async def test_what_is_no_list_empties_no_cache(server: FakeApiServer, clock: FakeClock, body: bytes) -> None:
    server.put(THINGS, thing("a"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.fail(Response(200, {}, body), watch=False, times=3)
        server.end_watches()
        server.put(THINGS, thing("b"))
        server.compact()
        await clock.advance(60)
        assert seen.summary == ["add a", "add b"]
        assert [fault.hits for fault in server.faults] == [3]
        assert informer.healthy


async def test_a_page_that_leads_to_itself_is_not_asked_for_in_a_loop(server: FakeApiServer, clock: FakeClock) -> None:
    body = b'{"kind":"ThingList","metadata":{"resourceVersion":"900","continue":"x"},"items":[]}'
    server.fail(Response(200, {}, body), watch=False, times=1000)
    async with running(make(server, clock, rng=Highest()).run):
        assert len(server.seen("GET", watch=False)) == 2


async def test_objects_nested_without_end_are_skipped(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        deep = b'{"type":"ADDED","object":{"metadata":{"name":"deep","resourceVersion":"900"},"x":%b1%b}}\n'
        server.send_raw(deep % (b'{"a":' * 5000, b"}" * 5000))
        server.put(THINGS, thing("a"))
        await clock.advance(60)
        assert content(informer) == truth(server)


@pytest.mark.parametrize("code", [400, 403, 404, 500])
@pytest.mark.parametrize("how", ["status", "event", "event after one told twice"])
async def test_a_version_that_is_refused_for_ever_is_left(
    server: FakeApiServer, clock: FakeClock, code: int, how: str
) -> None:
    told = json.dumps({"type": "MODIFIED", "object": server.put(THINGS, thing("told"))}).encode() + b"\n"
    informer = make(server, clock)
    async with running(informer.run):
        stuck, refused = str(server.version), 0
        refusal = {"kind": "Status", "code": code, "reason": "InternalError", "message": "unable to decode"}

        def refuse(request: Request) -> Response:
            nonlocal refused
            if (request.params or {})["resourceVersion"] != stuck:
                return server.dispatch(request)
            refused += 1
            if how == "status":
                return status(code, "InternalError", "unable to decode")
            error = json.dumps({"type": "ERROR", "object": refusal}).encode() + b"\n"
            return streamed(error) if how == "event" else streamed(told, error)

        server.fail(refuse, watch=True, times=1000)
        server.end_watches()
        server.put(THINGS, thing("a"))
        await clock.advance(120)
        assert content(informer) == truth(server)
        assert informer.statistics.reflector.lists == 2
        assert refused == 3


async def test_an_outage_of_watches_lists_nothing_anew(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.fail("refuse", watch=True, times=50)
        server.end_watches()
        await clock.advance(3600)
        assert informer.statistics.reflector.lists == 1


async def test_an_older_event_that_cannot_be_read_changes_nothing(server: FakeApiServer, clock: FakeClock) -> None:
    informer = make(server, clock)
    async with running(informer.run):
        server.put(THINGS, thing("a"))
        await settle()
        before = {"metadata": {"name": "a", "namespace": "ns", "uid": "before", "resourceVersion": "5"}, "spec": 7}
        server.send_raw(json.dumps({"type": "DELETED", "object": before}).encode() + b"\n")
        await settle()
        assert content(informer) == truth(server)
        server.end_watches()
        await clock.advance(1)
        assert server.seen("GET", watch=True)[-1].params["resourceVersion"] == str(server.version)  # type: ignore[index]


async def test_a_server_that_repeats_itself_and_hangs_up_is_not_asked_in_a_loop(
    server: FakeApiServer, clock: FakeClock
) -> None:
    made = server.put(THINGS, thing("a"))
    line = json.dumps({"type": "MODIFIED", "object": made}).encode() + b"\n"

    server.fail(lambda _request: streamed(line), watch=True, times=1000)
    async with running(make(server, clock, rng=Highest()).run):
        assert len(server.seen("GET", watch=True)) == 1


async def test_made_again_and_unreadable_while_disconnected_is_a_deletion(
    server: FakeApiServer, clock: FakeClock
) -> None:
    server.put(THINGS, thing("a"))
    informer, seen = make(server, clock), Recorder()
    informer.add_handler(seen)
    async with running(informer.run):
        server.remove(THINGS, "a", "ns")
        server.put(THINGS, thing("a", color=7))
        server.compact()
        server.end_watches()
        await clock.advance(60)
        assert seen.summary == ["add a", "delete a"]
        assert not len(informer.store)
