"""List, then watch, for ever: keeps a copy of one resource in step with the API server.

A coroutine that calls its sink, not an async generator: nothing is yielded inside a cancel scope. Protocol
facts it holds to:

* the version to resume from is that of the last event or bookmark; it is never resumed at one the server
  called expired;
* 410 (as a status or as an ERROR event) means list again; 429 waits as told; any other failure waits and resumes;
* a list is consistent only as a whole: an expired continue token starts it over, and the pages are handed on together;
* bookmarks come about every minute, so 75 silent seconds are a dead connection.

Lists ask for the newest state (no resourceVersion), not for "any" (``0``): only then does the server page,
and a restarted scheduler does not act on a cache that lags behind its own last writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import anyio
import msgspec
import structlog

from runtime.backoff import Backoff, Repeats
from runtime.client import Client
from runtime.clock import Clock
from runtime.errors import (
    ApiError,
    Gone,
    Idle,
    TooManyRequests,
    Unreachable,
    Unreadable,
    decode_status,
    explain,
    from_status,
)
from runtime.objects import Key, Meta, Object, Undecodable, decoder_for, peek
from runtime.resources import Resource

T = TypeVar("T", bound=Object)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Bounds of the life of one watch in seconds; the server ends it, and reconnecting spreads over its replicas.
WATCH_SECONDS = (300, 600)
#: Refusals of one version, whatever they say, after which it may be what is wrong, and all is listed again.
REFUSALS = 3
#: Seconds without a sign of life (bookmarks included) after which a reflector is no longer healthy.
CONTACT_LIMIT = 150.0


class Sink(Protocol[T]):
    """Who is told. Both are called on the event loop, in the server's order."""

    async def replaced(self, items: list[T], keep: Mapping[Key, str]) -> None:
        """A complete list; ``keep`` are keys and uids of what exists but could not be read."""

    def changed(self, obj: T) -> None:
        """An object was added or modified."""

    def deleted(self, key: Key, last: T | None) -> None:
        """An object is gone; ``last`` is its last state, None when that could not be read."""


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_decode_event: Callable[[bytes], _Event] = decoder_for(_Event)

#: How the API server writes an event of an object, byte for byte.
_HEADS: dict[bytes, str] = {b'{"type":"%b"' % kind.encode(): kind for kind in ("ADDED", "MODIFIED", "DELETED")}
_OBJECT = b',"object":'
_HEAD_BYTES = max(map(len, _HEADS)) + len(_OBJECT)


class _Garbled(Exception):  # noqa: N818
    """A line that is no event: something may be lost, so list again."""


