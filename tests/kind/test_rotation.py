"""Credentials and history that go away under running processes: they go on, with the same pid and true caches."""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster, pki
from cluster.kubeconfig import Access
from tests.kind.conftest import PROCESSES, Phalanx, fresh_namespace
from tests.kind.kube import Kube, job, until
from tests.kind.proxy import FaultProxy, proxied
from tests.kind.replica import Replica, restart_api_server, untrue

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster(spare: Phalanx) -> Cluster:
    """The cluster whose control plane may be killed, without processes of ours but the test's."""
    spare.stop()
    return spare.cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with proxied(cluster) as made:
        yield made


@pytest.fixture
def replicas(cluster: Cluster, proxy: FaultProxy) -> Iterator[list[Replica]]:
    """One of each process, behind the proxy."""
    made = [Replica(cluster, who, "rotated", proxy.kubeconfig(who)) for who in PROCESSES]
    for replica in made:
        replica.start()
    until(lambda: all(r.leads() for r in made), 60, "both work")
    pids = [r.pid for r in made]
    yield made
    assert [r.pid for r in made] == pids, "no process ended"
    for replica in made:
        cluster.stop(replica.name)


def works(kube: Kube, replicas: list[Replica], name: str, within: float = 60) -> None:
    """A gang is bound, and the caches are what a fresh list says."""
    with fresh_namespace(kube, name) as namespace:
        kube.create("jobs", job("gang", 3), namespace)
        until(lambda: len(kube.bound(namespace)) == 3, within, f"a gang is bound ({name})")
        until(lambda: not untrue(kube, replicas), 20, "caches equal a fresh list")


def test_tokens_that_are_revoked(
    cluster: Cluster, proxy: FaultProxy, replicas: list[Replica], spare_kube: Kube
) -> None:
    works(spare_kube, replicas, "before")
    for who in PROCESSES:
        # Another uid: every token of the old one is refused.
        account = ["serviceaccount", "-n", "phalanx-system", f"phalanx-{who}"]
        cluster.kubectl_run("delete", *account)
        cluster.kubectl_run("create", *account)
    proxy.cut()
    refused = 'rest_client_requests_total{code="401"'
    until(lambda: all(refused in r.get("/metrics") for r in replicas), 60, "the old tokens are refused")
    for who in PROCESSES:
        proxy.kubeconfig(who)
    works(spare_kube, replicas, "after")


@pytest.mark.skipif(
    os.environ.get("PHALANX_TRANSPORT") == "kr8s", reason="kr8s's own transport keeps the TLS context it has"
)
def test_certificates_of_a_new_authority(
    proxy: FaultProxy, replicas: list[Replica], spare_kube: Kube, tmp_path: Path
) -> None:
    works(spare_kube, replicas, "before")
    keys = pki.make(tmp_path)
    proxy.serve_with(keys.serving, keys.serving_key)
    proxy.cut()
    for who in PROCESSES:
        file = proxy.kubeconfig(who)
        access = Access.read(file)
        Access(access.server, keys.ca.read_text(), access.token).write(file, "rotated", who)
    works(spare_kube, replicas, "after")


def test_history_that_is_compacted(
    cluster: Cluster, proxy: FaultProxy, replicas: list[Replica], spare_kube: Kube
) -> None:
    proxy.hold(True)
    with fresh_namespace(spare_kube, "meanwhile") as namespace:
        spare_kube.create("jobs", job("unseen", 2), namespace)
        until(lambda: len(spare_kube.list("pods", namespace)) == 2)
    revision = int(etcd(cluster, "range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"])
    etcd(cluster, "compaction", {"revision": str(revision), "physical": True})
    # A watch cache that starts anew has no history of its own either.
    restart_api_server(cluster)
    lists = {r.name: r.count("phalanx_informer_lists_total") for r in replicas}
    proxy.hold(False)
    proxy.cut()
    works(spare_kube, replicas, "after")
    for replica in replicas:
        assert replica.count("phalanx_informer_lists_total") > lists[replica.name], "it was told 410 and listed again"


def etcd(cluster: Cluster, what: str, body: dict[str, Any]) -> Any:
    """Ask the cluster's etcd through its JSON gateway."""
    port = cluster.state.ports["etcd"]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v3/kv/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)
