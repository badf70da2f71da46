"""Read your own writes: what the API server answered us, until the cache has caught up with it.

A watch event comes some milliseconds after the answer. A reconcile in between would otherwise see the world
before its own write and write again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from runtime.clock import Clock
from runtime.objects import Key, Object, key_of
from runtime.store import EventType

T = TypeVar("T", bound=Object)

#: Seconds after which the cache is believed again: what is made and deleted between two lists never shows.
BELIEVED = 30.0


class Recent(Generic[T]):
    """Answers of the server that are newer than the cache. Fed by the informer of the same kind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Key, tuple[T, float]] = {}

    def put(self, obj: T) -> None:
        """Remember an answer."""
        self._held[key_of(obj)] = (obj, self._clock.monotonic() + BELIEVED)

    def handle(self, event: EventType, old: T | None, new: T | None) -> None:
        """Informer handler: the cache has moved on."""
        obj = new if new is not None else old
        if obj is None:
            return
        key = key_of(obj)
        held = self._held.get(key)
        if held is None:
            return
        same = held[0].metadata.uid == obj.metadata.uid
        if event == "delete":
            if same:
                del self._held[key]
        elif _version(obj) >= _version(held[0]):
            del self._held[key]

    def newest(self, key: Key, cached: T | None) -> T | None:
        """The newer of the cache's object and the answer held for its key."""
        held = self._held.get(key)
        if held is None:
            return cached
        if self._clock.monotonic() > held[1]:
            del self._held[key]
            return cached
        if cached is not None and _version(cached) > _version(held[0]):
            return cached
        return held[0]


def _version(obj: Object) -> int:
    """Resource versions of one resource are ordered as numbers (a promise of the API since 1.35)."""
    text = obj.metadata.resource_version or ""
    return int(text) if text.isdigit() else 0
