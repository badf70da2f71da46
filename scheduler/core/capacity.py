"""How many pods of each signature every node takes: kept, and counted anew only for the nodes that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from scheduler.core import filters
from scheduler.core.nodes import Bools, Ints, NodeTable
from scheduler.core.signature import Signature


class Need(NamedTuple):
    """What an entity lacks: so many pods, of these signatures with the number that exists of each."""

    missing: int
    asks: tuple[tuple[Signature, int], ...]


@dataclass(slots=True)
class Capacity:
    """The room for pods of one signature; arrays are not to be changed by who reads them."""

    #: Nodes that no static filter refuses; shape (rows,).
    passing: Bools
    #: Reason -> the nodes it is the first to refuse; shapes (rows,).
    refused: list[tuple[str, Bools]]
    #: Pods that each node takes by its free resources, 0 where it does not pass; shape (rows,).
    fits: Ints
    #: The sum of `fits`.
    total: int
    #: The table's `version`, and how much of its `touched`, this is true of.
    version: int
    seen: int


class Capacities:
    """Counts on demand; what is asked for again costs as much as has changed since."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._known: WeakKeyDictionary[Signature, Capacity] = WeakKeyDictionary()

    def of(self, signature: Signature) -> Capacity:
        """Return the room for pods of a signature as it is now (host ports left out)."""
        table = self.table
        need = table.need(signature)
        known = self._known.get(signature)
        if known is None or known.version != table.version:
            passing, refused = filters.static(table, signature)
            fits = count(table.allocatable - table.used, need, passing)
            known = Capacity(passing, refused, fits, int(fits.sum()), table.version, len(table.touched))
            self._known[signature] = known
        elif known.seen < len(table.touched):
            rows = np.unique(table.touched[known.seen :])
            free = table.allocatable[rows] - table.used[rows]
            known.total -= int(known.fits[rows].sum())
            known.fits[rows] = count(free, need, known.passing[rows])
            known.total += int(known.fits[rows].sum())
            known.seen = len(table.touched)
        return known

    def may_hold(self, need: Need) -> bool:
        """Whether there may be room for it. False is certain; with one signature and no host ports True is, too."""
        return sum(min(number, self.of(signature).total) for signature, number in need.asks) >= need.missing


def count(free: Ints, need: Ints, passing: Bools) -> Ints:
    """Return how many pods that need this fit into each row.

    :param free: shape (rows, resources), may be negative
    :param need: shape (resources,), at least one ``pods``
    :param passing: shape (rows,)
    """
    fits = np.full(len(free), np.iinfo(np.int64).max)
    for column in np.flatnonzero(need):
        np.minimum(fits, free[:, column] // need[column], out=fits)
    return np.where(passing, np.maximum(fits, 0), 0)
