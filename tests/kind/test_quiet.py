"""Nothing is written while nothing happens, whatever waits."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from cluster import Cluster
from tests.kind.checks import AuditLog, Watcher, settle
from tests.kind.conftest import Phalanx
from tests.kind.kube import Kube, job, node, pod, pod_group, until

#: Seconds without a write, and how long it may take until they begin.
QUIET = 60.0
SETTLED = 8.0

pytestmark = [pytest.mark.timeout(240), pytest.mark.needs("fake nodes")]


def test_a_quiet_cluster_sees_no_writes(
    cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, audit: AuditLog, phalanx: Phalanx
) -> None:
    tag = {"only-for": namespace}
    nodes = [f"{namespace}-{index}" for index in range(2)]
    for name in nodes:
        kube.create("nodes", node(name, cpu="8", labels=tag))
    try:
        # Running, and running with more than the minimum.
        kube.create("jobs", job("runs", 4, selector=tag), namespace)
        kube.create(
            "jobs", job("more", 6, cpu="2", selector=tag, annotations={"phalanx.dev/min-count": "2"}), namespace
        )
        until(lambda: len(kube.bound(namespace)) == 10, what="what fits is bound")
        # All the ways to wait: no room, too few members, no group, a Job that asks for something impossible.
        kube.create("jobs", job("large", 40, selector=tag), namespace)
        kube.create("podgroups", pod_group("short-of-members", 3), namespace)
        for index in range(2):
            kube.create("pods", pod(f"short-{index}", group="short-of-members", selector=tag), namespace)
        kube.create("pods", pod("no-group", group="nobody-makes-it", selector=tag), namespace)
        kube.create("pods", pod("no-room", cpu="9", selector=tag), namespace)
        wrong = job("wrong", 3, selector=tag, annotations={"phalanx.dev/min-count": "many"})
        kube.create("jobs", wrong, namespace)
        until(lambda: len(kube.list("pods", namespace)) == 10 + 40 + 2 + 1 + 1 + 3, what="all pods are made")
        settle(watcher.world, [namespace])

        def silent() -> bool:
            writes = audit.our_writes()
            return time.time() - max((e.answered for e in writes), default=0.0) > SETTLED

        until(silent, 90, f"{SETTLED:g} s without a write", every=1)
        mark, began = audit.mark(), time.monotonic()
        until(lambda: time.monotonic() - began >= QUIET, QUIET + 5, every=1)
        writes = audit.our_writes(mark)
        assert Counter((e.account, e.verb, e.resource, e.name) for e in writes) == Counter()
        # Watches may be opened again; nothing is polled but that the Leases are renewed.
        others = [e for e in audit.ours(mark) if e.resource != "leases"]
        renewals = Counter(e.account for e in audit.ours(mark) if e.resource == "leases" and e.verb == "update")
        assert set(renewals) == {"phalanx-controllers", "phalanx-scheduler"}
        assert all(count <= QUIET / 2 + 2 for count in renewals.values()), renewals
        reads = Counter((e.account, e.verb, e.resource) for e in others)
        assert all(count <= 3 for count in reads.values()), reads
        assert len(kube.bound(namespace)) == 10
    finally:
        for name in nodes:
            kube.delete("nodes", name)
