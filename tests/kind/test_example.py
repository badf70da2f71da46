"""The controller of docs/framework.md on a real API server, as its own ServiceAccount with the RBAC of the guide."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from cluster.kubeconfig import Access
from tests.kind.audit import AuditLog
from tests.kind.conftest import ROOT
from tests.kind.kube import Kube, until

EXAMPLES = ROOT / "docs" / "examples"
RBAC = EXAMPLES / "budgets.yaml"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/budgets"
USER = "system:serviceaccount:default:budgets"


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """Pods that nobody binds: the budget is for the Deployment."""
    labels = {"app": name}
    pod = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def running(cluster: Cluster, kube: Kube, tmp_path: Path) -> Iterator[None]:
    """The example as a process."""
    cluster.kubectl_run("apply", "-f", str(RBAC))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = kube.request("POST", f"{ACCOUNT}/token", request)["status"]["token"]
    admin = Access.read(cluster.kubeconfig)
    kubeconfig = tmp_path / "kubeconfig"
    Access(server=admin.server, ca=admin.ca, token=token).write(kubeconfig, cluster.name, "budgets")
    cluster.run(
        "budgets", [sys.executable, EXAMPLES / "budgets.py", kubeconfig], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    try:
        yield
    finally:
        if cluster.alive("budgets"):
            cluster.stop("budgets")
        cluster.kubectl_run("delete", "-f", str(RBAC))


def granted() -> set[tuple[str, str]]:
    """Verb and resource of each rule."""
    rules = [rule for document in yaml.safe_load_all(RBAC.read_text()) for rule in document.get("rules", ())]
    return {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_the_guides_controller(cluster: Cluster, kube: Kube, namespace: str, audit: AuditLog, running: None) -> None:
    def budget() -> dict[str, Any] | None:
        return kube.find("poddisruptionbudgets", "web", namespace)

    def said() -> set[str]:
        events = kube.events_about(namespace, "Deployment", "web")
        return {event["reason"] for event in events if event["reportingController"] == "example.dev/budgets"}

    mark = audit.mark()
    made = kube.create("deployments", deployment("web", 3), namespace)
    first = until(budget, what=f"a budget is made; it said {cluster.log('budgets').read_text()[-2000:]}")
    assert first is not None
    assert first["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    assert first["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]

    kube.patch("poddisruptionbudgets", "web", namespace, {"spec": {"maxUnavailable": 3}})
    until(lambda: (budget() or {})["spec"]["maxUnavailable"] == 1, what="a changed budget is repaired")
    kube.delete("poddisruptionbudgets", "web", namespace)
    second = until(budget, what="a deleted budget is made again")
    assert second is not None
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    until(lambda: said() == {"BudgetCreated", "BudgetRepaired"}, what="the Deployment has its Events")

    kube.patch("deployments", "web", namespace, {"spec": {"replicas": 1}})
    until(lambda: budget() is None, what="a Deployment of one has no budget")
    kube.patch("deployments", "web", namespace, {"spec": {"replicas": 2}})
    until(budget, what="a Deployment of two has one")
    kube.delete("deployments", "web", namespace, propagationPolicy="Background")
    until(lambda: budget() is None, what="a budget goes with its Deployment")

    assert cluster.alive("budgets"), cluster.log("budgets").read_text()[-2000:]
    cluster.stop("budgets")
    asked = audit.since(0, USER)
    assert [e for e in asked if e.code == 403] == []
    used = {(e.verb, e.resource) for e in asked}
    assert used <= granted()
    # A budget is read after a lost answer, an Event counted when the same is said again, a Lease made when it is gone.
    unused = {("get", "poddisruptionbudgets"), ("patch", "events"), ("create", "leases")}
    assert granted() - used <= unused, "nothing is granted in vain"
    # One that its cache does not hold yet may be asked for again: the name is the Deployment's, so that is a 409.
    asks = [e for e in audit.since(mark, USER) if (e.verb, e.resource) == ("create", "poddisruptionbudgets")]
    asks = [e for e in asks if e.namespace == namespace]  # kind has a Deployment of its own
    assert sum(e.code == 201 for e in asks) == 3
    assert {e.code for e in asks} <= {201, 409}
