"""Identical pods are one row with a count: what makes two pods the same to every filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from api.wire import NodeSelectorTerm, Pod, PodAffinityTerms, PodSpec, Toleration
from scheduler.core import requests

#: (protocol, host port, host IP); an empty IP means every address of the node.
HostPort = tuple[str, int, str]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Signature:
    """Everything of a pod that filters read. Interned: equal signatures are the same object."""

    requests: requests.Amounts
    node_selector: tuple[tuple[str, str], ...]
    #: Required node affinity: any term may match; None when there is none.
    affinity: tuple[NodeSelectorTerm, ...] | None
    tolerations: tuple[Toleration, ...]
    host_ports: tuple[HostPort, ...]
    #: Hard constraints this version cannot honour. Such a pod is held, with the reason, never misplaced.
    unsupported: tuple[str, ...]


#: Encodes what a pod's spec says, with defaults left out.
_encode = msgspec.msgpack.Encoder().encode


def raw_key_of(pod: Pod) -> bytes:
    """Return the spec as it is written, its place left out: pods of one template mostly have the same."""
    spec = pod.spec
    return _encode(msgspec.structs.replace(spec, node_name="") if spec.node_name else spec)


def key_of(pod: Pod) -> bytes:
    """Return a canonical form of what `of_pod` reads, to intern by."""
    spec = pod.spec
    return msgspec.json.encode(
        (
            sorted(requests.of_pod(spec).items()),
            sorted(spec.node_selector.items()),
            spec.affinity,
            spec.tolerations,
            list(_host_ports(spec)),
            list(_unsupported(spec)),
        )
    )


def of_pod(pod: Pod) -> Signature:
    """Extract the signature of a pod."""
    spec = pod.spec
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = node_affinity.required if node_affinity is not None else None
    return Signature(
        requests=requests.of_pod(spec),
        node_selector=tuple(sorted(spec.node_selector.items())),
        affinity=required.node_selector_terms if required is not None else None,
        tolerations=spec.tolerations,
        host_ports=tuple(_host_ports(spec)),
        unsupported=tuple(_unsupported(spec)),
    )


def _host_ports(spec: PodSpec) -> Iterator[HostPort]:
    restartable = [c for c in spec.init_containers if c.restart_policy == "Always"]
    for container in (*spec.containers, *restartable):
        for port in container.ports:
            host_port = port.host_port or (port.container_port if spec.host_network else 0)
            if host_port > 0:
                ip = "" if port.host_ip in ("", "0.0.0.0") else port.host_ip
                yield (port.protocol, host_port, ip)


def _unsupported(spec: PodSpec) -> Iterator[str]:
    affinity = spec.affinity
    if affinity is not None and _hard(affinity.pod_affinity):
        yield "spec.affinity.podAffinity"
    if affinity is not None and _hard(affinity.pod_anti_affinity):
        yield "spec.affinity.podAntiAffinity"
    if any(c.when_unsatisfiable == "DoNotSchedule" for c in spec.topology_spread_constraints):
        yield "spec.topologySpreadConstraints (DoNotSchedule)"
    if spec.resource_claims:
        yield "spec.resourceClaims"
    if any(v.persistent_volume_claim is not None or v.ephemeral is not None for v in spec.volumes):
        yield "spec.volumes with a PersistentVolumeClaim"


def _hard(terms: PodAffinityTerms | None) -> bool:
    return terms is not None and bool(terms.required)


def conflicts(one: HostPort, other: HostPort) -> bool:
    """Whether two host ports cannot be on one node."""
    return one[:2] == other[:2] and (one[2] == other[2] or "" in (one[2], other[2]))
