"""Carries out binds: a fixed pool of tasks, and the outcome of each back to the core."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import anyio
import structlog

from api.wire import Pod
from runtime.backoff import Repeats
from runtime.client import Client
from runtime.clock import Clock
from runtime.errors import ApiError, Conflict, NotFound, explain
from runtime.resources import PODS
from scheduler.core import events
from scheduler.core.instructions import Bind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Binds in flight at once. The API server on the same machine is saturated well below.
WORKERS = 48
#: Seconds between two looks at a pod whose bind got no answer.
LOOK_AGAIN = 1.0

Outcome = events.BindDone | events.BindFailed


class Binder:
    """Binds what is submitted, in order, ``WORKERS`` at once.

    A bind whose answer was lost is settled by reading the pod: until then its room stays assumed.

    :param report: called with the outcome of each bind, synchronously
    """

    def __init__(self, client: Client, clock: Clock, report: Callable[[Outcome], None]) -> None:
        self._client = client
        self._clock = clock
        self._report = report
        self._queue: deque[Bind] = deque()
        self._news = anyio.Event()
        self._repeats = Repeats(clock)

    def submit(self, bind: Bind) -> None:
        """Queue a bind; returns at once."""
        self._queue.append(bind)
        if not self._news.is_set():
            self._news.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            while not self._queue:
                if self._news.is_set():
                    self._news = anyio.Event()
                await self._news.wait()
            bind = self._queue.popleft()
            self._report(await self._bind(bind))

    async def _bind(self, bind: Bind) -> Outcome:
        try:
            await self._client.bind(bind.namespace, bind.name, bind.uid, bind.node)
        except (NotFound, Conflict) as error:
            return events.BindFailed(bind.uid, explain(error), final=True)
        except ApiError as error:
            level = logging.WARNING if self._repeats.allows(explain(error, named=False)) else logging.DEBUG
            log.log(level, "bind failed", pod=f"{bind.namespace}/{bind.name}", node=bind.node, error=explain(error))
            if error.ambiguous:
                return await self._read_back(bind, explain(error))
            return events.BindFailed(bind.uid, explain(error))
        return events.BindDone(bind.uid)

    async def _read_back(self, bind: Bind, message: str) -> Outcome:
        while True:
            try:
                pod = await self._client.get(PODS, bind.name, bind.namespace, type=Pod)
            except NotFound:
                return events.BindFailed(bind.uid, message, final=True)
            except ApiError:
                await self._clock.sleep(LOOK_AGAIN)
                continue
            if pod.metadata.uid != bind.uid or pod.spec.node_name not in ("", bind.node):
                return events.BindFailed(bind.uid, message, final=True)
            return events.BindDone(bind.uid) if pod.spec.node_name else events.BindFailed(bind.uid, message)
