from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from runtime import exchange
from runtime.clock import FakeClock, settle
from runtime.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    Unreadable,
)
from runtime.exchange import CallNext, Request, Response
from runtime.resources import NODES, PODS
from tests.unit.fakes.apiserver import FakeApiServer, status, streamed

from .things import THINGS, Thing, running, thing

pytestmark = pytest.mark.anyio


async def test_crud(server: FakeApiServer, clock: FakeClock) -> None:
    client = server.client(clock)
    made = await client.create(THINGS, thing("a", color="red"), "ns", type=Thing)
    assert made.metadata.uid
    with pytest.raises(AlreadyExists):
        await client.create(THINGS, thing("a"), "ns")
    stale = await client.get(THINGS, "a", "ns")
    await client.patch(THINGS, "a", "ns", {"spec": {"color": "blue"}})
    with pytest.raises(Conflict):
        await client.replace(THINGS, "a", "ns", {**stale, "spec": {"color": "stale"}})
    assert (await client.get(THINGS, "a", "ns", Thing)).spec.color == "blue"
    await client.json_patch(THINGS, "a", "ns", [{"op": "test", "path": "/metadata/uid", "value": made.metadata.uid}])
    with pytest.raises(Invalid):
        await client.json_patch(THINGS, "a", "ns", [{"op": "test", "path": "/metadata/uid", "value": "other"}])
    with pytest.raises(Conflict):
        await client.delete(THINGS, "a", "ns", uid="other")
    await client.delete(THINGS, "a", "ns", uid=made.metadata.uid, propagation="Background")
    assert json.loads(server.requests[-1].body or b"") == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": made.metadata.uid},
        "propagationPolicy": "Background",
    }
    with pytest.raises(NotFound):
        await client.get(THINGS, "a", "ns")


async def test_a_dry_run_stores_nothing(server: FakeApiServer, clock: FakeClock) -> None:
    await server.client(clock).create(THINGS, thing("a"), "ns", dry_run=True)
    assert server.get(THINGS, "a", "ns") is None


async def test_content_types_and_parameters(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
    client = server.client(clock)
    await client.patch(PODS, "p", "ns", {"status": {}}, strategic=True, subresource="status")
    await client.patch(PODS, "p", "ns", {"spec": {}})
    await client.apply(PODS, "p", "ns", {"status": {}}, field_manager="m", force=True, subresource="status")
    await client.apply(PODS, "p", "ns", b'{"status":{}}', field_manager="m")
    strategic, merge, forced, plain = server.requests
    assert strategic.path.endswith("/pods/p/status")
    assert strategic.content_type == "application/strategic-merge-patch+json"
    assert merge.content_type == "application/merge-patch+json"
    assert forced.content_type == "application/apply-patch+yaml"
    assert forced.params == {"fieldManager": "m", "force": "true"}
    assert plain.params == {"fieldManager": "m"}
    assert plain.body == b'{"status":{}}'


async def test_bind_and_evict(server: FakeApiServer, clock: FakeClock) -> None:
    pod = server.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}})
    client = server.client(clock)
    with pytest.raises(Conflict, match="UID"):
        await client.bind("ns", "p", "another-uid", "n1")
    await client.bind("ns", "p", pod["metadata"]["uid"], "n1")
    assert server.get(PODS, "p", "ns")["spec"]["nodeName"] == "n1"  # type: ignore[index]
    with pytest.raises(Conflict, match="already assigned"):
        await client.bind("ns", "p", pod["metadata"]["uid"], "n2")
    server.fail(status(429, "TooManyRequests", "disruption budget"), path="eviction")
    with pytest.raises(TooManyRequests):
        await client.evict("ns", "p", pod["metadata"]["uid"])
    await client.evict("ns", "p", pod["metadata"]["uid"])
    assert server.get(PODS, "p", "ns") is None


