"""A proxy before the real API server that delays, cuts, refuses and lies, as a network and an overloaded server do.

It serves with the cluster's own certificate, so a client differs from one without a proxy by its port alone. What a
client has given up on is not handed on any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import yarl
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from cluster import Cluster
from cluster.kubeconfig import Access

_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one request.

    :param delay: seconds before it is handed on, or answered
    :param status: answered so without asking the server; 0: handed on
    :param cut: the connection is reset, ``"before"`` the server gets the request or ``"after"`` it has answered
    """

    delay: float = 0.0
    status: int = 0
    cut: str = ""


Rule = Callable[[web.Request], Fault | None]

_REASONS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


class FaultProxy:
    """Hands requests on to a cluster's API server, as :attr:`rule` says."""

    def __init__(self, cluster: Cluster) -> None:
        access = Access.read(cluster.kubeconfig)
        self._cluster = cluster
        self._upstream = yarl.URL(access.server)
        self._context = ssl.create_default_context(cadata=access.ca)
        keys = cluster.kubeconfig.parent / "data"
        self._serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._serving.load_cert_chain(keys / "serving.crt", keys / "serving.key")
        self.rule: Rule = lambda request: None
        self.port = 0
        #: Faults by kind.
        self.hits: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: web.ServerRunner
        self._held = asyncio.Event()
        self._held.set()

    def kubeconfig(self, who: str) -> Path:
        """Return a kubeconfig of one of our ServiceAccounts that goes through this proxy."""
        access = Access.read(self._cluster.kubeconfig_as(who))
        target = self._cluster.kubeconfig.parent / f"kubeconfig-{who}-{self.port}"
        Access(f"https://127.0.0.1:{self.port}", access.ca, access.token).write(target, f"proxy-{self.port}", who)
        return target

    def serve_with(self, certificate: Path, key: Path) -> None:
        """Show another certificate to who connects from now on."""
        self._serving.load_cert_chain(certificate, key)

    # -- faults of the whole line -------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection that is open now, those that wait for their next request among them."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._abort_all)
        self.hits["cut all"] += 1

    def _abort_all(self) -> None:
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def hold(self, held: bool) -> None:
        """Keep connections open and hand nothing on, in either direction, until told otherwise: a half-open line."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._held.clear if held else self._held.set)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        await self._held.wait()
        fault = self.rule(request) or Fault()
        await asyncio.sleep(fault.delay)
        if fault.delay:
            self.hits["delay"] += 1
        if fault.status:
            self.hits[str(fault.status)] += 1
            return _refusal(fault.status)
        if fault.cut == "before":
            return self._reset(transport)
        return await self._forward(request, transport, fault)

    async def _forward(self, request: web.Request, transport: asyncio.Transport, fault: Fault) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = self._upstream.with_path(request.rel_url.raw_path, encoded=True).with_query(request.rel_url.query)
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=await request.read() or None, ssl=self._context
            ) as upstream:
                if fault.cut == "after":
                    await upstream.read()
                    return self._reset(transport)
                response = web.StreamResponse(status=upstream.status)
                for name, value in upstream.headers.items():
                    if name.lower() not in _HOP:
                        response.headers[name] = value
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await self._held.wait()
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            return self._reset(transport)

    def _reset(self, transport: asyncio.Transport) -> web.StreamResponse:
        self.hits["reset"] += 1
        transport.abort()
        return web.Response(status=502)

    async def serve(self, started: threading.Event) -> None:
        """Serve until cancelled."""
        self._loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False, connector=connector)
        try:
            # A request whose client has gone is cancelled, wherever it is.
            self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._serving).start()
            self.port = self._runner.addresses[0][1]
            started.set()
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                self._abort_all()
                await self._runner.cleanup()
                await self._session.close()
                await asyncio.sleep(0.2)  # connections that were aborted close a few turns of the loop later


def _refusal(status: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": _REASONS[status]}
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.json_response({**body, "message": "a fault of the test"}, status=status, headers=headers)


@contextlib.contextmanager
def proxied(cluster: Cluster) -> Iterator[FaultProxy]:
    """Run a proxy beside the test."""
    made, started = FaultProxy(cluster), threading.Event()
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(made.serve, started)
        assert started.wait(10), future.exception(0)
        try:
            yield made
        finally:
            future.cancel()
