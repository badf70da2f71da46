"""The Kubernetes versions a throwaway cluster can have, and the profiles of each.

A new version is one entry here and one folder under ``gomod/`` (its resolved go.mod and go.sum). A profile is
the set of feature gates and served API versions that all Kubernetes components of a cluster share: which
gates there are, and what they are called, depends on the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.errors import SpecError

#: Components that take --feature-gates.
GATED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True, slots=True)
class Profile:
    """What is switched on beyond Kubernetes' own defaults."""

    gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Release:
    """One Kubernetes minor version, with the exact versions of all that is built for it."""

    minor: str
    version: str
    etcd: str
    kwok: str
    kind: str
    containerd: str
    coredns: str
    pause: str
    profiles: Mapping[str, Profile]


_SCHEDULING_1_37 = {"scheduling.k8s.io/v1beta1": True, "scheduling.k8s.io/v1alpha3": True}

RELEASES: Mapping[str, Release] = {
    "1.37": Release(
        minor="1.37",
        version="1.37.2",
        etcd="3.7.0",
        kwok="0.8.0",
        kind="0.33.0",
        # What this kind ships, and what this kubeadm asks for.
        containerd="2.3.4",
        coredns="1.14.6",
        pause="3.10.2",
        profiles={
            # The Workload API is there and nobody acts on it: what Phalanx is for.
            "workload": Profile({"GenericWorkload": True}, _SCHEDULING_1_37),
            # kube-controller-manager makes the Workload and PodGroup of each Job itself.
            "native-jobs": Profile({"GenericWorkload": True, "WorkloadWithJob": True}, _SCHEDULING_1_37),
            # An API server that has never heard of Workloads.
            "no-gates": Profile(),
        },
    ),
}

DEFAULT = "1.37"


def release(kubernetes: str) -> Release:
    """Return the release for ``1.37``, ``1.37.2`` or ``v1.37.2``.

    :raises SpecError: if we have no such version
    """
    wanted = kubernetes.removeprefix("v")
    for known in RELEASES.values():
        if wanted in (known.minor, known.version):
            return known
    raise SpecError(
        f"Kubernetes {kubernetes!r} is not available; there is: "
        + ", ".join(known.version for known in RELEASES.values())
    )
