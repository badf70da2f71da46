"""Makes clusters: claims the name, has the control plane made, waits until it is usable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from cluster import state
from cluster.client import Client
from cluster.errors import ClusterError, ClusterExistsError, ClusterNotFoundError, ComponentDiedError
from cluster.events import Event, Report, quiet
from cluster.handle import Cluster, remove
from cluster.kubeconfig import Access
from cluster.link import Link
from cluster.paths import Layout
from cluster.provider import provider
from cluster.spec import ClusterSpec


def clusters() -> list[Cluster]:
    """Return all clusters, dead ones too, by name."""
    return [Cluster(Layout.of(known.name)) for known in state.load_all()]


def start(spec: ClusterSpec, report: Report = quiet) -> Cluster:
    """Make a cluster and return it, owned by this process, when it is ready to be used.

    Ready: the API server is, the default namespace has its ServiceAccount, all nodes are Ready.

    :raises ClusterExistsError: if a live cluster has the name; a dead one is replaced
    :raises ClusterError: if it could not be made; nothing is left but its logs
    """
    maker = provider(spec.provider)
    _refuse_live(spec.name)  # before a build of minutes
    maker.prepare(spec, report)
    link = _claim(Layout.of(spec.name), report)
    try:
        cluster = Cluster(link.layout, link, report)
        facts: dict[str, Any] = {"profile": spec.profile, "provider": spec.provider, "scheduler": spec.scheduler}
        facts |= {"kubernetes": spec.release.version, "fake_nodes": maker.fake_nodes, "kwok": spec.kwok}
        link.request(facts=facts)
        endpoint = maker.start(spec, link, report)
        link.request(
            facts={
                "kubernetes": endpoint.kubernetes,
                "kubeconfig": str(endpoint.kubeconfig),
                "kubectl": str(endpoint.kubectl),
                "audit_log": str(endpoint.audit_log or ""),
                "ports": endpoint.ports,
                "nodes": endpoint.nodes,
            }
        )
        if maker.fake_nodes and spec.node_count:
            cluster.add_nodes(
                spec.node_count,
                cpu=spec.node_cpu,
                memory=spec.node_memory,
                pods=spec.node_pods,
                racks=spec.racks,
                zones=spec.zones,
            )
        _wait_default_service_account(link, endpoint.kubeconfig)
        link.request(facts={"ready": True})
    except BaseException as error:
        link.down(keep_logs=True)
        if isinstance(error, ClusterError):
            _point_to_kept_logs(error, link.layout)
        raise
    report(Event("ready", f"cluster {spec.name} is ready"))
    return cluster


@contextlib.contextmanager
def up(spec: ClusterSpec, report: Report | None = None) -> Iterator[Cluster]:
    """Make a cluster for the length of a ``with`` block.

    It is torn down at the end of the block, and when this process dies in any way, unless it was detached.

    :raises ClusterError: see :func:`start`
    """
    cluster = start(spec, report or quiet)
    try:
        yield cluster
    finally:
        if cluster.owned:
            cluster.down()


def _refuse_live(name: str) -> None:
    try:
        known = state.load(name)
    except ClusterNotFoundError:
        return
    if known.supervisor.alive:
        raise ClusterExistsError(
            f"there is a live cluster {name!r} already; use another name, "
            f"or take it down first: phalanx cluster down {name}"
        )


def _claim(layout: Layout, report: Report) -> Link:
    """Make the cluster's folder and start its supervisor; of several callers with one name, one gets it."""
    layout.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with filelock.FileLock(layout.root.with_name(".lock")):
        _refuse_live(layout.name)
        if layout.root.exists():
            with contextlib.suppress(ClusterNotFoundError):
                remove(layout, state.load(layout.name))
                report(Event("note", f"the cluster {layout.name!r} was dead; replacing it"))
            remove(layout, None)
        layout.root.mkdir(mode=0o700)
        # From its first word on, cluster.json says who has the name.
        return Link(layout, report)


def _wait_default_service_account(link: Link, kubeconfig: Path) -> None:
    """Wait for kube-controller-manager's first work: without its ServiceAccount a namespace takes no pods."""
    with Client(Access.read(kubeconfig)) as client:

        def exists() -> bool:
            try:
                return client.raw("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] == 200
            except OSError:
                return False  # if the API server has died, the wait ends with its last words

        link.wait_for("the default namespace has its ServiceAccount", exists, 60)


def _point_to_kept_logs(error: ClusterError, layout: Layout) -> None:
    old, new = str(layout.logs), str(layout.kept_logs)
    error.args = tuple(arg.replace(old, new) if isinstance(arg, str) else arg for arg in error.args)
    if isinstance(error, ComponentDiedError):
        error.log = layout.kept_logs / error.log.name
