"""One replica of one of our processes on a real cluster, seen from outside; and what its caches ought to be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cluster import Cluster
from cluster.ports import free_ports
from tests.kind.conftest import PROGRAM, ROOT
from tests.kind.kube import Kube, KubeError, until


class Replica:
    """One replica of one process."""

    def __init__(self, cluster: Cluster, who: str, side: str, kubeconfig: Path) -> None:
        self.name = f"{who}-{side}"
        self.who = who
        self._cluster = cluster
        self._kubeconfig = kubeconfig
        (self._port,) = free_ports(1)

    def start(self) -> None:
        address = f"127.0.0.1:{self._port}"
        argv: list[str | Path] = [PROGRAM, self.who, "--kubeconfig", self._kubeconfig, "--metrics-address", address]
        self._cluster.run(self.name, argv, cwd=ROOT)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        return self._cluster.pids[self.name]

    @property
    def alive(self) -> bool:
        return self._cluster.alive(self.name)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        until(lambda: self.name not in self._cluster.pids, what=f"{self.name} is seen dead", every=0.02)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    @property
    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.get("/readyz") == "ok\n"
        return False

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return {s.name: s.value for f in families for s in f.samples if len(s.labels) == 0}

    def count(self, metric: str) -> float:
        """The sum of a metric over its labels."""
        families = text_string_to_metric_families(self.get("/metrics"))
        return sum(s.value for f in families for s in f.samples if s.name == metric)

    def leads(self) -> bool:
        with contextlib.suppress(OSError):  # it is about to start
            return f'leader_election_master_status{{name="phalanx-{self.who}"}} 1.0' in self.get("/metrics")
        return False


def truth(kube: Kube) -> dict[str, dict[str, str]]:
    """What a fresh list says, in the words of ``/debug/caches``."""

    def listed(resource: str) -> dict[str, str]:
        metas = [item["metadata"] for item in kube.list(resource)]
        return {"/".join(filter(None, (m.get("namespace"), m["name"]))): m["resourceVersion"] for m in metas}

    kinds = {"jobs": "jobs.batch", "podgroups": "podgroups.scheduling.k8s.io"}
    kinds |= {"workloads": "workloads.scheduling.k8s.io", "pods": "pods", "nodes": "nodes"}
    return {key: listed(resource) for resource, key in kinds.items()}


def untrue(kube: Kube, replicas: Sequence[Replica]) -> list[str]:
    """Caches that are not what a fresh list says."""
    fresh, found = truth(kube), []
    for replica in replicas:
        caches: dict[str, dict[str, str]] = json.loads(replica.get("/debug/caches"))
        found += [f"{replica.name}: {key}" for key in caches.keys() & fresh.keys() if caches[key] != fresh[key]]
    return found


def restart_api_server(cluster: Cluster) -> None:
    """Kill the API server, start it again, and return when it answers."""
    argv = Path(f"/proc/{cluster.pids['kube-apiserver']}/cmdline").read_text().split("\0")[:-1]
    os.kill(cluster.pids["kube-apiserver"], signal.SIGKILL)
    until(lambda: "kube-apiserver" not in cluster.pids, every=0.05)
    cluster.run("kube-apiserver", argv, grace=0)
    with Kube(cluster.kubeconfig) as kube:

        def answers() -> bool:
            try:
                kube.list("namespaces")
            except (KubeError, OSError):
                return False
            return True

        until(answers, 60, "the API server is back")