async def test_pages(server: FakeApiServer, clock: FakeClock) -> None:
    for n in range(5):
        server.put(NODES, {"metadata": {"name": f"n{n}", "labels": {"odd": str(n % 2)}}})
    client = server.client(clock)
    pages = [page async for page in client.list_pages(NODES, limit=2)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert {page.resource_version for page in pages} == {str(server.version)}
    assert pages[-1].continue_token == ""
    assert "resourceVersion" not in (server.requests[0].params or {})
    assert len(await client.list_all(NODES, label_selector="odd=1")) == 2
    await client.list_page(NODES, resource_version="5")
    assert server.requests[-1].params == {
        "limit": "500",
        "resourceVersion": "5",
        "resourceVersionMatch": "NotOlderThan",
    }
    first = await client.list_page(NODES, limit=1)
    server.compact()
    with pytest.raises(Gone):
        await client.list_page(NODES, limit=1, continue_token=first.continue_token)


async def test_an_answer_that_is_no_list(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(Response(200, {}, b"<html>login</html>"))
    with pytest.raises(Unreadable, match="not a list"):
        await server.client(clock).list_page(NODES)


async def test_interceptors_see_and_change_everything(server: FakeApiServer, clock: FakeClock) -> None:
    seen: list[str] = []

    async def outer(request: Request, call_next: CallNext) -> Response:
        seen.append(f"outer {request.verb}")
        response = await call_next(request)
        seen.append(f"outer {response.status}")
        return response

    async def inner(request: Request, call_next: CallNext) -> Response:
        seen.append("inner")
        if request.verb == "DELETE":
            return status(409, "Conflict")
        if request.verb == "POST":
            raise Unreachable("lost", request.verb, request.path, ambiguous=True)
        return await call_next(request)

    client = server.client(clock, interceptors=[outer, inner])
    await client.list_page(THINGS)
    with pytest.raises(Conflict):
        await client.delete(THINGS, "a", "ns")
    with pytest.raises(Unreachable):
        await client.create(THINGS, thing("a"), "ns")
    assert seen == ["outer GET", "inner", "outer 200", "outer DELETE", "inner", "outer 409", "outer POST", "inner"]
    assert len(server.requests) == 1


async def test_before_write_refuses_writes_only(server: FakeApiServer, clock: FakeClock) -> None:
    class LeaseLostError(Exception):
        pass

    def check(request: Request) -> None:
        raise LeaseLostError(request.verb)

    server.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
    client = server.client(clock, before_write=check)
    await client.get(PODS, "p", "ns")
    for write in (
        client.bind("ns", "p", "", "n"),
        client.create(PODS, {}, "ns"),
        client.delete(PODS, "p", "ns"),
        client.patch(PODS, "p", "ns", {}),
        client.replace(PODS, "p", "ns", {}),
    ):
        with pytest.raises(LeaseLostError):
            await write
    assert [request.verb for request in server.requests] == ["GET"]


async def test_before_write_is_asked_again_before_a_retry(server: FakeApiServer, clock: FakeClock) -> None:
    calls: list[str] = []
    client = server.client(clock, before_write=lambda request: calls.append(request.verb))
    server.fail(status(401, "Unauthorized"), times=1)
    await client.create(THINGS, thing("a"), "ns")
    assert calls == ["POST", "POST"]
    assert client.api.generation == 1


async def test_a_login_that_fails_keeps_the_401(server: FakeApiServer, clock: FakeClock) -> None:
    client = server.client(clock)

    async def login() -> None:
        raise OSError("no such plugin")

    client.api.login = login  # type: ignore[method-assign]
    server.fail(status(401, "Unauthorized", "expired"), times=10)
    with pytest.raises(Exception, match="expired"):
        await client.list_page(THINGS)
    assert len(server.requests) == 1


async def test_watch_lines_joins_chunks(clock: FakeClock) -> None:
    async def interceptor(request: Request, _next: CallNext) -> Response:
        return streamed(b'{"a"', b":1}\n{", b'"b":2}\n\n{"c":3}\n{"lost"')

    lines: list[bytes] = []
    opened: list[bool] = []
    client = FakeApiServer().client(clock, interceptors=[interceptor])
    await client.watch_lines(THINGS, lines.append, resource_version="1", on_open=lambda: opened.append(True))
    assert lines == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert opened == [True]


async def test_a_line_without_end_is_given_up(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_LINE", 1000)
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        while True:
            sent += 300
            yield b"x" * 300

    async def interceptor(request: Request, _next: CallNext) -> Response:
        return Response(200, chunks=chunks())

    client = FakeApiServer().client(clock, interceptors=[interceptor])
    with pytest.raises(Unreachable, match="more than 1000 bytes"):
        await client.watch_lines(THINGS, lambda _line: None, resource_version="1")
    assert sent == 1200


async def test_what_on_line_raises_ends_the_watch(server: FakeApiServer, clock: FakeClock) -> None:
    class EnoughError(Exception):
        pass

    def stop(_line: bytes) -> None:
        raise EnoughError

    server.put(THINGS, thing("a"))
    with pytest.raises(EnoughError):
        await server.client(clock).watch_lines(THINGS, stop, resource_version="100")
    await settle()
    assert server.watches == []


async def test_a_cancelled_watch_lets_go(server: FakeApiServer, clock: FakeClock) -> None:
    client = server.client(clock)

    async def watch() -> None:
        await client.watch_lines(THINGS, lambda _: None, resource_version="100")

    async with running(watch):
        assert len(server.watches) == 1
    assert server.watches == []
    assert clock.next_timer is None, "no timer is left behind"


@pytest.mark.parametrize("code", [301, 302, 304])
async def test_a_redirection_is_no_success(server: FakeApiServer, clock: FakeClock, code: int) -> None:
    """A proxy's login page, say: nothing was bound or deleted."""
    client = server.client(clock)
    requests: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.bind("ns", "p", "u", "n"),
        lambda: client.delete(THINGS, "a", "ns"),
        lambda: client.get(THINGS, "a", "ns"),
    ]
    for send in requests:
        server.fail(Response(code, {"location": "https://login.example.com/"}, b""))
        with pytest.raises(ApiError, match=r"proxy.*login\.example\.com") as caught:
            await send()
        assert caught.value.status == code


async def test_a_body_that_cannot_be_read_is_an_error_of_the_api(server: FakeApiServer, clock: FakeClock) -> None:
    client = server.client(clock)
    server.fail(Response(201, {}, b'{"kind":"Thi'), verb="POST", after=True)
    with pytest.raises(Unreadable) as caught:
        await client.create(THINGS, thing("a"), "ns")
    assert caught.value.ambiguous, "it was carried out"
    assert server.get(THINGS, "a", "ns") is not None
    server.fail(Response(200, {}, b"<html>"))
    with pytest.raises(Unreadable):
        await client.get(THINGS, "a", "ns", Thing)


async def test_a_login_that_never_ends_is_given_up(server: FakeApiServer, clock: FakeClock) -> None:
    client = server.client(clock)
    client.api.login = anyio.sleep_forever  # type: ignore[method-assign]
    server.fail(status(401, "Unauthorized"))
    refused = anyio.Event()

    async def get() -> None:
        with pytest.raises(Unauthorized):
            await client.get(THINGS, "a", "ns")
        refused.set()

    async with running(get):
        await clock.advance(exchange.LOGIN_TIMEOUT - 1)
        assert not refused.is_set()
        await clock.advance(1)
        assert refused.is_set()


async def test_a_login_that_fails_fails_for_all_that_waited_for_it(server: FakeApiServer, clock: FakeClock) -> None:
    client, logins = server.client(clock), 0

    async def login() -> None:
        nonlocal logins
        logins += 1
        await clock.sleep(3)
        raise OSError("the plugin failed")

    client.api.login = login  # type: ignore[method-assign]
    server.fail(status(401, "Unauthorized"), times=1000)

    async def get() -> None:
        with pytest.raises(Unauthorized):
            await client.get(THINGS, "a", "ns")

    async with running(*[get] * 50):
        await clock.advance(3)
        assert logins == 1
    async with running(get):
        await clock.advance(3)
        assert logins == 2, "who asks later has a login of its own"
