"""The client: bytes to the API server and typed errors back.

Every request of the program passes here. One attempt each, except that a 401 leads to one shared login and
one retry: retrying is the caller's business, who alone knows what is still wanted. Not on the way: kr8s's
own retries, httpx's exceptions.

Tests put faults in front of the server with ``interceptors``; leadership is checked by ``before_write``
right before each request that changes something.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, overload

import anyio
import anyio.lowlevel
import httpx
import kr8s
import msgspec
import structlog

from runtime.clock import Clock
from runtime.errors import Unauthorized, Unreachable, from_response, payload
from runtime.objects import Key, Undecodable, decoder_for, peek
from runtime.resources import PODS, Resource

T = TypeVar("T")
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML

#: Seconds without a byte after which a watch counts as dead: bookmarks come about every 60 s.
WATCH_IDLE = 75.0
#: Seconds a watch may decode before other tasks get a turn.
SLICE = 0.005

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Api(Protocol):
    """What the client needs of :class:`runtime.kr8s_seam.FastApi`."""

    #: Counts logins.
    generation: int

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""

    def call_api(self, *args: Any, **kwargs: Any) -> Any:
        """kr8s's request context."""

    async def login(self) -> None:
        """Read the credentials again."""

    async def refresh_token(self) -> None:
        """Pick up a rotated token if it is time to look."""


@dataclass(slots=True)
class Request:
    """One request as an interceptor sees it.

    ``timeout`` in seconds bounds the whole exchange (of a stream: its start).
    """

    verb: str
    path: str
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON
    timeout: float = 30.0
    #: Of a watch: what keeps its connection open; None for all else.
    stack: AsyncExitStack | None = None


