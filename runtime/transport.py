"""An httpx transport on aiohttp.

httpcore rescans its whole pool for every queued request: about 450 POST/s at 50 in flight, where this one
does 2,000 to 4,000. httpx and kr8s above it are unchanged; exec and port-forward need httpcore's raw stream
and keep a plain kr8s Api.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
import httpx
from yarl import URL

_SKIP = frozenset({"accept", "accept-encoding", "user-agent", "content-type"})


class AiohttpTransport(httpx.AsyncBaseTransport):
    """One lazily made aiohttp session.

    The four httpx time-outs map to aiohttp's: ``connect`` and ``read`` bound one socket operation, ``pool`` bounds the
    **whole** exchange with its body, which httpx cannot say otherwise; a watch passes ``pool=None``.

    :param ssl_context: replaced in place when certificates rotate: new connections use it, none in flight is closed
    """

    def __init__(
        self,
        ssl_context: ssl.SSLContext | bool,
        *,
        proxy: str | None = None,
        limit: int = 256,
        keepalive: float = 60.0,
    ) -> None:
        self.ssl_context = ssl_context
        self._proxy = proxy
        self._limit = limit
        self._keepalive = keepalive
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        # Made on first use: aiohttp binds a session to the running loop.
        connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=self._keepalive)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self._session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the body of the answer streams. What httpx calls."""
        response = await self.start(
            request.method,
            str(request.url),
            [(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw],
            await request.aread() or None,
            request.extensions.get("timeout", {}),
            request.extensions.get("sni_hostname"),
        )
        return httpx.Response(
            response.status,
            headers=list(response.raw_headers),
            extensions={"http_version": b"HTTP/1.1"},
            stream=_Body(response),
        )

    async def start(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | None,
        limits: Mapping[str, float | None],
        server_hostname: str | None,
    ) -> aiohttp.ClientResponse:
        """Send one request and return its answer's head; the body can be read.

        :param limits: seconds, by httpx' names
        :raises httpx.ConnectError, httpx.ConnectTimeout: nothing was sent
        :raises httpx.TransportError: any other: the server may have carried it out
        """
        timeout = aiohttp.ClientTimeout(
            total=limits.get("pool"), sock_connect=limits.get("connect"), sock_read=limits.get("read")
        )
        try:
            return await (self._session or self._open()).request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=body,
                skip_auto_headers=_SKIP,
                allow_redirects=False,
                timeout=timeout,
                ssl=self.ssl_context,
                proxy=self._proxy,
                server_hostname=server_hostname,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _translate(error) from error

    async def aclose(self) -> None:
        """Close the session and its connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, under the names that httpx.Response has for its parts."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class DirectClient(httpx.AsyncClient):
    """An httpx client that hands requests straight to our transport.

    httpx would look for cookies, redirects and steps of an auth flow, of which an API server has none, parse each URL
    anew, and copy all headers twice: more than half of the CPU of a request.
    """

    def __init__(self, transport: AiohttpTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        self._direct = transport

    async def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        *,
        timeout: httpx.Timeout | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        extensions: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Answer | httpx.Response:
        """Send one request to an absolute URL and read the whole answer; what is not ours goes httpx' whole way.

        :raises httpx.TransportError: see :meth:`AiohttpTransport.start`
        """
        if timeout is None or more or url.startswith("/"):
            more |= {"content": content, "params": params, "headers": headers, "extensions": extensions}
            more |= {"timeout": timeout} if timeout is not None else {}
            return await super().request(method, url, **more)
        own = {name.lower(): value for name, value in (headers or {}).items()}
        all_headers = [(name, value) for name, value in self.headers.items() if name not in own]
        response = await self._direct.start(
            method,
            f"{url}?{urlencode(params)}" if params else url,
            all_headers + list(own.items()),
            content,
            timeout.as_dict(),
            (extensions or {}).get("sni_hostname"),
        )
        try:
            return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _translate(error) from error

    async def send(self, request: httpx.Request, *, stream: bool = False, **_options: Any) -> httpx.Response:
        """Send one request; without ``stream``, the body has been read."""
        response = await self._direct.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _translate(error) from error

    async def aclose(self) -> None:
        # After the last byte the connection is back in the pool already; before it, only closing ends the stream.
        # Without TLS's goodbyes: a process that stops would not wait for the server's, and leave the socket open.
        if not self._response.content.at_eof():
            connection = self._response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()
            self._response.close()


def _translate(error: Exception) -> httpx.TransportError:
    text = _words(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout(text)
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(text)
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx.ConnectError(text)
    return httpx.ReadError(text)


def _words(error: Exception) -> str:
    """What happened, without aiohttp's own objects: the same fault has the same words each time."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        # asyncio's own text of a refused connection is about its call; an unknown name has no errno.
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error)
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection ended in the middle of an answer"
    return str(error) or type(error).__name__
