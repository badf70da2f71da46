"""The nodes as arrays: what is free, and the codes that filters compare.

One row a node name, kept while the node exists or pods name it, then used again. Resources are columns, added when
first seen. All changes go through methods, so that ``used`` always equals the sum over the pods placed on the row,
and ``changed`` tells whether room was freed anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from api.wire import Node, Taint
from scheduler.core import requests
from scheduler.core.signature import HostPort, Signature

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class LabelColumn:
    """The values of one label key as codes, -1 where a node has no such label."""

    __slots__ = ("codes", "values")

    def __init__(self, size: int) -> None:
        self.codes: Ints = np.full(size, -1, dtype=np.int64)
        #: Code of each value seen, in order of first sight.
        self.values: dict[str, int] = {}

    def set(self, row: int, value: str | None) -> None:
        """Set the value of a row."""
        self.codes[row] = -1 if value is None else self.values.setdefault(value, len(self.values))


#: Values of a label beyond which its column is built anew: those of nodes that are gone pile up.
STALE_VALUES = 1024

#: Changes of use, beside two a row, after which counting all rows anew is as cheap as remembering them.
_TOUCHED = 1024


class NodeTable:
    """Rows of nodes."""

    def __init__(self) -> None:
        #: Resource name -> column of `allocatable` and `used`.
        self.resources: dict[str, int] = {requests.PODS: 0}
        #: Node name -> row.
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.labels: list[Mapping[str, str]] = []
        #: The taint lists in use, by number.
        self.taint_classes: dict[int, tuple[Taint, ...]] = {}
        #: Host ports in use, only for rows that have any.
        self.ports: dict[int, Counter[HostPort]] = {}
        #: Whether something happened that may let a pod fit: room was given back; a node came or changed. Reset by who
        #: acts on it.
        self.freed = False
        self.renewed = False
        #: What was counted by row is void once this is another number.
        self.version = 0
        #: Rows whose use has changed since `version` last did, in order, with repetitions.
        self.touched: list[int] = []
        self._capacity = 64
        self._allocatable: Ints = np.zeros((self._capacity, 8), dtype=np.int64)
        self._used: Ints = np.zeros((self._capacity, 8), dtype=np.int64)
        self._present: Bools = np.zeros(self._capacity, dtype=np.bool_)
        self._taint_class: Ints = np.zeros(self._capacity, dtype=np.int64)
        self._columns: dict[str, LabelColumn] = {}
        self._class_of: dict[tuple[Taint, ...], int] = {}
        self._class_rows: Counter[int] = Counter()
        self._classes = 0
        self._pods: Counter[int] = Counter()
        self._free_rows: list[int] = []
        self._vectors: WeakKeyDictionary[Signature, Ints] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def allocatable(self) -> Ints:
        """What each node offers to pods; shape (rows, resources)."""
        return self._allocatable[: len(self), : len(self.resources)]

    @property
    def used(self) -> Ints:
        """What the pods placed on each node take; shape (rows, resources)."""
        return self._used[: len(self), : len(self.resources)]

    @property
    def present(self) -> Bools:
        """Whether the node exists (a row may outlive it while pods still name it)."""
        return self._present[: len(self)]

    @property
    def taint_class(self) -> Ints:
        """Number in `taint_classes`; shape (rows,). Of no meaning where the node is not present."""
        return self._taint_class[: len(self)]

    def column(self, key: str) -> LabelColumn:
        """Return the codes of a label, building the column on first use. Valid up to ``len(self)``."""
        column = self._columns.get(key)
        if column is None or len(column.values) > STALE_VALUES + 2 * len(self):
            column = self._columns[key] = LabelColumn(self._capacity)
            for row, labels in enumerate(self.labels):
                column.set(row, labels.get(key))
        return column

    def vector(self, need: requests.Amounts) -> Ints:
        """Return requests as a row over the resource columns, adding columns for new resources."""
        for name in need:
            if name not in self.resources:
                self._add_resource(name)
        vector = np.zeros(len(self.resources), dtype=np.int64)
        for name, value in need.items():
            vector[self.resources[name]] = value
        return vector

    def need(self, signature: Signature) -> Ints:
        """Return what a pod of this signature takes, as a row over the resource columns."""
        vector = self._vectors.get(signature)
        if vector is None or len(vector) < len(self.resources):
            vector = self._vectors[signature] = self.vector(signature.requests)
        return vector

    def set(self, node: Node) -> None:
        """Take over a node's state."""
        row = self._row(node.metadata.name)
        allocatable = self.vector(requests.amounts(node.status.allocatable))
        taints = tuple(t for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute"))
        if node.spec.unschedulable and UNSCHEDULABLE_TAINT not in taints:
            taints = (*taints, UNSCHEDULABLE_TAINT)
        labels = node.metadata.labels
        present = bool(self._present[row])
        if (
            present
            and self.labels[row] == labels
            and self.taint_classes[int(self._taint_class[row])] == taints
            and bool((self.allocatable[row] == allocatable).all())
        ):
            return
        if present:
            self._leave_class(row)
        self._present[row] = True
        self._taint_class[row] = self._join_class(taints)
        self._allocatable[row, : len(allocatable)] = allocatable
        self.labels[row] = labels
        for key, column in self._columns.items():
            column.set(row, labels.get(key))
        self.renewed = True
        self._renew()

    def remove(self, name: str) -> None:
        """Forget a node; what its pods take stays counted in case it comes back under its name."""
        row = self.rows.get(name)
        if row is not None and self._present[row]:
            self._leave_class(row)
            self._present[row] = False
            self._allocatable[row] = 0
            self._renew()
            self._free_if_unused(row)

    def take(self, name: str, signature: Signature) -> None:
        """Count a pod on a node, known or not."""
        self._count(name, signature, 1)

    def take_all(self, names: Sequence[str], signature: Signature) -> None:
        """Do `take` for several identical pods on nodes that are known, at once."""
        if signature.host_ports:
            for name in names:
                self._count(name, signature, 1)
            return
        rows = [self.rows[name] for name in names]
        vector = self.need(signature)
        np.add.at(self._used[:, : len(vector)], rows, vector)
        self._pods.update(rows)
        self._touch(rows)

    def give_back(self, name: str, signature: Signature) -> None:
        """Undo `take` exactly."""
        self._count(name, signature, -1)

    def ports_in_use(self, row: int) -> Iterable[HostPort]:
        """Host ports taken on a row."""
        return self.ports.get(row, ())

    def _count(self, name: str, signature: Signature, sign: int) -> None:
        row = self._row(name)
        vector = self.need(signature)
        self._used[row, : len(vector)] += sign * vector
        self._pods[row] += sign
        self.freed |= sign < 0
        self._touch((row,))
        if signature.host_ports:
            taken = self.ports.setdefault(row, Counter())
            for port in signature.host_ports:
                taken[port] += sign
                if not taken[port]:
                    del taken[port]
            if not taken:
                del self.ports[row]
        self._free_if_unused(row)

    def _touch(self, rows: Iterable[int]) -> None:
        self.touched += rows
        if len(self.touched) > _TOUCHED + 2 * len(self):
            self._renew()

    def _renew(self) -> None:
        self.version += 1
        self.touched.clear()

    def _join_class(self, taints: tuple[Taint, ...]) -> int:
        number = self._class_of.get(taints)
        if number is None:
            number = self._class_of[taints] = self._classes
            self.taint_classes[number] = taints
            self._classes += 1
        self._class_rows[number] += 1
        return number

    def _leave_class(self, row: int) -> None:
        number = int(self._taint_class[row])
        self._class_rows[number] -= 1
        if not self._class_rows[number]:
            del self._class_rows[number]
            del self._class_of[self.taint_classes.pop(number)]

    def _free_if_unused(self, row: int) -> None:
        if self._present[row] or self._pods[row]:
            return
        del self._pods[row]
        del self.rows[self.names[row]]
        self.names[row] = ""
        self.labels[row] = {}
        for column in self._columns.values():
            column.set(row, None)
        self._free_rows.append(row)

    def _row(self, name: str) -> int:
        row = self.rows.get(name)
        if row is None and self._free_rows:
            row = self.rows[name] = self._free_rows.pop()
            self.names[row] = name
        elif row is None:
            row = self.rows[name] = len(self.names)
            self._renew()
            self.names.append(name)
            self.labels.append({})
            if len(self.names) > self._capacity:
                self._grow()
            # A label column built earlier says "absent" for the new row already.
        return row

    def _grow(self) -> None:
        extra = self._capacity
        self._capacity += extra
        self._allocatable = np.pad(self._allocatable, ((0, extra), (0, 0)))
        self._used = np.pad(self._used, ((0, extra), (0, 0)))
        self._present = np.pad(self._present, (0, extra))
        self._taint_class = np.pad(self._taint_class, (0, extra))
        for column in self._columns.values():
            column.codes = np.pad(column.codes, (0, extra), constant_values=-1)

    def _add_resource(self, name: str) -> None:
        self.resources[name] = len(self.resources)
        if len(self.resources) > self._used.shape[1]:
            wider = ((0, 0), (0, self._used.shape[1]))
            self._allocatable = np.pad(self._allocatable, wider)
            self._used = np.pad(self._used, wider)
