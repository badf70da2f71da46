"""Where a set of pods goes: all on one snapshot, or a reason with counts.

Identical pods are exact: a node's capacity for them is a number, and the group fits if the numbers add up to
it. Different pods are placed greedily, the largest share of a node first, so "does not fit" is then not
proven. Few, well filled nodes are preferred: members end up next to each other and whole nodes stay free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.core import capacity, requests
from scheduler.core.capacity import Capacities, Capacity
from scheduler.core.nodes import Bools, Ints, NodeTable
from scheduler.core.signature import Signature, conflicts

HOST_PORTS = "host port in use"
PORTS_OF_MEMBERS = "host port taken by a member of this group"


@dataclass(frozen=True, slots=True)
class Ask:
    """``count`` identical pods."""

    signature: Signature
    count: int


@dataclass(slots=True)
class Placement:
    """For each ask the rows of its pods (fewer than asked where they do not fit), and why no more fit."""

    rows: list[Ints]
    #: Reason -> number of nodes, for the first ask that fell short.
    reasons: dict[str, int] = field(default_factory=dict)
    #: Nodes that existed.
    nodes: int = 0
    #: Whether "no more fit" is certain.
    proven: bool = True

    @property
    def placed(self) -> int:
        """Pods that have a row."""
        return sum(len(rows) for rows in self.rows)


def place(capacities: Capacities, asks: Sequence[Ask], *, smallest_first: bool = False) -> Placement:
    """Place as many pods of each ask as fit, larger pods first unless told otherwise; nothing is changed."""
    table = capacities.table
    for ask in asks:
        table.need(ask.signature)  # adds the columns of resources that no node and no pod had before
    vectors = [table.need(ask.signature) for ask in asks]
    #: What the asks placed so far take; shape (rows, resources). None while that is nothing.
    planned: Ints | None = None
    placement = Placement(rows=[np.empty(0, dtype=np.int64)] * len(asks), nodes=int(table.present.sum()))
    ports: dict[int, list[Signature]] = {}
    order = _largest_first(table, vectors)
    for index in reversed(order) if smallest_first else order:
        ask, need = asks[index], vectors[index]
        room = capacities.of(ask.signature)
        fits = room.fits
        if planned is not None:
            taken = np.flatnonzero(planned[:, table.resources[requests.PODS]])
            left = table.allocatable[taken] - table.used[taken] - planned[taken]
            fits = fits.copy()
            fits[taken] = capacity.count(left, need, room.passing[taken])
        blocked = _blocked_by_ports(table, ask.signature, ports)
        if ask.signature.host_ports:
            fits = np.where(blocked, 0, np.minimum(fits, 1))
        per_row = _fill(fits, ask.count)
        used_rows = np.flatnonzero(per_row)
        rows = np.repeat(used_rows, per_row[used_rows])
        placement.rows[index] = rows
        if len(asks) > 1:
            planned = np.zeros_like(table.used) if planned is None else planned
            planned += per_row[:, None] * need[None, :]
        if ask.signature.host_ports:
            for row in rows:
                ports.setdefault(int(row), []).append(ask.signature)
        if len(rows) < ask.count and not placement.reasons:
            free = table.allocatable - table.used - (per_row[:, None] * need if planned is None else planned)
            placement.reasons = _reasons(table, ask.signature, need, free, room, per_row, blocked)
            placement.proven = len(asks) == 1
    return placement


def _largest_first(table: NodeTable, vectors: Sequence[Ints]) -> list[int]:
    if len(vectors) == 1:
        return [0]
    largest = np.maximum(table.allocatable.max(axis=0, initial=0), 1)
    shares = [float((vector / largest).max(initial=0.0)) for vector in vectors]
    return sorted(range(len(vectors)), key=lambda index: -shares[index])


def _blocked_by_ports(table: NodeTable, signature: Signature, planned: dict[int, list[Signature]]) -> Bools:
    blocked = np.zeros(len(table), dtype=np.bool_)
    if not signature.host_ports:
        return blocked
    for row in table.ports.keys() | planned.keys():
        taken = [*table.ports_in_use(row), *(p for other in planned.get(row, ()) for p in other.host_ports)]
        blocked[row] = any(conflicts(mine, theirs) for mine in signature.host_ports for theirs in taken)
    return blocked


def _fill(fits: Ints, count: int) -> Ints:
    """Spread ``count`` over rows: fullest use of the fewest nodes, the last one the tightest that takes the rest."""
    if count <= 0 or not len(fits):
        return np.zeros_like(fits)
    if fits.max() >= count:  # one node takes all
        taken = np.zeros_like(fits)
        taken[_tightest(fits, fits >= count)] = count
        return taken
    useful = np.minimum(fits, count)
    # Rows are taken from those that hold most downward: how many pods are in all rows that hold as many or more?
    rows_by_use = np.bincount(useful)[::-1]
    most = len(rows_by_use) - 1
    totals = np.cumsum(rows_by_use * np.arange(most, -1, -1))
    if totals[-1] <= count:
        return useful
    step = int(np.searchsorted(totals, count, side="left"))
    use = most - step
    left = count - (int(totals[step - 1]) if step else 0)
    taken = np.where(useful > use, useful, 0)
    whole = (left - 1) // use
    taken[np.flatnonzero(useful == use)[:whole]] = use
    rest = left - whole * use
    taken[_tightest(fits, (taken == 0) & (fits >= rest))] = rest
    return taken


def _tightest(fits: Ints, among: Bools) -> int:
    return int(np.argmin(np.where(among, fits, np.iinfo(np.int64).max)))


def _reasons(
    table: NodeTable,
    signature: Signature,
    need: Ints,
    free: Ints,
    room: Capacity,
    per_row: Ints,
    blocked: Bools,
) -> dict[str, int]:
    """Count each existing node under one reason: the first that refuses the next pod of this signature."""
    counts = {reason: int(mask.sum()) for reason, mask in room.refused}
    left = room.passing & ~blocked
    if blocked.any():
        counts[HOST_PORTS] = int((room.passing & blocked).sum())
    mine = left & (per_row > 0)
    if mine.any():
        words = PORTS_OF_MEMBERS if signature.host_ports else "filled by members of this group"
        counts[words] = int(mine.sum())
        left = left & ~mine
    for name, column in table.resources.items():
        if not need[column]:
            continue
        small = left & (table.allocatable[:, column] < need[column])
        full = left & ~small & (free[:, column] < need[column])
        for mask, words in (
            (small, f"too small (allocatable {name})"),
            (full, f"Insufficient {name}"),
        ):
            if mask.any():
                counts[words] = int(mask.sum())
        left = left & ~small & ~full
    return {reason: count for reason, count in counts.items() if count}
