"""Kubernetes Events for people (``kubectl describe``), never in the way of the work.

:meth:`EventRecorder.event` only appends to a bounded queue. The same thing said again becomes a series on
the first Event, written at most every ten seconds and never when nothing new happened: a quiet cluster sees
no writes. What is said in ever new words of one object is limited: its condition has the newest words.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NoReturn

import anyio
import structlog

from runtime.backoff import Repeats
from runtime.client import Client
from runtime.clock import Clock, move_on_after, wait_for
from runtime.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
    explain,
)
from runtime.resources import EVENTS

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: ``v1 ObjectReference``: apiVersion, kind, name, namespace, uid.
ObjectRef = Mapping[str, Any]

NOTE_BYTES = 1024
SHORT_BYTES = 128
#: Seconds between two writes to one series, and without news after which it is closed.
SERIES_EVERY = 10.0
SERIES_CLOSE = 360.0
#: New Events for one object and reason: so many at once, then one in this many seconds.
BURST = 10
REFILL = 60.0
MAX_SERIES = 4096
DRAIN_SECONDS = 5.0
_FINAL = (Forbidden, Invalid)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, cut between two characters, with an ellipsis when cut."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def _subdomain(name: str) -> str:
    """As much of the name of any object as the name of an Event may begin with."""
    labels = (re.sub(r"[^a-z0-9-]", "-", label).strip("-") for label in name.lower().split("."))
    return ".".join(filter(None, labels))[:200].rstrip(".-") or "unknown"


@dataclass(slots=True)
class _Series:
    """One Event in the cluster and how often it was meant since."""

    name: str
    namespace: str
    last: float
    last_at: datetime
    count: int = 1
    written: int = 0  # the count the cluster knows; 0: not created yet
    written_at: float = 0.0  # when that was tried last
    lost: bool = False  # could not be created, or vanished


@dataclass(slots=True)
class RecorderStatistics:
    """Counts since the start, changed in place."""

    recorded: int = 0
    aggregated: int = 0
    suppressed: int = 0
    dropped: int = 0
    sent: int = 0
    failed: int = 0


class EventRecorder:
    """Writes events.k8s.io/v1 Events from its own task, :meth:`run`.

    :param component: reportingController, e.g. ``phalanx.dev/scheduler``
    :param instance: reportingInstance; default the host name
    :param capacity: events that can wait; more are dropped and counted
    """

    def __init__(
        self,
        client: Client,
        component: str,
        clock: Clock,
        *,
        instance: str | None = None,
        capacity: int = 1000,
    ) -> None:
        self._client = client
        self._component = cut(component, SHORT_BYTES)
        self._instance = cut(instance or socket.gethostname(), SHORT_BYTES)
        self._clock = clock
        self._capacity = capacity
        self._queue: deque[tuple[_Series, dict[str, Any]]] = deque()
        #: By a digest of what is said and of what: the words themselves would be most of what is kept.
        self._series: OrderedDict[bytes, _Series] = OrderedDict()
        self._unwritten: dict[int, _Series] = {}  # by id: those that the cluster knows with a smaller count
        #: Digest of object and reason -> how many new Events it may have, and when that was counted.
        self._allowance: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        self._sequence = itertools.count()
        self._news = anyio.Event()
        self._repeats = Repeats(clock)
        self.statistics = RecorderStatistics()

    def event(
        self,
        regarding: ObjectRef,
        type_: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        action: str,
        related: ObjectRef | None = None,
    ) -> None:
        """Say that something happened to ``regarding``; returns at once and never raises for what the cluster does.

        :param reason: why, in CamelCase; at most 128 bytes
        :param note: for a person; cut to 1024 bytes
        :param action: what was done or tried, in CamelCase
        """
        self.statistics.recorded += 1
        note = cut(note, NOTE_BYTES)
        now, at = self._clock.monotonic(), self._clock.now()
        about = (str(regarding.get("uid", "")), str(regarding.get("name", "")), reason)
        identity = _digest(*about, type_, action, note)
        series = self._series.get(identity)
        if series is not None and not series.lost and now - series.last <= SERIES_CLOSE:
            series.count += 1
            series.last, series.last_at = now, at
            self._series.move_to_end(identity)
            self.statistics.aggregated += 1
            if id(series) not in self._unwritten:
                self._unwritten[id(series)] = series
                self._wake()
            return
        self._close_old(now)
        if not self._allowed(_digest(*about), now):
            self.statistics.suppressed += 1
            return
        if len(self._queue) >= self._capacity:
            self.statistics.dropped += 1
            return
        namespace = str(regarding.get("namespace") or "default")
        unique = _digest(identity.hex(), str(at), str(next(self._sequence)), self._instance).hex()[:16]
        name = f"{_subdomain(str(regarding.get('name', '')))}.{unique}"
        series = _Series(name, namespace, last=now, last_at=at, written_at=now)
        self._series[identity] = series
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": _micro(at),
            "type": type_,
            "reason": cut(reason, SHORT_BYTES),
            "note": note,
            "action": cut(action, SHORT_BYTES),
            "regarding": dict(regarding),
            "reportingController": self._component,
            "reportingInstance": self._instance,
        }
        if related is not None:
            body["related"] = dict(related)
        self._queue.append((series, body))
        self._wake()

    async def run(self) -> NoReturn:
        """Write until cancelled; then, within a bound, what is still waiting."""
        try:
            while True:
                await self._send_queue(retries=3)
                await self._send_series(due_only=True)
                news = self._news
                if not self._queue:
                    await wait_for(self._clock, news, self._next_due())
        finally:
            with move_on_after(self._clock, DRAIN_SECONDS, shield=True):
                await self._send_queue(retries=0)
                await self._send_series(due_only=False)

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _send_queue(self, *, retries: int) -> None:
        while self._queue:
            series, body = self._queue[0]  # stays the first until it is settled: a cancellation must not lose it
            if await self._create(series, body, retries):
                self.statistics.sent += 1
                series.written, series.written_at = 1, self._clock.monotonic()
                self._repeats.recovered()
            else:
                self.statistics.failed += 1
                series.lost = True
            self._queue.popleft()

    async def _create(self, series: _Series, body: dict[str, Any], retries: int) -> bool:
        for attempt in itertools.count():
            try:
                await self._client.create(EVENTS, body, series.namespace)
            except Conflict:
                return True  # our own lost answer: nobody else makes this name
            except (Unreachable, ServerError, TooManyRequests) as error:
                if attempt >= retries:
                    self._complain(error)
                    return False
                at_least = error.retry_after if isinstance(error, TooManyRequests) else 0.0
                await self._clock.sleep(max(at_least, 2.0**attempt))
            except Exception as error:
                self._complain(error)
                return False
            else:
                return True
        raise AssertionError("unreachable")

    def _allowed(self, about: bytes, now: float) -> bool:
        # The least recently counted come first; what has its whole burst again is as good as new.
        while self._allowance and now - next(iter(self._allowance.values()))[1] >= BURST * REFILL:
            self._allowance.popitem(last=False)
        tokens, since = self._allowance.pop(about, (float(BURST), now))
        tokens = min(BURST, tokens + (now - since) / REFILL)
        allowed = tokens >= 1.0
        self._allowance[about] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._allowance) > MAX_SERIES:
            self._allowance.popitem(last=False)
        return allowed

    def _close_old(self, now: float) -> None:
        # The least recently meant come first.
        while self._series:
            identity, series = next(iter(self._series.items()))
            if len(self._series) < MAX_SERIES and now - series.last <= SERIES_CLOSE:
                return
            del self._series[identity]

    async def _send_series(self, *, due_only: bool) -> None:
        now = self._clock.monotonic()
        for number, series in list(self._unwritten.items()):
            if not due_only or self._due(series) <= now:
                del self._unwritten[number]
                if series.written and not series.lost:
                    await self._patch(series)

    async def _patch(self, series: _Series) -> None:
        count, last = series.count, series.last_at
        body = {"series": {"count": count, "lastObservedTime": _micro(last)}}
        series.written_at = self._clock.monotonic()  # also after a failure: the next try is as far away
        try:
            await self._client.patch(EVENTS, series.name, series.namespace, body)
        except NotFound:
            series.lost = True  # its hour is over; the next occurrence starts another
        except Exception as error:
            self.statistics.failed += 1
            self._complain(error)
            if isinstance(error, ApiError) and not isinstance(error, _FINAL):
                self._unwritten[id(series)] = series
        else:
            self.statistics.sent += 1
            series.written = count

    def _due(self, series: _Series) -> float:
        return series.written_at + SERIES_EVERY

    def _next_due(self) -> float | None:
        """Seconds until a series wants a write, None when none does: a quiet recorder only waits."""
        due = [self._due(series) for series in self._unwritten.values()]
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    def _complain(self, error: Exception) -> None:
        line = explain(error)
        if self._repeats.allows(line):
            if isinstance(error, ApiError):
                log.warning("an Event was not written", error=line)
            else:
                log.error("an Event was not written", exc_info=error)


def _digest(*words: str) -> bytes:
    return hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).digest()


def _micro(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
