"""Every invariant between the books, recounted from scratch. For tests: each step of a replay calls it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from api.membership import counts
from scheduler.core.core import Core
from scheduler.core.signature import HostPort
from scheduler.core.state import ON_NODE, GroupInfo, PodState


def validate(core: Core) -> None:
    """Raise AssertionError naming the first invariant that does not hold."""
    core.agenda.flush()
    _nodes(core)
    for key, group in core.state.groups.items():
        assert group.key == key
        _group(core, group)
    for uid, info in core.state.pods.items():
        assert info.uid == uid
        assert (info.state in ON_NODE) == bool(info.node), f"{info.key}: {info.state} on {info.node!r}"
        if info.state in (PodState.PENDING, PodState.RESERVED, PodState.ASSUMED, PodState.ACCEPTED):
            assert info.latched, f"{info.key}: {info.state} before its group was decided"
        if info.state is PodState.RESERVED:
            assert info.group in {*core.agenda.queue.entries}, f"{info.key}: room is reserved for what is not tried"
        if info.state is PodState.PENDING and info.group is None:
            assert uid in core.agenda.queue, f"{info.key}: pending and in no queue"


def _nodes(core: Core) -> None:
    table = core.state.nodes
    used = np.zeros_like(table.used)
    ports: dict[int, Counter[HostPort]] = {}
    assert sorted(table.rows.values()) == [row for row, name in enumerate(table.names) if name]
    assert set(table.taint_classes) >= set(table.taint_class[table.present].tolist())
    for info in core.state.pods.values():
        if info.state in ON_NODE:
            row = table.rows[info.node]
            vector = table.vector(info.signature.requests)
            used[row, : len(vector)] += vector
            if info.signature.host_ports:
                ports.setdefault(row, Counter()).update(info.signature.host_ports)
    assert (used == table.used).all(), "used is not the sum over the pods on each node"
    assert ports == table.ports, "host ports in use are not those of the pods on each node"


def _group(core: Core, group: GroupInfo) -> None:
    assert not group.empty, f"{group.key}: kept though nothing refers to it"
    filed = {info.uid for info in group.all_pods()}
    assert filed == {info.uid for info in core.state.pods.values() if info.group == group.key}
    for books, member in ((group.members, True), (group.extras, False)):
        for state, pods in books.items():
            for info in pods.values():
                assert info.state is state, f"{info.key}: filed under {state}, is {info.state}"
                expected = group.podgroup is None or counts(info.pod, group.podgroup)
                assert expected is member, f"{info.key}: member or extra is wrong"
    if group.wants and group.complete:
        assert group.key in core.agenda.queue, f"{group.key}: can be tried and is in no queue"
    else:
        assert group.key not in core.agenda.queue, f"{group.key}: cannot be tried and is queued"
