"""Fake nodes: Node objects that kwok keeps alive, or that are Ready for good.

Node ``i`` stands in rack ``i mod racks``, and racks are dealt out to zones the same way: adding nodes later
never moves one, and every rack is as full as the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster.client import Client
from cluster.kubeconfig import Access

#: kwok keeps the nodes that have this annotation, and no others.
FAKE = "kwok.x-k8s.io/node"
RACK = "topology.phalanx.dev/rack"
ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"

_NAME = re.compile(r"node-(\d{4,})")


def name(index: int) -> str:
    """Return the name of the fake node number ``index``: ``node-0007``."""
    return f"node-{index:04d}"


def next_index(names: Iterable[str]) -> int:
    """Return the first number above those in use."""
    return max((int(m[1]) for m in map(_NAME.fullmatch, names) if m), default=-1) + 1


def node(
    index: int,
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: int = 110,
    racks: int = 4,
    zones: int = 2,
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    ready: bool = False,
) -> dict[str, Any]:
    """Return the Node object of fake node number ``index``.

    :param resources: further resources it has, such as ``{"nvidia.com/gpu": "8"}``
    :param ready: it says so itself, since nobody will report it
    """
    rack = index % racks
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **(resources or {})}
    status: dict[str, Any] = {"capacity": capacity, "allocatable": capacity}
    if ready:
        status["conditions"] = [{"type": "Ready", "status": "True", "reason": "Fake"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name(index),
            "annotations": {FAKE: "fake"},
            "labels": {
                HOSTNAME: name(index),
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                # As every kubelet sets them: kube-controller-manager would have to patch each node.
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
                ZONE: f"zone-{rack % zones}",
                RACK: f"rack-{rack}",
                **(labels or {}),
            },
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": status,
    }


def create(access: Access, objects: Sequence[Mapping[str, Any]], connections: int = 4) -> None:
    """Create Node objects, over several connections when there are many.

    :raises ApiError: if the server refuses one
    """

    def some(part: Sequence[Mapping[str, Any]]) -> None:
        with Client(access) as client:
            for item in part:
                client.request("POST", "/api/v1/nodes", item)

    parts = [objects[i::connections] for i in range(connections) if objects[i::connections]]
    with ThreadPoolExecutor(max_workers=connections) as pool:
        for _ in pool.map(some, parts):
            pass


def list_nodes(client: Client) -> list[dict[str, Any]]:
    """Return all nodes of the cluster, fake or not."""
    items: list[dict[str, Any]] = client.request("GET", "/api/v1/nodes")["items"]
    return items


def is_ready(item: Mapping[str, Any]) -> bool:
    """Tell whether pods can be placed on a node: it is Ready, and has lost the taint for nodes that are not."""
    conditions = item.get("status", {}).get("conditions") or []
    taints = item.get("spec", {}).get("taints") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) and not any(
        t["key"] == "node.kubernetes.io/not-ready" for t in taints
    )
