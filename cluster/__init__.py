"""Throwaway Kubernetes clusters for the demo, the tests and the bench.

::

    with up(ClusterSpec(name="demo", nodes=16)) as cluster:
        cluster.kubectl_run("get", "nodes")

A real control plane (etcd, kube-apiserver, kube-controller-manager, on request kube-scheduler) of a given
version, with fake nodes whose pods run until they are told to end; or a kind cluster, whose nodes and pods are
real; or one that is there already. Several stand side by side; one goes down with the process that made it.
"""

from __future__ import annotations

from cluster.errors import (
    BuildError,
    ClusterError,
    ClusterExistsError,
    ClusterNotFoundError,
    CommandError,
    ComponentDiedError,
    NotReadyError,
    ServiceAccountMissingError,
    SpecError,
    UnavailableError,
)
from cluster.events import Event, Report
from cluster.handle import Cluster
from cluster.lifecycle import clusters, start, up
from cluster.progress import console_report
from cluster.spec import ClusterSpec

__all__ = [
    "BuildError",
    "Cluster",
    "ClusterError",
    "ClusterExistsError",
    "ClusterNotFoundError",
    "ClusterSpec",
    "CommandError",
    "ComponentDiedError",
    "Event",
    "NotReadyError",
    "Report",
    "ServiceAccountMissingError",
    "SpecError",
    "UnavailableError",
    "clusters",
    "console_report",
    "start",
    "up",
]
