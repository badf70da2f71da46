"""One request: bytes to the API server, bytes or a typed error back.

One attempt, except that a 401, and a server that our certificate authority does not know, lead to one shared login and
one retry, as credentials may have been rotated: retrying is the caller's business, who alone
knows what is still wanted. Not on the way: kr8s's own retries, httpx's exceptions.

Tests put faults in front of the server with ``interceptors``; leadership is checked by ``before_write`` right before
each request that changes something.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import httpx
import kr8s
import structlog

from runtime.clock import Clock, fail_after
from runtime.errors import Idle, Unauthorized, Unreachable, from_response

JSON = "application/json"
#: Bytes of one watch event; etcd takes objects of 1.5 MB, and this is what no server sends unless it has gone mad.
MAX_LINE = 32 * 1024 * 1024
#: Seconds of work without a pause before other tasks get a turn.
SLICE = 0.005
#: Seconds for reading the credentials again: a login plugin may wait for somebody to type.
LOGIN_TIMEOUT = 30.0

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

    @property
    def success(self) -> bool:
        """Whether the server has done what was asked; a redirection, of a proxy before it, is none."""
        return 200 <= self.status < 300


@dataclass(slots=True)
class RequestStatistics:
    """Requests since the start by (verb, HTTP status), 0 for no answer; changed in place."""

    by_code: dict[tuple[str, int], int] = field(default_factory=dict)

    def count(self, verb: str, code: int) -> None:
        """Count one attempt."""
        self.by_code[verb, code] = self.by_code.get((verb, code), 0) + 1


CallNext = Callable[[Request], Awaitable[Response]]
Interceptor = Callable[[Request, CallNext], Awaitable[Response]]
BeforeWrite = Callable[[Request], None]


class Exchange:
    """Requests over one :class:`Api`.

    :param interceptors: outermost first; each is ``async (request, call_next) -> Response`` and may answer itself
    :param before_write: called before each request that is not a GET; what it raises refuses the request
    :param statistics: where attempts are counted; several clients may share one
    """

    def __init__(
        self,
        api: Api,
        *,
        clock: Clock,
        interceptors: Sequence[Interceptor] = (),
        before_write: BeforeWrite | None = None,
        statistics: RequestStatistics | None = None,
    ) -> None:
        self.api = api
        self.clock = clock
        self.before_write = before_write
        self.statistics = statistics or RequestStatistics()
        self._login_lock = anyio.Lock()
        self._logins = 0
        self._call: CallNext = self._send
        for interceptor in reversed(interceptors):
            self._call = _wrap(interceptor, self._call)

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
        :raises ApiError: one of its subclasses for every status but 2xx and for no answer at all
        """
        response = await self._exchange(Request(verb, path, params, body, content_type, timeout))
        return response.body

    async def _exchange(self, request: Request) -> Response:
        for attempt in (1, 2):
            await self.api.refresh_token()
            if request.verb != "GET" and self.before_write is not None:
                self.before_write(request)
            generation = self.api.generation
            try:
                response = await self._call(request)
            except Unreachable as lost:
                self.statistics.count(request.verb, 0)
                if attempt == 2 or not lost.untrusted or not await self._login(generation):
                    raise
                continue
            self.statistics.count(request.verb, response.status)
            if response.success:
                return response
            error = from_response(request.verb, request.path, response.status, response.headers, response.body)
            if attempt == 2 or not isinstance(error, Unauthorized) or not await self._login(generation):
                raise error
        raise AssertionError("unreachable")

    async def _login(self, generation: int) -> bool:
        """Log in again unless another request did since ``generation``; false when that failed."""
        ended = self._logins
        async with self._login_lock:
            if self.api.generation != generation:
                return True
            if self._logins != ended:
                return False  # it failed while this request waited for it: that is its answer too
            try:
                with fail_after(self.clock, LOGIN_TIMEOUT):
                    await self.api.login()
            except Exception as error:
                log.warning("cannot read credentials again", error=str(error) or type(error).__name__)
                return False
            finally:
                self._logins += 1
            return True

    async def _send(self, request: Request) -> Response:
        """The innermost call: over the wire, through kr8s's one seam."""
        try:
            if request.stack is None:
                async with self._call_api(request, httpx.Timeout(request.timeout)) as response:
                    return Response(response.status_code, response.headers, response.content)
            timeout = httpx.Timeout(None, connect=request.timeout)
            response = await request.stack.enter_async_context(self._call_api(request, timeout))
            answer = Response(response.status_code, response.headers)
            if not answer.success:
                answer.body = await response.aread()
            else:
                zipped = "content-encoding" in response.headers
                answer.chunks = response.aiter_bytes() if zipped else response.aiter_raw()
            return answer
        except (httpx.RequestError, kr8s.APITimeoutError) as error:
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
            headers=None if request.content_type == JSON else {"Content-Type": request.content_type},
            timeout=timeout,
        )

    def _unreachable(self, request: Request, error: Exception) -> Unreachable:
        cause = error.__cause__ if isinstance(error, kr8s.APITimeoutError) and error.__cause__ else error
        sent = not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        text = str(cause) or type(cause).__name__
        return Unreachable(
            text,
            request.verb,
            request.path,
            ambiguous=sent,
            server=self.api.server,
            untrusted=any(isinstance(e, ssl.SSLCertVerificationError) for e in _causes(error)),
        )

    async def stream(
        self,
        path: str,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_timeout: float,
        on_open: Callable[[], None] | None = None,
    ) -> None:
        """GET and hand on each complete line until the server ends the stream.

        :param on_line: called synchronously; what it raises ends the stream and is passed on
        :param on_open: called once when the server has accepted
        :param idle_timeout: seconds without a byte after which a half-open connection is given up
        :raises Unreachable: connection lost, never answered, or idle
        """
        idle, response = _IdleTimer(self.clock, idle_timeout), None
        with anyio.CancelScope() as scope, idle.running(scope.cancel):
            async with AsyncExitStack() as stack:
                request = Request("GET", path, params, stack=stack)
                response = await self._exchange(request)
                if on_open is not None:
                    on_open()
                if response.chunks is not None:
                    await self._read_lines(request, response.chunks, idle, on_line)
        if scope.cancelled_caught:
            if response is None:
                text = f"no answer to a watch within {idle_timeout:g} s"
                raise Unreachable(text, "GET", path, ambiguous=False, server=self.api.server)
            text = f"no event or bookmark for {idle_timeout:g} s"
            raise Idle(text, "GET", path, ambiguous=False, server=self.api.server)

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
                except (httpx.RequestError, httpx.StreamError) as error:
                    raise self._unreachable(request, error) from error
                if chunk is None:
                    return  # a partial last line is an event the server did not finish: it comes again
                now = monotonic()
                idle.last = now
                read = rest + chunk
                start = 0
                # split() looks at one byte after the other, and takes half as long as decoding does.
                while (end := read.find(b"\n", start)) >= 0:
                    if end > start:
                        on_line(read[start:end])
                    start = end + 1
                rest = read[start:]
                if len(rest) > MAX_LINE:
                    text = f"a line of more than {MAX_LINE} bytes"
                    raise Unreachable(text, request.verb, request.path, ambiguous=False, server=self.api.server)
                # Buffered chunks come without a pause: give the other tasks their turn.
                if monotonic() > slice_end:
                    await anyio.lowlevel.checkpoint()
                    slice_end = monotonic() + SLICE


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


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return the error, what it came from, what that came from …"""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _wrap(interceptor: Interceptor, call_next: CallNext) -> CallNext:
    async def call(request: Request) -> Response:
        return await interceptor(request, call_next)

    return call
