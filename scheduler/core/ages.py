"""Since when something is so, for all that are due after the same time."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Ages(Generic[K]):
    """Keys, oldest first, each with the time since when it is here; who adds need not know the time.

    :param seconds: the age at which a key is due
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: None: came after the last `pop`.
        self._since: dict[K, float | None] = {}

    def add(self, key: K, since: float | None = None) -> None:
        """Add a key, by default as of the next :meth:`pop`; one that is here keeps its age."""
        self._since.setdefault(key, since)

    def discard(self, key: K) -> None:
        """Take a key out, if it is here."""
        self._since.pop(key, None)

    def due(self) -> float | None:
        """When the oldest is due: -inf where it has no time yet, None where there is none."""
        if not self._since:
            return None
        since = next(iter(self._since.values()))
        return -math.inf if since is None else since + self._seconds

    def pop(self, now: float) -> K | None:
        """Take out the oldest if it is due."""
        self._date(now)
        due = self.due()
        if due is None or due > now:
            return None
        key = next(iter(self._since))
        del self._since[key]
        return key

    def _date(self, now: float) -> None:
        """Give the time to all that came since the last `pop`; they are at the end."""
        for key in reversed(self._since):
            if self._since[key] is not None:
                break
            self._since[key] = now
