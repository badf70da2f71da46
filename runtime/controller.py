"""Workers that reconcile keys.

A reconcile gets a key and nothing else: it reads the present state and makes the world like it, so that
events may be lost, doubled or reordered. What it returns or raises decides when the key comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
import structlog

from runtime.backoff import Repeats
from runtime.cancellation import own_cancellation_only
from runtime.clock import Clock, move_on_after
from runtime.errors import ApiError, Conflict, TerminalError, TooManyRequests, explain
from runtime.exchange import SLICE
from runtime.informer import Informer
from runtime.objects import Object, key_of
from runtime.store import EventType
from runtime.telemetry import span
from runtime.workqueue import QueueShutDown, RateLimitingQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Object)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """``requeue_after``: seconds until the key should be looked at again though nothing happened.

    None for not at all.
    """

    requeue_after: float | None = None

    def __post_init__(self) -> None:
        """Refuse here what the queue could not count with: the traceback shows who made it."""
        if not isinstance(self.requeue_after, int | float | None):
            raise TypeError(f"requeue_after is seconds as a number or None, not {self.requeue_after!r}")


Reconcile = Callable[[K], Awaitable[Result | None]]


@dataclass(slots=True)
class ControllerStatistics:
    """Counts since the start, changed in place."""

    reconciles: int = 0
    errors: int = 0
    terminal: int = 0
    timeouts: int = 0
    seconds: float = 0.0


class Controller(Generic[K]):
    """``workers`` tasks that take keys from :attr:`queue`.

    ========================  =============================================================
    the reconcile             the key
    ========================  =============================================================
    returns None              is forgotten until the next event
    returns requeue_after     is forgotten and added after that time
    raises TerminalError      is forgotten; the error is logged
    raises anything else,     comes again after its back-off (after Retry-After if that is
    or exceeds ``timeout``    later)
    is cancelled              is let go, and queued again if it was added meanwhile
    ========================  =============================================================

    An ExceptionGroup is what its members are: terminal if all of them are, and the longest Retry-After counts.

    :param queue: one of its own if left out
    :param timeout: seconds for one reconcile
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[K],
        queue: RateLimitingQueue[K] | None = None,
        *,
        clock: Clock,
        workers: int = 1,
        timeout: float = 60.0,
    ) -> None:
        self.name = name
        self.queue: RateLimitingQueue[K] = RateLimitingQueue(clock, name=name) if queue is None else queue
        self._reconcile = reconcile
        self._clock = clock
        self._workers = workers
        self._timeout = timeout
        self._log = log.bind(controller=name)
        self._repeats = Repeats(clock)
        self._running = False
        #: For each informer: takes what is there as added.
        self._begin: list[Callable[[], Awaitable[None]]] = []
        self.statistics = ControllerStatistics()

    def enqueue_on(
        self,
        informer: Informer[T],
        key_fn: Callable[[T], K | list[K] | set[K] | frozenset[K] | None] | None = None,
        *,
        predicate: Callable[[EventType, T | None, T | None], bool] | None = None,
        priority: int = 0,
    ) -> None:
        """Enqueue the keys that an informer's changes concern: those of the old and those of the new state.

        Changes before :meth:`run` are not kept, so that a replica which only waits does not pile up keys: when it
        begins, each object that is there is taken as added.

        :param key_fn: the object's own (namespace, name) if left out; a list or set of keys stands for several, a
            tuple is one key. A state for which it raises brings no key: that is logged and counted as the informer's
            handler error
        :param predicate: false drops the change, and so does an error in it, which is logged likewise
        """
        keys: Callable[[Any], Any] = key_fn or key_of

        def failed(what: str, obj: T | None) -> None:
            informer.handler_errors += 1
            self._log.exception(what, resource=informer.resource.key, key=key_of(obj) if obj is not None else None)

        def handler(event: EventType, old: T | None, new: T | None) -> None:
            if not self._running:
                return
            try:
                if predicate is not None and not predicate(event, old, new):
                    return
            except Exception:
                failed("a predicate failed", old if new is None else new)
                return
            found: dict[K, None] = {}
            for obj in (old, new):
                if obj is None:
                    continue
                try:
                    found |= dict.fromkeys(_as_keys(keys(obj)))
                except Exception:  # each state for itself: a good one that follows an odd one must be seen
                    failed("a key function failed", obj)
            for key in found:
                self.queue.add(key, priority)

        async def begin() -> None:
            slice_end = self._clock.monotonic() + SLICE
            for obj in informer.store.values():
                handler("add", None, obj)
                if self._clock.monotonic() > slice_end:
                    await anyio.lowlevel.checkpoint()
                    slice_end = self._clock.monotonic() + SLICE

        informer.add_handler(handler)
        self._begin.append(begin)

    async def run(self) -> None:
        """Run the workers until the queue is shut down and drained, or until cancelled."""
        self._running = True
        for begin in self._begin:
            await begin()
        async with anyio.create_task_group() as group:
            for _ in range(self._workers):
                group.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()  # a thousand reconciles with nothing to do must not stall the loop
            try:
                key = await self.queue.get()
            except QueueShutDown:
                return
            # No await between get() and try: a cancellation there would hold the key for ever.
            try:
                await self._process(key)
            finally:
                self.queue.done(key)

    async def _process(self, key: K) -> None:
        started = self._clock.monotonic()
        statistics = self.statistics
        statistics.reconciles += 1
        try:
            with span(f"reconcile {self.name}", key=str(key)), own_cancellation_only():
                result = await self._in_time(key)
        except Exception as error:
            self._failed(key, error)
        else:
            self.queue.forget(key)
            if result is not None and result.requeue_after is not None:
                self.queue.add_after(key, result.requeue_after)
        finally:
            statistics.seconds += self._clock.monotonic() - started

    async def _in_time(self, key: K) -> Result | None:
        with move_on_after(self._clock, self._timeout) as scope:
            result = await self._reconcile(key)
        if scope.cancelled_caught:
            raise _TookTooLong(f"took longer than {self._timeout:g} s")
        if isinstance(result, Result | None):
            return result
        raise TypeError(f"a reconcile returns a Result or None, not {result!r}")

    def _failed(self, key: K, error: Exception) -> None:
        causes = _leaves(error)
        if all(isinstance(cause, TerminalError) for cause in causes):
            self.statistics.terminal += 1
            self.queue.forget(key)
            self._log.error("gave up until it changes", key=key, error="; ".join(map(explain, causes)))
            return
        self.statistics.errors += 1
        at_least = max((cause.retry_after for cause in causes if isinstance(cause, TooManyRequests)), default=0.0)
        retry_in = self.queue.add_rate_limited(key, at_least=at_least)
        if len(causes) == 1:  # a task group says no more about it
            error = causes[0]
        if isinstance(error, Conflict):
            self._log.debug("changed meanwhile; again", key=key, error=explain(error), retry_in=retry_in)
        elif isinstance(error, ApiError):
            # A cause that hits every object alike (RBAC, an outage) is one line a minute, not one an object.
            level = logging.WARNING if self._repeats.allows(explain(error, named=False)) else logging.DEBUG
            self._log.log(level, explain(error), key=key, retry_in=retry_in)
        elif isinstance(error, _TookTooLong):
            self.statistics.timeouts += 1
            self._log.warning("reconcile took too long", key=key, limit=self._timeout, retry_in=retry_in)
        else:
            self._log.exception("reconcile failed", key=key, retry_in=retry_in)


class _TookTooLong(Exception):  # noqa: N818
    """The controller's own limit; a TimeoutError is the reconcile's."""


def _as_keys(value: Any) -> Collection[Any]:
    """Return what a key function returned as a collection."""
    if value is None:
        return ()
    if isinstance(value, list | set | frozenset):
        return value
    if isinstance(value, Iterator):  # hashable, so it would pass for a key
        raise TypeError(f"a key function returns a key, or a list or set of keys, not a {type(value).__name__}")
    return (value,)


def _leaves(error: Exception) -> list[Exception]:
    """Return the errors themselves, without the groups around them."""
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
