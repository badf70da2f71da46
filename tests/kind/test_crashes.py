"""Our processes are killed at random moments under load, and started again at once: nothing half done stays.

``PHALANX_KILLS`` says how often each process is killed, ``PHALANX_SEED`` when and amid what.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.kind.checks import AuditLog, Watcher, replay, settle, wrong_objects
from tests.kind.conftest import PROCESSES, Phalanx, fresh_namespace
from tests.kind.kube import Kube, job, node, pod, pod_group, until

KILLS = int(os.environ.get("PHALANX_KILLS", "6"))
SEED = int(os.environ.get("PHALANX_SEED", "1"))
#: Seconds after the last restart within which all must be well.
WITHIN = 60.0
#: Room of the cluster that the load is for, in CPUs; what is asked for is about twice that.
NODES, CPUS = 4, 8


class Load(threading.Thread):
    """Jobs and groups come, run, end and are deleted, until told to stop."""

    def __init__(self, kube: Kube, namespace: str, seed: str) -> None:
        super().__init__(daemon=True)
        self.kube = kube
        self.namespace = namespace
        self.random = random.Random(seed)
        self.tag = {"only-for": namespace}
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.made = 0
        self.jobs: list[str] = []
        self.groups: dict[str, int] = {}

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self.random.choice([self.job, self.job, self.group, self.end, self.end, self.delete])()
                self.over.wait(self.random.choice((0.0, 0.1, 0.3)))
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.over.set()
        self.join(60)
        if self.error is not None:
            raise self.error

    def job(self) -> None:
        if len(self.jobs) < 12:
            self.made += 1
            name = f"j{self.made}"
            size, cpu = self.random.randint(2, 10), self.random.choice(("500m", "1", "2"))
            self.kube.create("jobs", job(name, size, cpu=cpu, selector=self.tag, backoffLimit=100), self.namespace)
            self.jobs.append(name)

    def group(self) -> None:
        if len(self.groups) < 6:
            self.made += 1
            name, size = f"g{self.made}", self.random.randint(1, 8)
            self.kube.create("podgroups", pod_group(name, size), self.namespace)
            for index in range(size):
                self.kube.create("pods", pod(f"{name}-{index}", group=name, selector=self.tag), self.namespace)
            self.groups[name] = size

    def end(self) -> None:
        """All pods of a group that run end, and what was made for them makes place for others."""
        pods = self.kube.list("pods", self.namespace, fieldSelector="status.phase=Running")
        by_owner: dict[str, list[str]] = {}
        for found in pods:
            by_owner.setdefault(found["spec"].get("schedulingGroup", {}).get("podGroupName", ""), []).append(
                found["metadata"]["name"]
            )
        if by_owner:
            owner = self.random.choice(sorted(by_owner))
            self.kube.finish(self.namespace, by_owner[owner])
            # What runs to its end makes place for others.
            self.groups.pop(owner, None)
            self.jobs = [name for name in self.jobs if not owner.startswith(f"{name}-")]

    def delete(self) -> None:
        if self.jobs and self.random.random() < 0.7:
            name = self.jobs.pop(self.random.randrange(len(self.jobs)))
            policy = self.random.choice(("Background", "Foreground"))
            self.kube.delete("jobs", name, self.namespace, propagationPolicy=policy)
        elif self.groups:
            name = self.random.choice(sorted(self.groups))
            for index in range(self.groups.pop(name)):
                self.kube.delete("pods", f"{name}-{index}", self.namespace)
            self.kube.delete("podgroups", name, self.namespace)


def partly_bound(watcher: Watcher, namespace: str, timeout: float) -> bool:
    """Wait for a moment at which a group is bound in part; false when none came."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        world = watcher.world(namespace)
        if any(0 < world.bound(g) < g.minimum for g in world.groups.values() if g.namespace == namespace):
            return True
        time.sleep(0.001)
    return False


def leaving(kube: Kube, namespace: str) -> list[str]:
    """What is in deletion."""
    return [
        f"{resource} {item['metadata']['name']}"
        for resource in ("podgroups", "workloads", "pods", "jobs")
        for item in kube.list(resource, namespace)
        if "deletionTimestamp" in item["metadata"]
    ]


@pytest.mark.timeout(180 + 30 * KILLS)
def test_kills(spare: Phalanx, spare_kube: Kube) -> None:
    print(f"PHALANX_SEED={SEED} PHALANX_KILLS={KILLS}")
    kube, audit = spare_kube, AuditLog(spare.cluster.audit_log)
    order = [name for name in PROCESSES for _ in range(KILLS)]
    moments = random.Random(f"{SEED}/moments")
    moments.shuffle(order)
    spare.ensure()
    mark = audit.mark()
    with Watcher(kube) as watcher, fresh_namespace(kube, "kills") as namespace:
        nodes = [f"{namespace}-{index}" for index in range(NODES)]
        for name in nodes:
            kube.create("nodes", node(name, cpu=str(CPUS), labels={"only-for": namespace}))
        try:
            load = Load(kube, namespace, f"{SEED}/load")
            load.start()
            in_the_middle = 0
            early: dict[str, bool] = {}
            for name in order:
                # Right after its start, with caches not complete, or well in the middle of its work; but not twice in
                # a row too early to have done anything.
                early[name] = not early.get(name, True) and moments.random() < 0.3
                if not early[name]:
                    spare.wait_for(name, '"working"')
                time.sleep(moments.random() * (1.0 if early[name] else 3.0))
                if name == "scheduler" and not early[name] and moments.random() < 0.7:
                    in_the_middle += partly_bound(watcher, namespace, 4.0)
                spare.kill(name)
                spare.start(name, wait=False)
            last = time.monotonic()
            load.stop()
            settle(watcher.world, [namespace], WITHIN)
            until(lambda: not wrong_objects(kube, [namespace]), 15, "one Workload and one PodGroup for each Job")
            # Whoever lets go of what is in deletion may have been started just now.
            until(lambda: not leaving(kube, namespace), WITHIN, "nothing is held in deletion")
            print(f"{in_the_middle} of {KILLS} kills of the scheduler hit it between two binds of a group")
            print(f"all is well {time.monotonic() - last:.1f} s after the last restart")
            assert time.monotonic() - last < WITHIN

            watcher.catch_up(namespace)
            report = replay(watcher.changes(), namespaces=[namespace])
            print(f"{report.groups_started} groups started, {report.binds} binds, longest in part:")
            print(*report.partial[:5], f"excused: {report.excused}", sep="\n")
            assert report.violations == []
            assert report.partial_now == []
            assert report.groups_started >= KILLS
            assert audit.not_ours_to_write(mark) == []
            for name in PROCESSES:
                assert spare.cluster.alive(name)
        finally:
            for name in nodes:
                kube.delete("nodes", name)
