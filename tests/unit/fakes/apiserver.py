"""A small API server that behaves like the real one where a client can get it wrong.

Resource versions count all writes; lists page over a snapshot; watches start at a version, send bookmarks, and answer
410 once history is compacted; deletes honour uids and finalizers. The core answers :class:`Request` with
:class:`Response`, so a test either plugs it into a client as an interceptor (in process: deterministic, no sockets) or
serves it over HTTP.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import httpx
from aiohttp import ClientConnectionResetError, web

from runtime.client import APPLY_PATCH, JSON_PATCH, STRATEGIC_PATCH, Client
from runtime.clock import Clock
from runtime.errors import Unreachable
from runtime.exchange import CallNext, Request, Response
from runtime.resources import Resource

from .patches import ApplyConflictError, PatchError, apply_conditions, json_patch, merge_patch

Obj = dict[str, Any]
_PATH = re.compile(
    r"^(?P<base>/api/[^/]+|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<ns>[^/]+)(?=/))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)


def status(code: int, reason: str, message: str = "", **details: Any) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    body |= {"message": message or reason, "details": details}
    headers = {"content-type": "application/json"}
    if code == 429:
        headers["retry-after"] = str(details.get("retryAfterSeconds", 1))
    return Response(code, headers, json.dumps(body).encode())


def streamed(*pieces: bytes) -> Response:
    """A watch that brings this and ends."""

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return Response(200, {}, chunks=chunks())


def answer(body: Any, code: int = 200) -> Response:
    return Response(code, {"content-type": "application/json"}, json.dumps(body).encode())


@dataclass
class Fault:
    """Something that goes wrong with matching requests. ``after``: only once the server has done what was asked."""

    matches: Callable[[Request], bool]
    outcome: Response | Literal["reset", "refuse"] | Callable[[Request], Response]
    times: int
    after: bool = False
    hits: int = 0


@dataclass
class Watch:
    """One open watch."""

    collection: str
    namespace: str | None
    select: Callable[[Obj], bool]
    params: dict[str, str]
    lines: list[bytes] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    end: Literal["open", "closed", "reset"] = "open"
    stalled: bool = False

    def send(self, line: bytes) -> None:
        self.lines.append(line)
        self.wake()

    def send_event(self, kind: str, obj: Obj) -> None:
        # Without blanks, as the real one writes it.
        self.send(json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n")

    def stop(self, how: Literal["closed", "reset"]) -> None:
        self.end = how
        if how == "reset":
            self.lines.clear()
        self.wake()

    def wake(self) -> None:
        self.news.set()
        self.news = anyio.Event()


class FakeApiServer:
    """State, history and faults."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        self.objects: dict[str, dict[tuple[str, str], Obj]] = {}
        self.history: list[tuple[int, str, str, Obj, Obj | None]] = []
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.watches: list[Watch] = []
        self.condition_owners: dict[tuple[str, str, str], dict[str, str]] = {}
        self.gone_as: Literal["status", "event"] = "event"
        self.generation = 0
        self.url = "http://fake.invalid"
        self._uids = itertools.count(1)
        self._names = itertools.count(1)
        self._pages: dict[str, tuple[int, list[Obj]]] = {}

    # -- what tests do to it ------------------------------------------------------------------------------------------

    def client(self, clock: Clock, **options: Any) -> Client:
        """A client wired to this server in process."""
        interceptors = [*options.pop("interceptors", ()), self.interceptor]
        return Client(_NoWire(self), clock=clock, interceptors=interceptors, **options)

    def fail(
        self,
        outcome: Response | Literal["reset", "refuse"] | Callable[[Request], Response],
        *,
        verb: str | None = None,
        path: str = "",
        watch: bool | None = None,
        times: int = 1,
        after: bool = False,
    ) -> Fault:
        def matches(request: Request) -> bool:
            is_watch = "watch" in (request.params or {})
            return (verb is None or request.verb == verb) and path in request.path and watch in {None, is_watch}

        fault = Fault(matches, outcome, times, after)
        self.faults.append(fault)
        return fault

    def seen(self, verb: str, *, watch: bool | None = None, path: str = "") -> list[Request]:
        return [
            request
            for request in self.requests
            if request.verb == verb and path in request.path and watch in {None, "watch" in (request.params or {})}
        ]

    def put(self, resource: Resource, obj: Obj) -> Obj:
        """Create or update as another client would."""
        obj = copy.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        collection = resource.path()
        key = (meta.get("namespace", ""), meta["name"])
        old = self.objects.get(collection, {}).get(key)
        if old is not None:
            meta["uid"] = old["metadata"]["uid"]
        return self._store(collection, key, obj, "MODIFIED" if old else "ADDED")

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        self._drop(resource.path(), (namespace, name))

    def get(self, resource: Resource, name: str, namespace: str = "") -> Obj | None:
        return self.objects.get(resource.path(), {}).get((namespace, name))

    def compact(self) -> None:
        """Forget all history: versions before now, and continue tokens, are expired."""
        self.compacted = self.version
        self.history.clear()
        self._pages.clear()

    def end_watches(self, how: Literal["closed", "reset"] = "closed") -> None:
        """End all open watches; what happens from now on they do not see."""
        for watch in self.watches:
            watch.stop(how)
        self.watches = []

    def bookmark(self) -> None:
        for watch in self.watches:
            watch.send_event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def send_raw(self, line: bytes) -> None:
        for watch in self.watches:
            watch.send(line)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def interceptor(self, request: Request, _call_next: CallNext) -> Response:
        response = await self.handle(request)
        if isinstance(response, Response):
            return response
        raise Unreachable(response, request.verb, request.path, ambiguous=response == "reset", server=self.url)

    async def handle(self, request: Request) -> Response | Literal["reset", "refuse"]:
        self.requests.append(request)
        await anyio.lowlevel.checkpoint()
        fault = next((f for f in self.faults if f.hits < f.times and f.matches(request)), None)
        if fault is not None:
            fault.hits += 1
            if fault.after:
                self.dispatch(request)
            return fault.outcome(request) if callable(fault.outcome) else fault.outcome
        return self.dispatch(request)

    def dispatch(self, request: Request) -> Response:
        match = _PATH.match(request.path)
        if match is None:
            return status(404, "NotFound", "the server could not find the requested resource")
        collection = f"{match['base']}/{match['plural']}"
        namespace, name, sub = match["ns"] or "", match["name"], match["sub"]
        params = dict(request.params or {})
        if request.verb == "GET" and name is None:
            select = _selector(params, match["ns"])
            return (
                self._watch(collection, match["ns"], select, params)
                if "watch" in params
                else self._list(collection, select, params)
            )
        body = json.loads(request.body) if request.body else {}
        if request.verb == "POST" and name is None:
            return self._create(collection, namespace, body, dry_run="dryRun" in params)
        current = self.objects.get(collection, {}).get((namespace, name or ""))
        if current is None:
            return status(404, "NotFound", f'{match["plural"]} "{name}" not found', name=name)
        if request.verb == "GET":
            return answer(current)
        if request.verb == "POST":
            return self._bind(collection, (namespace, name or ""), current, body, sub)
        if request.verb == "DELETE":
            return self._delete(collection, (namespace, name or ""), current, body)
        return self._update(collection, (namespace, name or ""), current, body, request, sub, params)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _list(self, collection: str, select: Callable[[Obj], bool], params: dict[str, str]) -> Response:
        limit = int(params.get("limit", 0))
        token = params.get("continue")
        if token:
            if token not in self._pages:
                return status(410, "Expired", "The provided continue parameter is too old")
            version, items = self._pages[token]
        else:
            version = self.version
            items = [o for _, o in sorted(self.objects.get(collection, {}).items()) if select(o)]
        meta: Obj = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            next_token = f"page-{next(self._names)}"
            self._pages[next_token] = (version, items[limit:])
            meta["continue"] = next_token
            items = items[:limit]
        return answer({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items})

    def _watch(
        self, collection: str, namespace: str | None, select: Callable[[Obj], bool], params: dict[str, str]
    ) -> Response:
        since = int(params.get("resourceVersion") or self.version)
        watch = Watch(collection, namespace, select, params)
        if since < self.compacted:
            gone = status(410, "Expired", f"too old resource version: {since} ({self.compacted})")
            if self.gone_as == "status":
                return gone
            watch.send_event("ERROR", json.loads(gone.body))
            watch.end = "closed"
        for version, where, kind, obj, old in self.history:
            if version > since:
                self._offer(watch, where, kind, obj, old)
        self.watches.append(watch)
        return Response(200, {"content-type": "application/json"}, chunks=self._chunks(watch))

    async def _chunks(self, watch: Watch) -> AsyncIterator[bytes]:
        try:
            while True:
                while watch.lines and not watch.stalled:
                    yield watch.lines.pop(0)
                if watch.end == "closed" and not watch.lines:
                    return
                if watch.end == "reset":
                    raise httpx.ReadError("connection reset by peer")
                await watch.news.wait()
        finally:
            if watch in self.watches:
                self.watches.remove(watch)

    def _offer(self, watch: Watch, collection: str, kind: str, obj: Obj, old: Obj | None) -> None:
        if collection != watch.collection:
            return
        before = old is not None and watch.select(old)
        after = kind != "DELETED" and watch.select(obj)
        if after:
            watch.send_event("MODIFIED" if before else "ADDED", obj)
        elif before:
            watch.send_event("DELETED", obj)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _store(self, collection: str, key: tuple[str, str], obj: Obj, kind: str) -> Obj:
        old = self.objects.setdefault(collection, {}).get(key)
        self.version += 1
        meta = obj.setdefault("metadata", {})
        meta.setdefault("uid", f"00000000-0000-4000-8000-{next(self._uids):012x}")
        meta.setdefault("creationTimestamp", "2030-01-01T00:00:00Z")
        meta["resourceVersion"] = str(self.version)
        self.objects[collection][key] = obj
        self._publish(collection, kind, obj, old)
        return obj

    def _drop(self, collection: str, key: tuple[str, str]) -> None:
        old = self.objects[collection].pop(key)
        self.version += 1
        last = copy.deepcopy(old)
        last["metadata"]["resourceVersion"] = str(self.version)
        self.condition_owners.pop((collection, *key), None)
        self._publish(collection, "DELETED", last, old)

    def _publish(self, collection: str, kind: str, obj: Obj, old: Obj | None) -> None:
        obj = copy.deepcopy(obj)
        self.history.append((self.version, collection, kind, obj, old))
        for watch in self.watches:
            self._offer(watch, collection, kind, obj, old)

    def _create(self, collection: str, namespace: str, body: Obj, *, dry_run: bool) -> Response:
        obj = copy.deepcopy(body)
        meta = obj.setdefault("metadata", {})
        if "name" not in meta:
            meta["name"] = f"{meta.get('generateName', 'x-')}{next(self._names):05d}"
        if namespace:
            meta["namespace"] = namespace
        key = (namespace, meta["name"])
        existing = self.objects.get(collection, {}).get(key)
        if existing is not None:
            text = "object is being deleted: " if existing["metadata"].get("deletionTimestamp") else ""
            return status(409, "AlreadyExists", f'{text}"{meta["name"]}" already exists')
        for generated in ("uid", "resourceVersion", "creationTimestamp"):
            meta.pop(generated, None)
        return answer(obj if dry_run else self._store(collection, key, obj, "ADDED"), 201)

    def _delete(self, collection: str, key: tuple[str, str], current: Obj, options: Obj) -> Response:
        uid = options.get("preconditions", {}).get("uid")
        if uid and uid != current["metadata"]["uid"]:
            return status(409, "Conflict", "Precondition failed: UID in precondition")
        if current["metadata"].get("finalizers"):
            if not current["metadata"].get("deletionTimestamp"):
                obj = copy.deepcopy(current)
                obj["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:01Z"
                self._store(collection, key, obj, "MODIFIED")
        else:
            self._drop(collection, key)
        return answer({"kind": "Status", "status": "Success"})

    def _bind(self, collection: str, key: tuple[str, str], pod: Obj, body: Obj, sub: str | None) -> Response:
        uid = (body.get("metadata") or body["deleteOptions"]["preconditions"]).get("uid") or ""
        if uid and uid != pod["metadata"]["uid"]:
            return status(409, "Conflict", "Precondition failed: UID in precondition")
        if sub == "eviction":
            return self._delete(collection, key, pod, body.get("deleteOptions", {}))
        if pod.get("spec", {}).get("nodeName"):
            return status(409, "Conflict", f'pod {key[1]} is already assigned to node "{pod["spec"]["nodeName"]}"')
        obj = copy.deepcopy(pod)
        obj.setdefault("spec", {})["nodeName"] = body["target"]["name"]
        self._store(collection, key, obj, "MODIFIED")
        return answer({"kind": "Status", "status": "Success"}, 201)

    def _update(
        self,
        collection: str,
        key: tuple[str, str],
        current: Obj,
        body: Any,
        request: Request,
        sub: str | None,
        params: dict[str, str],
    ) -> Response:
        meta = body.get("metadata", {}) if isinstance(body, dict) else {}
        if meta.get("uid") not in {None, current["metadata"]["uid"]}:
            if request.verb == "PUT":
                return status(409, "Conflict", "Precondition failed: UID in precondition")
            return status(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
        if meta.get("resourceVersion") not in {None, current["metadata"]["resourceVersion"]}:
            return status(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        try:
            if request.verb == "PUT":
                obj = copy.deepcopy(body)
            elif request.content_type == JSON_PATCH:
                obj = json_patch(current, body)
            elif request.content_type == APPLY_PATCH:
                obj = self._apply((collection, *key), current, body, params)
            else:
                obj = merge_patch(current, body, strategic=request.content_type == STRATEGIC_PATCH)
        except PatchError as error:
            return status(422, "Invalid", str(error))
        except ApplyConflictError as error:
            return status(409, "Conflict", str(error))
        if sub == "status":
            obj = {**current, "status": obj.get("status", {})}
        obj = copy.deepcopy(obj)
        obj["metadata"] = {**obj["metadata"], "uid": current["metadata"]["uid"]}
        obj["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if obj == current:
            return answer(current)  # a write that changes nothing makes no new version
        if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
            self._drop(collection, key)
            return answer(obj)
        return answer(self._store(collection, key, obj, "MODIFIED"))

    def _apply(self, where: tuple[str, str, str], current: Obj, body: Obj, params: dict[str, str]) -> Obj:
        obj = merge_patch(current, {k: v for k, v in body.items() if k != "status"})
        wanted = dict(body.get("status", {}))
        applied = wanted.pop("conditions", [])
        new_status = merge_patch(current.get("status", {}), wanted)
        owners = self.condition_owners.setdefault(where, {})
        new_status["conditions"] = apply_conditions(
            new_status.get("conditions", []), owners, applied, params["fieldManager"], force="force" in params
        )
        return {**obj, "status": new_status}

    # -- over HTTP ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve on a free local port; yields the URL."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{tail:.*}", self._http)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.url = "{}://{}:{}".format("https" if tls else "http", *runner.addresses[0])
        try:
            yield self.url
        finally:
            self.end_watches()
            await runner.cleanup()

    async def _http(self, web_request: web.Request) -> web.StreamResponse:
        request = Request(
            web_request.method,
            web_request.path,
            dict(web_request.query),
            await web_request.read() or None,
            web_request.headers.get("content-type", ""),
        )
        self.tokens.append(web_request.headers.get("authorization", ""))
        response = await self.handle(request)
        if not isinstance(response, Response):
            assert web_request.transport is not None
            web_request.transport.abort()
            return web.Response()
        if response.chunks is None:
            return web.Response(status=response.status, body=response.body, headers=dict(response.headers))
        stream = web.StreamResponse(status=response.status, headers=dict(response.headers))
        await stream.prepare(web_request)
        try:
            async for chunk in response.chunks:
                await stream.write(chunk)
        except ClientConnectionResetError:
            pass  # the client went away
        except httpx.ReadError:
            assert web_request.transport is not None
            web_request.transport.abort()
        return stream

    @property
    def tokens(self) -> list[str]:
        """The Authorization headers that came over HTTP."""
        return self.__dict__.setdefault("_tokens", [])


class _NoWire:
    """The client's Api when the server is an interceptor."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server
        self.generation = 0
        self.logins = 0

    @property
    def server(self) -> str:
        return self._server.url

    def call_api(self, *_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("the fake server answers before the wire")

    async def login(self) -> None:
        self.logins += 1
        await anyio.lowlevel.checkpoint()
        self.generation += 1

    async def refresh_token(self) -> None:
        return


def _selector(params: dict[str, str], namespace: str | None) -> Callable[[Obj], bool]:
    fields = [t for t in params.get("fieldSelector", "").split(",") if t]
    labels = [t for t in params.get("labelSelector", "").split(",") if t]

    def holds(term: str, read: Callable[[str], str]) -> bool:
        name, negate, value = (
            (term.partition("!=")[0], True, term.partition("!=")[2])
            if "!=" in term
            else (
                term.partition("=")[0],
                False,
                term.partition("=")[2],
            )
        )
        return (read(name) == value) is not negate

    def select(obj: Obj) -> bool:
        def read_field(path: str) -> str:
            value: Any = obj
            for part in path.split("."):
                value = value.get(part, "") if isinstance(value, dict) else ""
            return str(value)

        def read_label(name: str) -> str:
            return str(obj["metadata"].get("labels", {}).get(name, ""))

        if namespace and obj["metadata"].get("namespace") != namespace:
            return False
        return all(holds(t, read_field) for t in fields) and all(holds(t, read_label) for t in labels)

    return select
