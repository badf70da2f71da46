"""What a cluster is asked to be, and how overrides are merged into what a component is started with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import versions
from cluster.errors import SpecError

#: Everything that runs in a cluster by default or on request, in start order.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok", "kube-scheduler")

#: By provider: how many nodes a cluster begins with, and the most it can have. More fake ones no API server of one
#: machine has ever kept Ready; a real one is a container of a hundred megabytes.
NODES = {"modules": (16, 20_000), "kind": (2, 50), "existing": (0, 0)}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
_FLAG = re.compile(r"--[a-z0-9][-a-z0-9_.]*(=.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster to be made.

    :param name: the cluster's name: lower case letters, digits and dashes, at most 40
    :param kubernetes: version, ``1.37`` or in full
    :param nodes: how many nodes it starts with: fake ones (16 unless said), or kind's workers (2 unless said)
    :param profile: which gates are on everywhere: ``workload``, ``native-jobs`` or ``no-gates``
    :param scheduler: also start kube-scheduler; kind always does
    :param provider: who makes it: ``modules`` builds the components and runs them as processes, ``kind`` makes real
        nodes with real pods, ``existing`` takes a cluster that is there
    :param kubeconfig: how to reach the cluster that is there; without it, what ``KUBECONFIG`` names
    :param feature_gates: by component (``*``: all of them), merged over the profile's
    :param flags: by component, as ``--name=value``; they take the place of our flags of the same name
    :param kwok: have kwok keep fake nodes alive and run their pods; without it, nodes are Ready from the start, nobody
        touches them again, and no pod runs: what a bench wants, of any number of nodes
    :param racks: how many racks the nodes are dealt out to (label ``topology.phalanx.dev/rack``)
    :param zones: how many zones the racks are dealt out to
    :raises SpecError: if it cannot exist
    """

    name: str
    kubernetes: str = versions.DEFAULT
    nodes: int | None = None
    profile: str = "workload"
    scheduler: bool = False
    provider: str = "modules"
    kubeconfig: Path | None = None
    feature_gates: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    node_cpu: str = "8"
    node_memory: str = "32Gi"
    node_pods: int = 110
    kwok: bool = True
    racks: int = 4
    zones: int = 2

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SpecError(
                f"{self.name!r} cannot be a cluster's name: use lower case letters, digits and dashes, "
                "at most 40, beginning and ending with a letter or digit"
            )
        if self.profile not in self.release.profiles:
            known = ", ".join(self.release.profiles)
            raise SpecError(f"Kubernetes {self.release.minor} has no profile {self.profile!r}; there is: {known}")
        if self.provider not in NODES:
            raise SpecError(f"there is no cluster provider {self.provider!r}; there is: {', '.join(NODES)}")
        most = NODES[self.provider][1]
        if not 0 <= self.node_count <= most or self.node_pods < 1 or self.racks < 1 or self.zones < 1:
            raise SpecError(
                f"nodes must be from 0 to {most} with provider {self.provider} (not {self.nodes}); "
                "pods per node, racks and zones must be at least 1"
            )
        if self.kubeconfig is not None and self.provider != "existing":
            raise SpecError(f"provider {self.provider} makes a kubeconfig; only existing takes one")
        if not self.kwok and self.provider != "modules":
            raise SpecError(f"provider {self.provider} has no kwok to be without; only modules has")
        for quantity in (self.node_cpu, self.node_memory):
            if not _QUANTITY.fullmatch(quantity):
                raise SpecError(f"{quantity!r} is not a Kubernetes quantity (examples: 8, 500m, 32Gi)")
        for component in self.feature_gates:
            if component != "*" and component not in versions.GATED:
                raise SpecError(f"{component!r} has no feature gates; these have: {', '.join(versions.GATED)}")
        for component, flags in self.flags.items():
            if component not in COMPONENTS:
                raise SpecError(f"there is no component {component!r}; there is: {', '.join(COMPONENTS)}")
            for flag in flags:
                if not _FLAG.fullmatch(flag):
                    raise SpecError(f"{flag!r} is not a flag for {component}: write --name=value")

    @property
    def release(self) -> versions.Release:
        """The Kubernetes version in full."""
        return versions.release(self.kubernetes)

    @property
    def node_count(self) -> int:
        """How many nodes it starts with."""
        return NODES[self.provider][0] if self.nodes is None else self.nodes

    @property
    def components(self) -> tuple[str, ...]:
        """What runs, in start order."""
        wanted = {"kube-scheduler": self.scheduler, "kwok": self.kwok}
        return tuple(c for c in COMPONENTS if wanted.get(c, True))

    def gates(self, component: str) -> dict[str, bool]:
        """Return the feature gates of a component: the profile's, then those for all, then its own."""
        return {
            **self.release.profiles[self.profile].gates,
            **self.feature_gates.get("*", {}),
            **self.feature_gates.get(component, {}),
        }

    def argv(self, component: str, defaults: Sequence[str]) -> list[str]:
        """Return ``defaults`` (a program and its flags) with this spec's gates and flags merged in.

        A flag given in the spec replaces ours of the same name, since repeating one means different things
        for different flags (the last wins, or they add up).
        """
        argv = list(defaults)
        if component in versions.GATED and (gates := self.gates(component)):
            argv.append("--feature-gates=" + join(gates))
        own = self.flags.get(component, ())
        replaced = {flag.split("=", 1)[0] for flag in own}
        return [arg for arg in argv if arg.split("=", 1)[0] not in replaced] + list(own)


def join(switches: Mapping[str, bool]) -> str:
    """Write switches the way Kubernetes' flags take them: ``A=true,B=false``."""
    return ",".join(f"{name}={str(on).lower()}" for name, on in switches.items())
