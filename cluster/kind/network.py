"""The pod network of a kind cluster, in the place of kind's own, whose image cannot be built from modules.

All nodes are on one bridge: each gets the standard point-to-point plugin on its range of addresses, and a route to the
range of every other node. Pods reach pods, Services and DNS across nodes; what leaves the cluster is not masqueraded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TARGET = "/etc/cni/net.d/10-phalanx.conflist"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node on the bridge, and the addresses of its pods."""

    name: str
    address: str
    pods: str


def addresses(items: Iterable[Mapping[str, Any]]) -> list[NodeAddress] | None:
    """Return where Node objects are; None while one of them has no address or no range yet."""
    found = []
    for item in items:
        reported = item.get("status", {}).get("addresses") or []
        address = next((entry["address"] for entry in reported if entry["type"] == "InternalIP"), "")
        pods = item["spec"].get("podCIDR", "")
        if not address or not pods:
            return None
        found.append(NodeAddress(item["metadata"]["name"], address, pods))
    return found


def conflist(pods: str) -> dict[str, Any]:
    """Return the CNI configuration of a node whose pods have these addresses."""
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": pods}]],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "phalanx",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def script(node: NodeAddress, nodes: Sequence[NodeAddress]) -> str:
    """Return the shell script that connects a node; it reads nothing and can be run again."""
    routes = [f"ip route replace {other.pods} via {other.address}" for other in nodes if other != node]
    # Renamed into place: containerd reads the folder whenever something changes in it.
    return "\n".join(
        [
            "set -e",
            "mkdir -p /etc/cni/net.d",
            f"cat > {_TARGET}.part <<'END'",
            json.dumps(conflist(node.pods)),
            "END",
            *routes,
            f"mv {_TARGET}.part {_TARGET}",
            "",
        ]
    )
