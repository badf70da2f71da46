"""Carries out binds: a fixed pool of tasks, and the outcome of each back to the core."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import structlog

from api.wire import Pod
from runtime.backoff import Repeats
from runtime.client import Client
from runtime.clock import Clock, move_on_after
from runtime.errors import ApiError, Conflict, NotFound, explain
from runtime.resources import PODS
from scheduler.core import events
from scheduler.core.instructions import Bind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Binds in flight at once, each on a connection of its own (100 kB): an API server that answers in 20 ms is asked for
#: 1,600 a second, and one on the same machine is saturated well below.
WORKERS = 32
#: Seconds between two looks at a pod whose bind got no answer.
LOOK_AGAIN = 1.0
#: Seconds for one bind.
BIND_SECONDS = 10.0
#: Seconds in which binds that were submitted are begun when the process stops; with the last one within its grace.
DRAIN_SECONDS = 10.0

Outcome = events.BindDone | events.BindFailed


class Binder:
    """Binds what is submitted, in order, ``WORKERS`` at once.

    A bind that failed in a way that says nothing is settled by reading the pod; until then its room stays assumed.
    That is so for a lost answer, for 5xx, and for 409: the API server gives that to any failed write of a binding.

    :param report: called with the outcome of each bind, synchronously; of a pod that is gone or bound elsewhere with
        nothing, as the watch tells that
    """

    def __init__(self, client: Client, clock: Clock, report: Callable[[Outcome], None]) -> None:
        self._client = client
        self._clock = clock
        self._report = report
        self._queue: deque[Bind] = deque()
        self._under_way = 0
        self._news = anyio.Event()
        self._repeats = Repeats(clock)

    @property
    def busy(self) -> bool:
        """Whether any bind is under way or waits for its turn."""
        return bool(self._queue or self._under_way)

    def submit(self, bind: Bind) -> None:
        """Queue a bind; returns at once."""
        self._queue.append(bind)
        if not self._news.is_set():
            self._news.set()

    async def run(self) -> None:
        """Work until cancelled; then finish what was submitted, so that no gang is left half bound by a stop."""
        try:
            await self._run_workers(self._work)
        finally:
            with move_on_after(self._clock, DRAIN_SECONDS, shield=True):
                await self._run_workers(self._drain)

    async def _run_workers(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(work)

    async def _work(self) -> None:
        while True:
            while not self._queue:
                if self._news.is_set():
                    self._news = anyio.Event()
                await self._news.wait()
            await self._next()

    async def _drain(self) -> None:
        while self._queue:
            await self._next()

    async def _next(self) -> None:
        bind = self._queue.popleft()
        self._under_way += 1
        try:
            with anyio.CancelScope(shield=True):
                # A stop in the middle would leave it open whether the pod is bound; the request has its own time limit.
                failure = await self._send(bind)
        finally:
            self._under_way -= 1
        if failure is None:
            self._report(events.BindDone(bind.uid))
        elif failure.ambiguous or isinstance(failure, Conflict):
            await self._settle(bind, explain(failure, named=False))
        elif not isinstance(failure, NotFound):
            # Without the pod's name: the cause is mostly the same for all, and then said once.
            self._report(events.BindFailed(bind.uid, explain(failure, named=False)))

    async def _send(self, bind: Bind) -> ApiError | None:
        try:
            await self._client.bind(bind.namespace, bind.name, bind.uid, bind.node, timeout=BIND_SECONDS)
        except ApiError as error:
            level = logging.WARNING if self._repeats.allows(explain(error, named=False)) else logging.DEBUG
            log.log(level, "bind failed", pod=f"{bind.namespace}/{bind.name}", node=bind.node, error=explain(error))
            return error
        return None

    async def _settle(self, bind: Bind, message: str) -> None:
        while True:
            try:
                pod = await self._client.get(PODS, bind.name, bind.namespace, type=Pod)
            except NotFound:
                return
            except ApiError:
                await self._clock.sleep(LOOK_AGAIN)
                continue
            if pod.metadata.uid == bind.uid and not pod.spec.node_name:
                self._report(events.BindFailed(bind.uid, message))
            elif pod.metadata.uid == bind.uid and pod.spec.node_name == bind.node:
                self._report(events.BindDone(bind.uid))
            return
