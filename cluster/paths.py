"""Where clusters live on disk.

Cache (rebuilt at any time): ``PHALANX_CACHE`` or the user's cache folder. State (one folder a cluster, gone
with it): ``PHALANX_STATE`` or the user's state folder. Nothing is written anywhere else, but for what belongs
to the machine as a whole (a Docker daemon of ours, while there is one).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return the folder of built binaries and build logs."""
    return Path(os.environ.get("PHALANX_CACHE") or platformdirs.user_cache_dir("phalanx")).absolute()


def state_dir() -> Path:
    """Return the folder of cluster states and kept logs."""
    return Path(os.environ.get("PHALANX_STATE") or platformdirs.user_state_dir("phalanx")).absolute()


def machine_dir() -> Path:
    """Return the folder of what all clusters of this machine share; only root has any use for it."""
    return Path("/run/phalanx")


def clusters_dir() -> Path:
    """Return the folder that has one folder a cluster."""
    return state_dir() / "clusters"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folder of one cluster. Everything in it may hold credentials: the folder itself is 0700."""

    root: Path

    @classmethod
    def of(cls, name: str) -> Layout:
        """Return the layout of the cluster called ``name``, made or not."""
        return cls(clusters_dir() / name)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.root.name

    @property
    def state_file(self) -> Path:
        """What is known of the cluster, see :mod:`cluster.state`."""
        return self.root / "cluster.json"

    @property
    def data(self) -> Path:
        """Keys, certificates, component kubeconfigs and etcd's data."""
        return self.root / "data"

    @property
    def logs(self) -> Path:
        """One file a component, and the audit log."""
        return self.root / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON event a line."""
        return self.logs / "audit.log"

    @property
    def kept_logs(self) -> Path:
        """Where the logs go when the cluster is gone and they are to stay."""
        return self.root.parent.parent / "kept-logs" / self.name

    def log(self, component: str) -> Path:
        """Return the log file of one process."""
        return self.logs / f"{component}.log"
