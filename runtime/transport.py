"""An httpx transport on aiohttp.

httpcore rescans its whole pool for every queued request: about 450 POST/s at 50 in flight, where this one
does 2,000 to 4,000. httpx and kr8s above it are unchanged; exec and port-forward need httpcore's raw stream
and keep a plain kr8s Api.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from typing import Any

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
        """Send one request; the body of the answer streams. What httpx calls; see :meth:`exchange`."""
        return await self.exchange(request, stream=True)

    async def exchange(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send one request.

        :param stream: false reads the body, at a stroke and not through httpx's four iterators
        :raises httpx.ConnectError, httpx.ConnectTimeout: nothing was sent
        :raises httpx.TransportError: any other: the server may have carried it out
        """
        limits = request.extensions.get("timeout", {})
        timeout = aiohttp.ClientTimeout(
            total=limits.get("pool"), sock_connect=limits.get("connect"), sock_read=limits.get("read")
        )
        try:
            response = await (self._session or self._open()).request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=[(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw],
                data=await request.aread() or None,
                skip_auto_headers=_SKIP,
                allow_redirects=False,
                timeout=timeout,
                ssl=self.ssl_context,
                proxy=self._proxy,
                server_hostname=request.extensions.get("sni_hostname"),
            )
            body = {"stream": _Body(response, request)} if stream else {"content": await response.read()}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _translate(error, request) from error
        extensions = {"http_version": b"HTTP/1.1"}
        return httpx.Response(response.status, headers=list(response.raw_headers), extensions=extensions, **body)

    async def aclose(self) -> None:
        """Close the session and its connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class DirectClient(httpx.AsyncClient):
    """An httpx client that hands requests straight to our transport.

    httpx would look for cookies, redirects and steps of an auth flow, of which an API server has none: a quarter of the
    CPU of a request.
    """

    def __init__(self, transport: AiohttpTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        self._direct = transport

    async def send(self, request: httpx.Request, *, stream: bool = False, **_options: Any) -> httpx.Response:
        """Send one request; without ``stream``, the body has been read."""
        response = await self._direct.exchange(request, stream=stream)
        response.request = request
        return response


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _translate(error, self._request) from error

    async def aclose(self) -> None:
        # After the last byte the connection is back in the pool already; before it, only closing ends the stream.
        if not self._response.content.at_eof():
            self._response.close()


def _translate(error: Exception, request: httpx.Request) -> httpx.TransportError:
    text = _words(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout(text, request=request)
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(text, request=request)
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx.ConnectError(text, request=request)
    return httpx.ReadError(text, request=request)


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