@dataclass(slots=True)
class ReflectorStatistics:
    """Counts since the start, changed in place: copy it to compare."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    undecodable: int = 0
    failures: int = 0


class Reflector(Generic[T]):
    """Drives one :class:`Sink`.

    :param decode: see :func:`runtime.objects.decoder_for`
    :param rng: the source of jitter
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Any,
        sink: Sink[T],
        *,
        clock: Clock,
        rng: random.Random | None = None,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int,
    ) -> None:
        self._client = client
        self._resource = resource
        self._type = decode
        self._decode = decoder_for(decode)
        self._sink = sink
        self._clock = clock
        self._rng = rng or random.Random()
        self._scope: dict[str, Any] = {
            "namespace": namespace,
            "label_selector": label_selector,
            "field_selector": field_selector,
        }
        self._page_size = page_size
        self._backoff = Backoff(clock, self._rng)
        # Apart: an outage must not delay the list that a 410 asks for once the server is back.
        self._expired = Backoff(clock, self._rng)
        self._repeats = Repeats(clock)
        self._version: str | None = None  # where to resume; None: list first
        self._paging_expired = False
        #: A version, and how often the server refused to go on from it.
        self._refused: tuple[str | None, int] = (None, 0)
        self._contact: float | None = None  # when the server was heard last, while it runs
        #: Set when a list that began after it was asked for is handed on.
        self._refreshing: list[anyio.Event] = []
        self._watching = anyio.CancelScope()
        self.statistics = ReflectorStatistics()

    @property
    def healthy(self) -> bool:
        """True while it runs and has heard from the server lately; see :data:`CONTACT_LIMIT`."""
        return self._contact is not None and self._clock.monotonic() - self._contact <= CONTACT_LIMIT

    async def run(self) -> NoReturn:
        """Run until cancelled. Whatever the server does is waited out; a programming error ends it."""
        try:
            while True:
                delay = await self._round()
                if delay is not None:
                    await self._clock.sleep(delay)
        finally:
            self._contact = None

    async def refresh(self) -> None:
        """Return once the sink knows the state as it was at this call or later, read by a new list."""
        done = anyio.Event()
        self._refreshing.append(done)
        self._watching.cancel()
        await done.wait()

    async def _round(self) -> float | None:
        """One list (if needed) and one watch; how long to wait before the next, None for not at all."""
        try:
            while self._version is None or self._refreshing:
                await self._list()
            with anyio.CancelScope() as self._watching:
                return await self._watch()
            return None  # a refresh was asked for
        except Gone as error:
            self._version = None
            return self._failed(error, backoff=self._expired)
        except (_Garbled, Unreadable) as error:
            self._version = None
            return self._failed(error)
        except Idle:
            # Mostly a quiet resource, whose first bookmark comes late: nothing to tell anybody.
            self.statistics.failures += 1
            return None
        except TooManyRequests as error:
            return self._failed(error, error.retry_after)
        except ApiError as error:
            version, times = self._refused
            times = (times if version == self._version else 0) + (not isinstance(error, Unreachable))
            # The first: the server was restored to an older state.
            if "Too large resource version" in error.message or times >= REFUSALS:
                self._version = None
            self._refused = (self._version, times)
            return self._failed(error)

    def _failed(self, error: Exception, at_least: float = 0.0, *, backoff: Backoff | None = None) -> float:
        self.statistics.failures += 1
        delay = (backoff or self._backoff).next(at_least)
        line = explain(error)
        if self._repeats.allows(line):
            log.warning(line, resource=self._resource.key, retry_in=round(delay, 1))
        return delay

    def _heard(self) -> None:
        self._contact = self._clock.monotonic()
        if self._repeats.recovered():
            log.info("reading again", resource=self._resource.key)

    async def _list(self) -> None:
        asked = len(self._refreshing)
        items: list[T] = []
        keep: dict[Key, str] = {}
        token = ""
        # Pages that outlive the server's history: as a last resort all in one.
        limit = None if self._paging_expired else self._page_size
        while True:
            try:
                page = await self._client.list_page(
                    self._resource, type=self._type, limit=limit, continue_token=token, **self._scope
                )
            except Gone:
                self._paging_expired = True
                raise
            self._contact = self._clock.monotonic()
            items += page.items
            keep |= page.undecodable
            if not page.continue_token:
                break
            if page.continue_token == token:
                raise _Garbled("a page of the list leads to itself; listing again")
            token = page.continue_token
        if not page.resource_version:
            raise _Garbled("the list has no resourceVersion to watch from; listing again")
        self._paging_expired = False
        self.statistics.lists += 1
        self.statistics.undecodable += len(keep)
        await self._sink.replaced(items, keep)
        self._version = page.resource_version
        for done in self._refreshing[:asked]:
            done.set()
        del self._refreshing[:asked]

    async def _watch(self) -> float | None:
        assert self._version is not None
        started = self._clock.monotonic()
        version_before = self._version
        self.statistics.watches += 1
        await self._client.watch_lines(
            self._resource,
            self._line,
            resource_version=self._version,
            timeout_seconds=self._rng.randint(*WATCH_SECONDS),
            on_open=self._heard,
            **self._scope,
        )
        self._contact = self._clock.monotonic()
        if self._version == version_before and self._contact - started < 1.0:
            return self._backoff.next()  # a server that hangs up with no news, e.g. while it shuts down
        return None

    def _line(self, line: bytes) -> None:
        # Cut out where the server's usual shape says: to find the end of the object would read all of it once more.
        start = line.find(_OBJECT, 0, _HEAD_BYTES)
        kind = _HEADS.get(line[:start])
        if kind is not None and line.endswith(b"}"):
            try:
                obj: T = self._decode(line[start + len(_OBJECT) : -1])
            except Undecodable:
                pass  # of another shape after all, or what cannot be read: told from the whole line
            else:
                self._take(kind, obj)
                return
        self._unusual_line(line)

    def _unusual_line(self, line: bytes) -> None:
        try:
            event = _decode_event(line)
        except Undecodable as error:
            raise _Garbled(f"a watch line is not an event ({error}); listing again") from error
        kind = event.type
        if kind == "ERROR":
            self._raise(event.object)
        if kind == "BOOKMARK":
            self.statistics.bookmarks += 1
            if self._advance(event.object) is None:
                raise _Garbled("the server's history went back (restored from a backup?); listing again")
            return
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            self.statistics.undecodable += 1
            log.error("skipping a watch event of unknown type", resource=self._resource.key, type=kind)
            self._advance(event.object)
            return
        try:
            obj: T = self._decode(event.object)
        except Undecodable as error:
            self._skip(kind, event.object, error)
            return
        self._take(kind, obj)

    def _take(self, kind: str, obj: T) -> None:
        self.statistics.events += 1
        known = self._version or ""
        version = obj.metadata.resource_version or known
        if _older(version, known):
            return  # told twice: a deletion may lie between, so the store alone could not know
        if kind == "DELETED":
            self._sink.deleted((obj.metadata.namespace or "", obj.metadata.name), obj)
        else:
            self._sink.changed(obj)
        self._version = version
        self._contact = self._clock.monotonic()

    def _skip(self, kind: str, raw: msgspec.Raw, error: Undecodable) -> None:
        """The kind's decoder refused it. Its old state stays, as that is nearer the truth than none.

        A deletion counts.
        """
        self.statistics.undecodable += 1
        meta = self._advance(raw)
        if meta is None:
            return  # told twice
        key = (meta.namespace, meta.name)
        log.error("skipping an object that cannot be read", resource=self._resource.key, key=key, error=str(error))
        if kind == "DELETED":
            self._sink.deleted(key, None)

    def _advance(self, raw: msgspec.Raw) -> Meta | None:
        """Go on from the version of an object; None where that is older than what is known."""
        try:
            meta = peek(raw).metadata
        except Undecodable as error:
            raise _Garbled(f"a watch event has no readable metadata ({error}); listing again") from error
        self._contact = self._clock.monotonic()
        if _older(meta.resource_version, self._version or ""):
            return None
        self._version = meta.resource_version or self._version
        return meta

    def _raise(self, raw: msgspec.Raw) -> NoReturn:
        try:
            status = decode_status(raw)
        except Undecodable as error:
            raise _Garbled(f"a watch ended with an unreadable ERROR ({error}); listing again") from error
        raise from_status("GET", self._resource.path(self._scope["namespace"]), status)


def _older(version: str, than: str) -> bool:
    """Versions of one resource are ordered as numbers; of a server that counts otherwise, nothing is older."""
    try:
        return int(version) < int(than)
    except ValueError:
        return False
