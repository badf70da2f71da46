"""What is built for a release: pure descriptions of ``go build`` runs, done by :mod:`cluster.build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.paths import cache_dir
from cluster.versions import Release

_K8S_VERSION = "k8s.io/component-base/version"
_CONTAINERD = "github.com/containerd/containerd/v2"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One ``go build``: which module folder, which packages, and how each program tells its version."""

    name: str
    version: str
    gomod: str
    packages: tuple[str, ...]
    ldflags: str
    programs: Mapping[str, tuple[str, ...]]
    tags: tuple[str, ...] = field(default=())

    @property
    def folder(self) -> Path:
        """Where the finished programs are."""
        return cache_dir() / "bin" / f"{self.name}-{self.version}"


def etcd(release: Release) -> Recipe:
    """Return the recipe of etcd."""
    return Recipe(
        name="etcd",
        version=release.etcd,
        gomod=f"etcd-{release.etcd}",
        packages=(".",),
        ldflags="-s -w",
        programs={"etcd": ("--version",)},
    )


def kubernetes(release: Release) -> Recipe:
    """Return the recipe of the control plane, and of kubectl."""
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    versions = {name: ("version", "--client") if name == "kubectl" else ("--version",) for name in programs}
    return _kubernetes(release, "kubernetes", versions)


def modules(release: Release) -> tuple[Recipe, ...]:
    """Return what plain processes need: a quick one first, and kwok after what it shares packages with."""
    return (
        etcd(release),
        kubernetes(release),
        Recipe(
            name="kwok",
            version=release.kwok,
            gomod=f"kwok-{release.kwok}",
            packages=("sigs.k8s.io/kwok/cmd/kwok",),
            ldflags=f"-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v{release.kwok}",
            programs={"kwok": ("--version",)},
        ),
    )


def kind(release: Release) -> Recipe:
    """Return the recipe of the ``kind`` program."""
    return Recipe(
        name="kind",
        version=release.kind,
        gomod=f"kind-{release.kind}",
        packages=("sigs.k8s.io/kind",),
        ldflags="-s -w",
        programs={"kind": ("version",)},
    )


def node_image(release: Release) -> tuple[Recipe, ...]:
    """Return what goes into a kind node image, the control plane included."""
    node = {"kubelet": ("--version",), "kube-proxy": ("--version",), "kubeadm": ("version", "-o", "short")}
    containerd = ("containerd", "ctr", "containerd-shim-runc-v2")
    return (
        etcd(release),
        kubernetes(release),
        # A build of its own, so that control planes of plain processes need not wait for it; most packages are shared.
        _kubernetes(release, "kubernetes-node", node),
        Recipe(
            name="containerd",
            version=release.containerd,
            gomod=f"containerd-{release.containerd}",
            packages=tuple(f"{_CONTAINERD}/cmd/{name}" for name in containerd),
            ldflags=f"-s -w -X {_CONTAINERD}/version.Version=v{release.containerd}",
            programs={name: ("-v" if "shim" in name else "--version",) for name in containerd},
            # As kind builds it: it selects none of these snapshotters.
            tags=("no_aufs", "no_zfs", "no_btrfs", "no_devmapper"),
        ),
        Recipe(
            name="coredns",
            version=release.coredns,
            gomod=f"coredns-{release.coredns}",
            packages=(".",),
            ldflags="-s -w",
            programs={"coredns": ("-version",)},
        ),
        Recipe(
            name="pause",
            version=release.pause,
            gomod=f"pause-{release.pause}",
            packages=(".",),
            ldflags="-s -w",
            programs={"pause": ("-v",)},
        ),
    )


def _kubernetes(release: Release, name: str, programs: Mapping[str, tuple[str, ...]]) -> Recipe:
    major, minor = release.minor.split(".")
    stamp = {
        "gitVersion": f"v{release.version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return Recipe(
        name=name,
        version=release.version,
        gomod=f"kubernetes-{release.version}",
        packages=tuple(f"k8s.io/kubernetes/cmd/{program}" for program in programs),
        ldflags="-s -w " + " ".join(f"-X {_K8S_VERSION}.{key}={value}" for key, value in stamp.items()),
        programs=programs,
    )
