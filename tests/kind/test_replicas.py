"""Two replicas of each process behind a bad network: one leads at a time, caches stay true, and nothing leaks.

``PHALANX_SOAK`` says for how many seconds the faults go on, ``PHALANX_SEED`` which they are.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from cluster import Cluster
from tests.kind.audit import Audited, AuditLog
from tests.kind.checks import Watcher, settle, wrong_objects
from tests.kind.conftest import PROCESSES, OwnCluster, fresh_namespace
from tests.kind.kube import Kube, KubeError, Obj, node, until
from tests.kind.proxy import Fault, FaultProxy, proxied
from tests.kind.replica import Replica, restart_api_server, untrue
from tests.kind.test_crashes import Load

SOAK = float(os.environ.get("PHALANX_SOAK", "60"))
SEED = int(os.environ.get("PHALANX_SEED", "1"))
#: Seconds for which a replica is stopped: longer than a Lease lasts.
STOPPED = 60.0 if SOAK >= 600 else 24.0
#: Seconds from which a growth of memory tells a leak from caches that fill.
LONG = 600.0


def double_leaders(events: Sequence[Audited]) -> list[str]:
    """Writes that a replica began although another had taken the Lease since it last renewed it."""
    found = []
    for account in sorted({e.account for e in events}):
        mine = [e for e in events if e.account == account and e.is_write]
        taken = sorted((e.answered, e.agent) for e in mine if e.resource == "leases" and e.code in (200, 201))
        position, holder = 0, ""
        for write in sorted((e for e in mine if e.resource != "leases"), key=lambda e: e.received):
            while position < len(taken) and taken[position][0] <= write.received:
                holder = taken[position][1]
                position += 1
            if write.agent != holder:
                what = f"{write.verb} {write.resource} {write.namespace}/{write.name}"
                since = write.received - taken[position - 1][0] if position else 0.0
                found.append(f"{write.agent}: {what}, but {holder} has renewed the Lease {since:.3f} s before")
    return found


class Chaos:
    """What goes wrong, one thing after another."""

    def __init__(self, cluster: Cluster, replicas: Sequence[Replica], proxies: Sequence[FaultProxy]) -> None:
        self.random = random.Random(f"{SEED}/chaos")
        self.cluster = cluster
        self.proxies = proxies
        #: The first of each process is never killed, so that what it leaks shows.
        self.kept = [r for r in replicas if r.name.endswith("-a")]
        self.killed = [r for r in replicas if r.name.endswith("-b")]
        self.done: Counter[str] = Counter()

    def each_once(self) -> None:
        for what in self._each:
            self._do(what)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._do(self.random.choice(self._each))

    @property
    def _each(self) -> list[Callable[[], None]]:
        return [self.kill, self.stop, self.errors, self.restart_api_server, self.cut, self.half_open]

    def _do(self, what: Callable[[], None]) -> None:
        self.done[what.__name__] += 1
        what()
        time.sleep(self.random.uniform(0.5, 4.0))

    def kept_lead(self) -> None:
        """See that those that are never killed lead, which takes more tasks and connections than waiting does."""
        for kept, other in zip(self.kept, self.killed, strict=True):
            if not kept.leads():
                other.kill()
                until(kept.leads, 60, f"{kept.name} leads")
                other.start()
        self.all_ready()

    def all_ready(self) -> None:
        """Wait until nothing that went wrong is left in any replica."""
        until(lambda: all(r.alive and r.ready for r in (*self.kept, *self.killed)), 90, "all replicas are ready again")

    def kill(self) -> None:
        replica = self.random.choice(self.killed)
        replica.kill()
        replica.start()

    def stop(self) -> None:
        replica = self.random.choice([r for r in (*self.kept, *self.killed) if r.leads()] or self.kept)
        replica.signal(signal.SIGSTOP)
        time.sleep(STOPPED)
        replica.signal(signal.SIGCONT)

    def errors(self) -> None:
        """Some requests are delayed, cut, or answered 410, 429 and 500, for a while."""
        chance = random.Random(self.random.random())

        def rule(request: web.Request) -> Fault | None:
            faults = [Fault(delay=chance.uniform(0.1, 3.0)), Fault(status=429), Fault(status=500)]
            faults += [Fault(cut="before"), Fault(cut="after")]
            if request.method == "GET" and "resourceVersion" in request.query:
                faults.append(Fault(status=410))
            return chance.choice(faults) if chance.random() < 0.3 else None

        for proxy in self.proxies:
            proxy.rule = rule
        time.sleep(self.random.uniform(4.0, 10.0))
        for proxy in self.proxies:
            proxy.rule = lambda request: None

    def cut(self) -> None:
        self.random.choice(self.proxies).cut()

    def half_open(self) -> None:
        proxy = self.random.choice(self.proxies)
        proxy.hold(True)
        time.sleep(self.random.uniform(3.0, 14.0))
        proxy.hold(False)

    def restart_api_server(self) -> None:
        restart_api_server(self.cluster)


class Patient(Kube):
    """Requests of the load: what fails because the API server is away is tried again."""

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Obj:
        deadline = time.monotonic() + 60
        while True:
            try:
                return super().request(method, path, body, content_type)
            except KubeError as error:
                # What was done by a try whose answer was lost is refused the next time.
                if error.status in (404, 409) and method != "GET":
                    return {}
                if error.status < 500:
                    raise
            except OSError:
                pass
            assert time.monotonic() < deadline, "the API server stays away"
            time.sleep(0.2)


class Cleaned(Load):
    """Jobs go a few seconds after their end, bare pods with their group: caches must not grow."""

    def job(self) -> None:
        super().job()
        name = f"j{self.made}"
        if name in self.jobs:
            self.kube.patch("jobs", name, self.namespace, {"spec": {"ttlSecondsAfterFinished": 2}})

    def end(self) -> None:
        super().end()
        for pod in self.kube.list("pods", self.namespace):
            bare = not pod["metadata"].get("ownerReferences")
            if bare and pod["spec"]["schedulingGroup"]["podGroupName"] not in self.groups:
                self.kube.delete("pods", pod["metadata"]["name"], self.namespace)
        for group in self.kube.list("podgroups", self.namespace):
            if not group["metadata"].get("ownerReferences") and group["metadata"]["name"] not in self.groups:
                self.kube.delete("podgroups", group["metadata"]["name"], self.namespace)


@contextlib.contextmanager
def two_of_each(cluster: Cluster, proxies: Sequence[FaultProxy]) -> Iterator[list[Replica]]:
    replicas = [
        Replica(cluster, who, side, proxies["ab".index(side)].kubeconfig(who)) for who in PROCESSES for side in "ab"
    ]
    for replica in replicas:
        replica.start()
    until(lambda: all(r.ready for r in replicas), 60, "all replicas are ready")
    yield replicas


@pytest.mark.timeout(240 + 2 * SOAK)
def test_two_replicas_of_each_process(own_cluster: OwnCluster) -> None:
    print(f"PHALANX_SOAK={SOAK:g} PHALANX_SEED={SEED}")
    with (
        own_cluster(name="replicas", nodes=4) as cluster,
        proxied(cluster) as one,
        proxied(cluster) as other,
        two_of_each(cluster, (one, other)) as replicas,
        Patient(cluster.kubeconfig) as kube,
        fresh_namespace(kube, "soak") as namespace,
    ):
        audit = AuditLog(cluster.audit_log)
        for index in range(4):
            kube.create("nodes", node(f"{namespace}-{index}", cpu="8", labels={"only-for": namespace}))
        load = Cleaned(kube, namespace, f"{SEED}/load")
        load.start()
        chaos = Chaos(cluster, replicas, (one, other))
        pids = {r.name: r.pid for r in chaos.kept}
        # What is opened and loaded at the first of its kind (a pool of connections, say) is no leak.
        chaos.each_once()
        chaos.kept_lead()
        before = {r.name: r.metrics() for r in chaos.kept}
        chaos.run(SOAK)
        load.stop()
        chaos.all_ready()
        with Watcher(kube) as watcher:
            settle(watcher.world, [namespace], 60)
        try:
            until(lambda: not wrong_objects(kube, [namespace]), 75, "one Workload and one PodGroup for each Job")
        except AssertionError:
            print(*wrong_objects(kube, [namespace]), sep="\n")
            raise
        until(lambda: not untrue(kube, replicas), 30, "all caches equal a fresh list")
        print(f"faults: {dict(chaos.done)}, requests hit: {dict(one.hits + other.hits)}")
        for who in PROCESSES:
            assert sum(r.leads() for r in replicas if r.who == who) == 1

        writes = [e for e in audit.ours() if e.is_write]
        leaders = {e.agent for e in writes if e.resource != "leases"}
        print(f"{len(writes)} writes by {len(leaders)} leaders")
        assert len(leaders) > len(PROCESSES), "none of the faults moved the lead"
        doubles = double_leaders(audit.ours())
        print(*doubles[:20], sep="\n")
        assert doubles == []
        assert audit.not_ours_to_write() == []

        assert {r.name: r.pid for r in chaos.kept} == pids, "never killed, they never ended"
        chaos.kept_lead()
        # Connections kept for later use are no leak, and each gets its turn, so that none is ever idle for long.
        for proxy in (one, other):
            proxy.cut()
        for replica in chaos.kept:
            most = before[replica.name]["process_open_fds"] + 8
            until(
                lambda replica=replica, most=most: replica.metrics()["process_open_fds"] <= most,  # type: ignore[misc]
                what=f"{replica.name} has no more than {most:g} files and sockets open",
            )
            after, first = replica.metrics(), before[replica.name]
            print(replica.name, {key: (first[key], after[key]) for key in LEAKS})
            assert after["phalanx_tasks"] <= first["phalanx_tasks"] + 8
            if SOAK >= LONG:
                assert after["process_resident_memory_bytes"] <= 1.05 * first["process_resident_memory_bytes"]


LEAKS = ("phalanx_tasks", "process_open_fds", "process_resident_memory_bytes")
