"""Who is compared: the API server's limit, kube-scheduler, Phalanx. What each brings to the same control plane."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from api import names
from bench import objects
from bench.cases import NODE_CPU, NODE_MEMORY, NODE_PODS, Case
from bench.load import CONNECTIONS
from cluster import Cluster, ClusterSpec
from cluster.client import Client
from cluster.kubeconfig import Access
from cluster.link import wait_for
from cluster.paths import Layout

ROOT = Path(__file__).parent.parent

#: What kube-scheduler may ask of the API server: as good as no limit.
_QPS, _BURST = 5000, 10000

#: For everything in the control plane, whoever schedules. Without them, kube-controller-manager would be what a case of
#: Jobs waits for.
_FLAGS: Mapping[str, tuple[str, ...]] = {
    "kube-controller-manager": (f"--kube-api-qps={_QPS}", f"--kube-api-burst={_BURST}"),
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of the comparison.

    :param name: as it is shown
    :param scheduler: what pods call it; "": nobody schedules, and the creator binds
    :param connections: of the creator
    :param processes: whose CPU and memory are its own, by their names in the cluster
    :param labels: of the namespaces
    """

    name: str
    scheduler: str = ""
    connections: int = CONNECTIONS
    processes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_limit(self) -> bool:
        """Whether nobody schedules."""
        return not self.scheduler

    def takes_part(self, case: Case) -> bool:
        """Whether the case can be asked of it: where nobody schedules, nobody says what does not fit."""
        return case.fits or not self.is_limit

    def native(self, case: Case) -> bool:
        """Whether kube-controller-manager makes the gangs of the case's Jobs."""
        return False

    def spec(self, case: Case, name: str, nodes: int, folder: Path) -> ClusterSpec:
        """Return the control plane of a run: the same for all, but for the gates and flags of kube-scheduler.

        :param folder: where files can be written that live as long as the cluster
        """
        # Pods without a group need no gate: kube-scheduler is not to pay for one.
        gates = {"kube-scheduler": {"GenericWorkload": False}} if case.kind == "singles" else {}
        return ClusterSpec(
            name=name,
            nodes=nodes,
            profile="native-jobs" if self.native(case) else "workload",
            feature_gates=gates,
            kwok=False,
            scheduler=self.is_kube,
            flags={**_FLAGS, **self.flags(name, folder)},
            node_cpu=str(NODE_CPU),
            node_memory=NODE_MEMORY,
            node_pods=NODE_PODS,
        )

    @property
    def is_kube(self) -> bool:
        """Whether it is a component of Kubernetes."""
        return False

    def flags(self, name: str, folder: Path) -> dict[str, tuple[str, ...]]:
        """Return the flags of its components."""
        return {}

    def install(self, cluster: Cluster) -> None:
        """Bring in what it needs in the cluster; the case's namespaces are there."""

    def start(self, cluster: Cluster) -> None:
        """Start its processes; they need not work yet when this returns."""


@dataclass(frozen=True, slots=True)
class KubeScheduler(Contender):
    """kube-scheduler of the same version; with ``percentage`` of the nodes scored instead of its own choice."""

    percentage: int | None = None

    @property
    def is_kube(self) -> bool:
        """It is."""
        return True

    def native(self, case: Case) -> bool:
        """Its own way from a Job to a gang."""
        return case.kind == "jobs"

    def flags(self, name: str, folder: Path) -> dict[str, tuple[str, ...]]:
        """Return its flags; a percentage can only be said in a file, which then says everything."""
        if self.percentage is None:
            return {"kube-scheduler": (f"--kube-api-qps={_QPS}", f"--kube-api-burst={_BURST}")}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "percentageOfNodesToScore": self.percentage,
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(Layout.of(name).data / "kube-scheduler.kubeconfig"),
                "qps": _QPS,
                "burst": _BURST,
            },
        }
        file = folder / "kube-scheduler.yaml"
        file.write_text(yaml.safe_dump(config))
        return {"kube-scheduler": (f"--config={file}",)}


@dataclass(frozen=True, slots=True)
class Phalanx(Contender):
    """This checkout: the manifests as users apply them, both processes under their ServiceAccounts."""

    def install(self, cluster: Cluster) -> None:
        """Apply the manifests of the cluster's version, and wait until the admission policies act."""
        overlay = ROOT / "manifests" / "overlays" / ".".join(cluster.state.kubernetes.split(".")[:2])
        cluster.kubectl_run("apply", "-k", str(overlay))
        with Client(Access.read(cluster.kubeconfig)) as client:

            def marked() -> bool:
                path = f"/apis/batch/v1/namespaces/{objects.BENCH}/jobs?dryRun=All"
                answer = client.request("POST", path, objects.job("probe", 2))
                labels = answer["spec"]["template"]["metadata"].get("labels", {})
                return bool(labels.get(names.GANG_LABEL) == "job")

            wait_for("the admission policies act", marked, 30)

    def start(self, cluster: Cluster) -> None:
        """Run the controllers and the scheduler with their defaults."""
        for name in self.processes:
            argv: list[str | Path] = [sys.executable, "-m", "cli", name, "--kubeconfig", cluster.kubeconfig_as(name)]
            cluster.run(name, argv, cwd=ROOT)


#: How many connections the limit is the best of.
LIMITS = (16, 48, 128)

LIMIT = "limit"

_KNOWN: Mapping[str, tuple[Contender, ...]] = {
    LIMIT: tuple(Contender(f"{LIMIT}-{count}", connections=count) for count in LIMITS),
    "kube-scheduler": (KubeScheduler("kube-scheduler", "default-scheduler", processes=("kube-scheduler",)),),
    "kube-scheduler-100": (
        KubeScheduler("kube-scheduler-100", "default-scheduler", processes=("kube-scheduler",), percentage=100),
    ),
    "phalanx": (
        Phalanx(
            "phalanx",
            "phalanx",
            processes=("controllers", "scheduler"),
            labels={"phalanx.dev/jobs": "enabled"},
        ),
    ),
}

#: All of them.
CONTENDERS = " ".join(_KNOWN)


class ContenderError(ValueError):
    """Nobody has that name."""


def contenders(names: Iterable[str]) -> list[Contender]:
    """Return those of some names, separated by spaces or commas; the limit is several.

    :raises ContenderError: if there is no such contender; the message names those there are
    """
    found: dict[str, Contender] = {}
    for name in (word for text in names for word in text.replace(",", " ").split()):
        if name not in _KNOWN and not any(name == each.name for each in _KNOWN[LIMIT]):
            some = ", ".join([*_KNOWN, *(each.name for each in _KNOWN[LIMIT])])
            raise ContenderError(f"{name!r} is no contender; there is: {some}")
        for each in _KNOWN.get(name) or [each for each in _KNOWN[LIMIT] if each.name == name]:
            found[each.name] = each
    if not found:
        raise ContenderError(f"no contender was given; there is: {', '.join(_KNOWN)}")
    return list(found.values())


def rotated(of: list[Contender], run: int) -> list[Contender]:
    """Return them in the order of a run: each comes first, and last, as often as the others."""
    first = run % max(1, len(of))
    return of[first:] + of[:first]
