"""A reflector with a store and handlers: the read side of every controller."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, TypeVar, cast

import anyio
import anyio.lowlevel
import structlog

from runtime.client import Client
from runtime.clock import Clock
from runtime.exchange import SLICE
from runtime.objects import Key, Object, decoder_for
from runtime.reflector import Reflector, ReflectorStatistics
from runtime.resources import Resource
from runtime.store import Change, EventType, Store

T = TypeVar("T", bound=Object)
R = TypeVar("R")

#: ``fn(type, old, new)``; see :class:`runtime.store.Change` for what is None when.
Handler = Callable[[EventType, T | None, T | None], None]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """A snapshot for metrics and for the ``/debug`` page."""

    objects: int
    synced: bool
    healthy: bool
    handler_errors: int
    reflector: ReflectorStatistics


class Informer(Generic[T]):
    """The live copy of one resource (in one namespace, under one selector).

    Handlers are called synchronously in the server's order, after the store has changed; they must be cheap
    (enqueue a key, update an index) and their exceptions are logged and counted, never more.

    :param type: a msgspec struct or a pydantic model, whose ``metadata`` has at least what
        :class:`runtime.objects.Metadata` says
    :param decode: bytes of one object to ``T``, instead of ``type``. Items of a list carry no apiVersion and kind
    :param transform: drops what nobody reads before the object is stored; must keep its metadata. An object that it
        raises for counts as one that cannot be read
    :raises TypeError: neither ``type`` nor ``decode`` is given
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type: type[T] | None = None,  # noqa: A002 - reads best at the call
        *,
        clock: Clock,
        decode: Callable[[bytes], T] | None = None,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        transform: Callable[[T], T] | None = None,
        rng: random.Random | None = None,
        page_size: int = 500,
    ) -> None:
        if decode is None and type is None:
            raise TypeError(
                f"the informer of {resource.key} needs a type or decode: a dict has no .metadata to file it by"
            )
        self.resource = resource
        self.store: Store[T] = Store()
        #: Set once the first list is in the store and the handlers know all of it.
        self.synced = anyio.Event()
        #: True while handlers have been told only a part of a new list: what they know is not yet what the store has.
        self.replacing = False
        self.handler_errors = 0
        self._handlers: list[Handler[T]] = []
        self._clock = clock
        self._reflector: Reflector[T] = Reflector(
            client,
            resource,
            _then(decode or type, transform),
            self,
            clock=clock,
            rng=rng,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
        )

    @property
    def name(self) -> str:
        """For logs: the resource."""
        return self.resource.key

    @property
    def healthy(self) -> bool:
        """True while the reflector runs and has heard from the server lately."""
        return self._reflector.healthy

    @property
    def statistics(self) -> InformerStatistics:
        """A snapshot."""
        return InformerStatistics(
            objects=len(self.store),
            synced=self.synced.is_set(),
            healthy=self.healthy,
            handler_errors=self.handler_errors,
            reflector=replace(self._reflector.statistics),
        )

    def add_handler(self, fn: Handler[T]) -> None:
        """Call ``fn`` for every change from now on, and first with an "add" for each object already held."""
        self._handlers.append(fn)
        for obj in self.store.values():
            self._tell(fn, Change("add", None, obj))

    async def run(self) -> NoReturn:
        """Run until cancelled."""
        await self._reflector.run()

    async def refresh(self) -> None:
        """Return once the store and the handlers know the state as it was at this call or later; while it runs."""
        await self._reflector.refresh()

    # -- the reflector's sink -------------------------------------------------------------------------------------

    async def replaced(self, items: list[T], keep: Mapping[Key, str]) -> None:
        """Take a complete list, in slices: the store swaps at once, then the handlers are told."""
        changes = await self._in_slices(self.store.replacement(items, keep))
        self.replacing = True
        # A handler that is added between two slices is told all from the store.
        await self._in_slices(self._tell_all(tuple(self._handlers), changes))
        self.replacing = False
        self.synced.set()

    def _tell_all(self, handlers: tuple[Handler[T], ...], changes: list[Change[T]]) -> Generator[None, None, None]:
        for change in changes:
            for fn in handlers:
                self._tell(fn, change)
            yield

    async def _in_slices(self, work: Generator[None, None, R]) -> R:
        """Run it to its end, with a pause for others whenever it yields after a slice of time."""
        slice_end = self._clock.monotonic() + SLICE
        while True:
            try:
                next(work)
            except StopIteration as end:
                return cast("R", end.value)
            if self._clock.monotonic() > slice_end:
                await anyio.lowlevel.checkpoint()
                slice_end = self._clock.monotonic() + SLICE

    def changed(self, obj: T) -> None:
        """Take one new state."""
        for change in self.store.put(obj):
            self._dispatch(change)

    def deleted(self, key: Key, last: T | None) -> None:
        """Take one deletion."""
        for change in self.store.remove_key(key, last):
            self._dispatch(change)

    def _dispatch(self, change: Change[T]) -> None:
        for fn in self._handlers:
            self._tell(fn, change)

    def _tell(self, fn: Handler[T], change: Change[T]) -> None:
        try:
            fn(*change)
        except Exception:
            self.handler_errors += 1
            log.exception("a handler failed", resource=self.resource.key, handler=getattr(fn, "__qualname__", repr(fn)))


def _then(decode: Any, transform: Callable[[T], T] | None) -> Any:
    """Return how to decode and then transform: what either refuses cannot be read."""
    if transform is None:
        return decode
    read = decoder_for(decode)
    return lambda data: transform(read(data))


AnyInformer = Informer[Any]