@dataclass(slots=True)
class Response:
    """What came back: ``body``, or for a stream that began, ``chunks``."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunks: AsyncIterator[bytes] | None = None


CallNext = Callable[[Request], Awaitable[Response]]
Interceptor = Callable[[Request, CallNext], Awaitable[Response]]
BeforeWrite = Callable[[Request], None]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    resource_version: str
    #: "" on the last page.
    continue_token: str = ""
    #: Objects that are there but that the decoder refused.
    undecodable: tuple[Key, ...] = ()


class _ListMeta(msgspec.Struct, gc=False):
    resourceVersion: str = ""  # noqa: N815 - the server's spelling
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, gc=False):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_decode_list = msgspec.json.Decoder(_List).decode


class Client:
    """Typed requests over one :class:`Api`.

    :param interceptors: outermost first; each is ``async (request, call_next) -> Response`` and may answer itself
    :param before_write: called before each request that is not a GET; what it raises refuses the request
    """

    def __init__(
        self,
        api: Api,
        *,
        clock: Clock,
        interceptors: Sequence[Interceptor] = (),
        before_write: BeforeWrite | None = None,
    ) -> None:
        self.api = api
        self.clock = clock
        self.before_write = before_write
        self._login_lock = anyio.Lock()
        self._call: CallNext = self._send
        for interceptor in reversed(interceptors):
            self._call = _wrap(interceptor, self._call)

    # -- one exchange ---------------------------------------------------------------------------------------------

    async def request(
        self,
        verb: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = 30.0,
    ) -> bytes:
        """Send and return the body.

        :param timeout: seconds for the whole exchange
        :raises ApiError: one of its subclasses for every status of 400 or more and for no answer at all
        """
        response = await self._exchange(Request(verb, path, params, body, content_type, timeout))
        return response.body

    async def _exchange(self, request: Request) -> Response:
        for attempt in (1, 2):
            await self.api.refresh_token()
            if request.verb != "GET" and self.before_write is not None:
                self.before_write(request)
            generation = self.api.generation
            response = await self._call(request)
            if response.status < 400:
                return response
            error = from_response(request.verb, request.path, response.status, response.headers, response.body)
            if attempt == 2 or not isinstance(error, Unauthorized) or not await self._login(generation):
                raise error
        raise AssertionError("unreachable")

    async def _login(self, generation: int) -> bool:
        """Log in again unless another request did since ``generation``; false when that failed."""
        async with self._login_lock:
            if self.api.generation != generation:
                return True
            try:
                await self.api.login()
            except Exception as error:
                log.warning("cannot read credentials again", error=str(error) or type(error).__name__)
                return False
            return True

    async def _send(self, request: Request) -> Response:
        """The innermost call: over the wire, through kr8s's one seam."""
        try:
            if request.stack is None:
                async with self._call_api(request, httpx.Timeout(request.timeout)) as response:
                    return Response(response.status_code, response.headers, response.content)
            timeout = httpx.Timeout(None, connect=request.timeout)
            response = await request.stack.enter_async_context(self._call_api(request, timeout))
            if response.status_code >= 400:
                return Response(response.status_code, response.headers, await response.aread())
            zipped = "content-encoding" in response.headers
            chunks = response.aiter_bytes() if zipped else response.aiter_raw()
            return Response(response.status_code, response.headers, chunks=chunks)
        except (httpx.TransportError, kr8s.APITimeoutError) as error:
            raise self._unreachable(request, error) from error

    def _call_api(self, request: Request, timeout: httpx.Timeout) -> Any:
        return self.api.call_api(
            request.verb,
            version="",
            base=request.path,
            raise_for_status=False,  # true would start kr8s's login loop on 401 and 403
            stream=request.stack is not None,
            params=request.params,
            content=request.body,
            headers={"Content-Type": request.content_type},
            timeout=timeout,
        )

    def _unreachable(self, request: Request, error: Exception) -> Unreachable:
        cause = error.__cause__ if isinstance(error, kr8s.APITimeoutError) and error.__cause__ else error
        sent = not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        text = str(cause) or type(cause).__name__
        return Unreachable(text, request.verb, request.path, ambiguous=sent, server=self.api.server)

    # -- reading --------------------------------------------------------------------------------------------------

    @overload
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: None = None,
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]: ...
    @overload
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: type[T] | Callable[[bytes], T] = ...,
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> T: ...
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: Any = None,  # noqa: A002 - reads best at the call
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Read one object from the API server (not from a cache).

        :raises NotFound:
        """
        body = await self.request("GET", resource.path(namespace, name, subresource), timeout=timeout)
        return decoder_for(type)(body)

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        limit: int | None = 500,
        continue_token: str = "",
        resource_version: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        type: Any = None,  # noqa: A002
        timeout: float = 60.0,
    ) -> Page[Any]:
        """Read one page.

        :param resource_version: None or "" reads the newest state; another value means "not older than"
        :raises Gone: the continue token has expired: start again
        :raises Undecodable: the body is no list at all
        """
        params = _selectors(field_selector, label_selector)
        if limit:
            params["limit"] = str(limit)
        if continue_token:
            params["continue"] = continue_token
        elif resource_version:
            # Without the match, limit and a version together mean "exactly then": history, and soon 410.
            params |= {"resourceVersion": resource_version, "resourceVersionMatch": "NotOlderThan"}
        body = await self.request("GET", resource.path(namespace), params=params, timeout=timeout)
        try:
            envelope = _decode_list(body)
        except msgspec.MsgspecError as error:
            raise Undecodable(f"{resource.key}: the answer is not a list: {error}") from error
        decode, items, undecodable = decoder_for(type), [], []
        slice_end = self.clock.monotonic() + SLICE
        for raw in envelope.items or ():
            try:
                items.append(decode(raw))
            except Undecodable as error:
                meta = peek(raw).metadata
                undecodable.append((meta.namespace, meta.name))
                log.error(
                    "skipping an object that cannot be read",
                    resource=resource.key,
                    key=undecodable[-1],
                    error=str(error),
                )
            if self.clock.monotonic() > slice_end:
                await anyio.lowlevel.checkpoint()
                slice_end = self.clock.monotonic() + SLICE
        return Page(items, envelope.metadata.resourceVersion, envelope.metadata.continue_, tuple(undecodable))

    async def list_pages(self, resource: Resource, **options: Any) -> AsyncIterator[Page[Any]]:
        """Iterate over all pages; the options are those of :meth:`list_page`."""
        token = ""
        while True:
            page = await self.list_page(resource, continue_token=token, **options)
            yield page
            token = page.continue_token
            if not token:
                return

    async def list_all(self, resource: Resource, **options: Any) -> list[Any]:
        """Read a whole list; the options are those of :meth:`list_page`."""
        return [item async for page in self.list_pages(resource, **options) for item in page.items]

    async def watch_lines(
        self,
        resource: Resource,
        on_line: Callable[[bytes], None],
        *,
        resource_version: str,
        namespace: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        timeout_seconds: int | None = None,
        idle_timeout: float = WATCH_IDLE,
        on_open: Callable[[], None] | None = None,
    ) -> None:
        """Watch until the server ends the stream; bookmarks are asked for.

        :param on_line: called for each complete line, synchronously; what it raises ends the watch and is passed on
        :param on_open: called once when the server has accepted
        :param idle_timeout: seconds without a byte after which a half-open connection is given up
        :raises Unreachable: connection lost or idle; resume at the last version seen
        """
        params = _selectors(field_selector, label_selector)
        params |= {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        if timeout_seconds:
            params["timeoutSeconds"] = str(timeout_seconds)
        idle = _IdleTimer(self.clock, idle_timeout)
        path = resource.path(namespace)
        with anyio.CancelScope() as scope, idle.running(scope.cancel):
            async with AsyncExitStack() as stack:
                request = Request("GET", path, params, stack=stack)
                response = await self._exchange(request)
                if on_open is not None:
                    on_open()
                if response.chunks is not None:
                    await self._read_lines(request, response.chunks, idle, on_line)
        if scope.cancelled_caught:
            text = f"no event or bookmark for {idle_timeout:g} s"
            raise Unreachable(text, "GET", path, ambiguous=False, server=self.api.server)

    async def _read_lines(
        self,
        request: Request,
        chunks: AsyncIterator[bytes],
        idle: _IdleTimer,
        on_line: Callable[[bytes], None],
    ) -> None:
        monotonic = self.clock.monotonic
        rest = b""
        slice_end = monotonic() + SLICE
        async with AsyncExitStack() as stack:
            if isinstance(chunks, AsyncGenerator):
                await stack.enter_async_context(aclosing(chunks))
            while True:
                try:
                    chunk = await anext(chunks, None)
                except (httpx.TransportError, httpx.StreamError) as error:
                    raise self._unreachable(request, error) from error
                if chunk is None:
                    return  # a partial last line is an event the server did not finish: it comes again
                now = monotonic()
                idle.last = now
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if line:
                        on_line(line)
                # Buffered chunks come without a pause: give the other tasks their turn.
                if monotonic() > slice_end:
                    await anyio.lowlevel.checkpoint()
                    slice_end = monotonic() + SLICE

    # -- writing --------------------------------------------------------------------------------------------------

    async def _write(
        self,
        verb: str,
        path: str,
        body: object,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        type: Any = None,  # noqa: A002
        timeout: float = 30.0,
    ) -> Any:
        answer = await self.request(
            verb, path, params=params, body=payload(body), content_type=content_type, timeout=timeout
        )
        return decoder_for(type)(answer)

    async def create(
        self,
        resource: Resource,
        body: object,
        namespace: str | None = None,
        *,
        type: Any = None,  # noqa: A002
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Any:
        """POST an object; the answer is what the server stored (fields it does not know are gone).

        :raises AlreadyExists:
        """
        params = _options(dry_run, field_manager)
        return await self._write("POST", resource.path(namespace), body, params=params, type=type)

    async def replace(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """PUT a whole object; with ``metadata.resourceVersion`` set, only over that version.

        :raises Conflict: it changed since
        """
        return await self._write("PUT", resource.path(namespace, name, subresource), body, type=type)

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        ops: Sequence[Mapping[str, Any]],
        subresource: str | None = None,
        *,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """RFC 6902; a failed ``test`` answers 422 :class:`~runtime.errors.Invalid`."""
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, ops, content_type=JSON_PATCH, type=type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        strategic: bool = False,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """Merge patch (lists are replaced whole), or strategic merge patch (core kinds only: lists merge by key)."""
        path = resource.path(namespace, name, subresource)
        content_type = STRATEGIC_PATCH if strategic else MERGE_PATCH
        return await self._write("PATCH", path, body, content_type=content_type, type=type)

    async def apply(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """Server-side apply: fields this manager set before and leaves out now are removed.

        :raises Conflict: another manager owns a field, unless ``force``
        """
        params = {"fieldManager": field_manager}
        if force:
            params["force"] = "true"
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, body, content_type=APPLY_PATCH, params=params, type=type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: str | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete one object, with ``uid`` only that one and not a later one of the same name.

        :param propagation: Background, Foreground or Orphan
        :param grace_period: seconds, pods only
        :raises NotFound:
        :raises Conflict: another uid is there now
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        path = resource.path(namespace, name)
        await self.request("DELETE", path, params=_options(dry_run), body=msgspec.json.encode(options))

    async def bind(self, namespace: str, name: str, uid: str, node: str, *, timeout: float = 30.0) -> None:
        """Bind a pod to a node, only while it is the pod of that uid.

        :raises Conflict: bound already, gated, terminating, or another uid
        """
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name, "namespace": namespace, "uid": uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
        )
        await self.request("POST", PODS.path(namespace, name, "binding"), body=body, timeout=timeout)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod through the API that honours PodDisruptionBudgets.

        :raises TooManyRequests: a budget allows no disruption now
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self.request("POST", PODS.path(namespace, name, "eviction"), body=msgspec.json.encode(body))


class _IdleTimer:
    """Fires once nothing was read for a while: one timer a watch, re-armed lazily, nothing per event."""

    __slots__ = ("_clock", "_limit", "_on_idle", "_timer", "last")

    def __init__(self, clock: Clock, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        self.last = clock.monotonic()

    @contextmanager
    def running(self, on_idle: Callable[[], None]) -> Iterator[None]:
        self._on_idle = on_idle
        self._timer = self._clock.call_later(self._limit, self._fire)
        try:
            yield
        finally:
            self._timer.cancel()

    def _fire(self) -> None:
        left = self.last + self._limit - self._clock.monotonic()
        if left <= 0:
            self._on_idle()
        else:
            self._timer = self._clock.call_later(left, self._fire)


def _wrap(interceptor: Interceptor, call_next: CallNext) -> CallNext:
    async def call(request: Request) -> Response:
        return await interceptor(request, call_next)

    return call


def _selectors(field_selector: str | None, label_selector: str | None) -> dict[str, str]:
    params = {}
    if field_selector:
        params["fieldSelector"] = field_selector
    if label_selector:
        params["labelSelector"] = label_selector
    return params


def _options(dry_run: bool, field_manager: str | None = None) -> dict[str, str]:
    params = {}
    if dry_run:
        params["dryRun"] = "All"
    if field_manager:
        params["fieldManager"] = field_manager
    return params
