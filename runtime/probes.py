"""The HTTP endpoints of a process: ``/livez`` and ``/healthz``, ``/readyz``, ``/metrics``, ``/debug/caches``.

``/livez`` answers while the event loop turns: what cannot go on ends the process instead of answering badly.
``/readyz`` says whether the caches are complete and kept up, also on a replica that does not lead.
``/debug/caches`` has the name and resourceVersion of each cached object, to be compared with a fresh list.
"""

from __future__ import annotations

from typing import NoReturn

import anyio
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector as SystemCollector

from runtime.errors import ConfigError
from runtime.metrics import ProcessCollector
from runtime.objects import key_of


class Probes:
    """Serves the endpoints for one process. What it says comes from the collector's manager of the moment."""

    def __init__(self, collector: ProcessCollector) -> None:
        self._collector = collector
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        for make in (SystemCollector, PlatformCollector, GCCollector):
            make(registry=self._registry)
        #: Where it listens, once it does.
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Begin to answer.

        :param host: "" for all addresses of this machine
        :param port: 0 for any free one
        :raises ConfigError: the address cannot be listened on
        """
        app = web.Application()
        app.router.add_get("/livez", self._live)
        app.router.add_get("/healthz", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/caches", self._caches)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host or None, port).start()
        except OSError as error:
            await self._runner.cleanup()
            where = f"{host}:{port}"
            raise ConfigError(
                f"cannot listen on {where} ({error.strerror}); choose another --metrics-address"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def serve(self) -> NoReturn:
        """Answer until cancelled; after :meth:`listen`."""
        try:
            while True:
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self._runner.cleanup()

    async def _live(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        manager = self._collector.manager
        reasons = manager.why_not_ready() if manager is not None else ["waiting for a cluster that can be used"]
        if not reasons:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    async def _caches(self, _request: web.Request) -> web.Response:
        manager = self._collector.manager
        informers = manager.caches if manager is not None else {}
        # Names and versions only: who may see the objects themselves asks the API server.
        caches = {
            name: {
                "/".join(filter(None, key_of(obj))): obj.metadata.resource_version for obj in informer.store.values()
            }
            for name, informer in informers.items()
        }
        return web.Response(body=msgspec.json.encode(caches), content_type="application/json")

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
