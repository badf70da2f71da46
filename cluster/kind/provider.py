"""The provider ``kind``: a real kubelet and real containers on every node.

``kind create cluster`` with a node image that was pulled or built here. Nodes are containers, so nothing of it is a
process of ours: what takes it apart again is registered as a cleanup before anything is made.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from cluster import build, nodes, recipes, state
from cluster.client import Client
from cluster.errors import ClusterError, UnavailableError
from cluster.events import Event, Report
from cluster.kind import commands, config, daemon, debian, image, network
from cluster.kind.docker import Docker, obstacle
from cluster.kubeconfig import Access
from cluster.link import Link, python_path
from cluster.procs import Identity
from cluster.provider import Endpoint
from cluster.spec import ClusterSpec
from cluster.versions import Release

#: What kind tells of itself, in that order.
_STEPS = (
    "Ensuring node image",
    "Preparing nodes",
    "Writing configuration",
    "Starting control-plane",
    "Installing StorageClass",
    "Joining worker nodes",
)
_CREATE_SECONDS = 600
_READY_SECONDS = 180

#: What of the environment the cleanup needs, which is kept in the cluster's state.
_KEPT_ENV = re.compile(r"PATH|HOME|DOCKER_.*|PHALANX_.*|XDG_.*")


class Kind:
    """See the module's description."""

    fake_nodes = False

    def prepare(self, spec: ClusterSpec, report: Report) -> None:
        """Build what is not in the cache: kind, kubectl and, where none can be pulled, the node image."""
        if reason := obstacle():
            raise UnavailableError(f"no kind cluster can run here: {reason}")
        debian.ensure(("docker", "zstd"), "a kind cluster", report)
        docker = Docker()
        if not docker.answers():
            debian.ensure(("dockerd", "iptables-save"), "a kind cluster", report)
        build.ensure(_tools(spec.release), report)
        # Docker of ours begins empty each time: what it pulled would be pulled again for each cluster.
        if not (docker.answers() and _pulled(docker, spec.release, report)):
            image.ensure(spec.release, report)

    def start(self, spec: ClusterSpec, link: Link, report: Report) -> Endpoint:
        """Make the cluster, connect its nodes, and wait until they are Ready."""
        programs = build.ensure(_tools(spec.release), report)
        layout = link.layout
        name = config.kind_name(spec.name)
        settings = config.write(spec, layout.data, layout.logs)
        docker = Docker()
        own = daemon.needed()
        if not own and name in docker.run("ps", "-a", "--format", f'{{{{.Label "{daemon.LABEL}"}}}}').split():
            raise ClusterError(
                f"kind has a cluster {name} already, which is not ours to delete: use another name, or "
                f"{programs['kind']} delete cluster --name {name}"
            )
        supervisor = state.load(spec.name).supervisor
        link.request(cleanup=_cleanup(programs["kind"], name, layout.kubeconfig, supervisor))
        if own:
            docker, pid = daemon.acquire(name, supervisor, report)
            link.adopt("dockerd", pid, daemon.log())
        node_image = _node_image(docker, spec.release, report)
        log = layout.log("kind")
        _create(docker, programs["kind"], spec, node_image, settings, layout.kubeconfig, log, report)
        for node in _nodes(docker, name):
            link.adopt(node, docker.pid(node), log)
        access = Access.read(layout.kubeconfig)
        count = spec.node_count + 1
        with Client(access, timeout=10) as client:
            _connect(docker, client, link, count)
            _wait_ready(client, link, count, report)
        return Endpoint(
            kubernetes=spec.release.version,
            kubeconfig=layout.kubeconfig,
            kubectl=programs["kubectl"],
            audit_log=layout.audit_log,
            ports={"kube-apiserver": urllib.parse.urlsplit(access.server).port or 443},
            nodes=count,
        )


def _tools(release: Release) -> tuple[recipes.Recipe, ...]:
    return (recipes.kind(release), recipes.kubernetes(release))


def _upstream(release: Release) -> str:
    return f"kindest/node:v{release.version}"


def _pulled(docker: Docker, release: Release, report: Report) -> bool:
    """Tell whether the daemon has upstream's node image, pulling it where that works."""
    upstream = _upstream(release)
    if docker.has(upstream):
        return True
    if image.path(release).exists() or docker.has(image.name(release)):
        return False
    report(Event("note", f"trying to pull {upstream}"))
    return docker.pull(upstream)


def _node_image(docker: Docker, release: Release, report: Report) -> str:
    """Return the name of a node image that the daemon has."""
    if docker.has(_upstream(release)):
        return _upstream(release)
    name = image.name(release)
    if not docker.has(name):
        archive = image.ensure(release, report)
        report(Event("progress", "loading the node image", "load", 0, 1))
        docker.load(archive, name, image.CHANGES)
        report(Event("progress", "the node image is loaded", "load", 1, 1))
    return name


def _cleanup(kind: Path, name: str, kubeconfig: Path, supervisor: Identity) -> dict[str, Any]:
    """Return the command that takes a cluster apart, whatever there is of it."""
    kept = {key: value for key, value in os.environ.items() if _KEPT_ENV.fullmatch(key)}
    user = json.dumps(dataclasses.asdict(supervisor))
    argv = [sys.executable, "-P", "-m", "cluster.kind.undo", str(kind), name, str(kubeconfig), user]
    return {"argv": argv, "env": {**kept, "PYTHONPATH": python_path()}}


def _create(
    docker: Docker,
    kind: Path,
    spec: ClusterSpec,
    node_image: str,
    settings: Path,
    kubeconfig: Path,
    log: Path,
    report: Report,
) -> None:
    steps = _STEPS if spec.node_count else _STEPS[:-1]

    def told(line: str) -> None:
        for number, step in enumerate(steps):
            if step in line:
                done = number + ("✓" in line)
                report(Event("progress", f"kind: {step[0].lower()}{step[1:]}", "kind", done, len(steps)))

    options = ["--config", str(settings), "--image", node_image, "--kubeconfig", str(kubeconfig)]
    commands.run([kind, "create", "cluster", *options], log, timeout=_CREATE_SECONDS, env=docker.env(), on_line=told)


def _nodes(docker: Docker, name: str) -> list[str]:
    """Return the node containers of a kind cluster; each is called like its node."""
    return sorted(docker.run("ps", "--filter", f"label={daemon.LABEL}={name}", "--format", "{{.Names}}").split())


def _connect(docker: Docker, client: Client, link: Link, count: int) -> None:
    """Give every node its part of the pod network."""
    found: list[network.NodeAddress] = []

    def known() -> bool:
        items = nodes.list_nodes(client)
        found[:] = (network.addresses(items) or []) if len(items) == count else []
        return bool(found)

    link.wait_for("every node has a range of addresses for its pods", known, _READY_SECONDS)
    for node in found:
        docker.run("exec", "-i", node.name, "sh", input=network.script(node, found))


def _wait_ready(client: Client, link: Link, count: int, report: Report) -> None:
    def ready() -> bool:
        done = sum(map(nodes.is_ready, nodes.list_nodes(client)))
        report(Event("progress", "nodes are getting Ready", "nodes", done, count))
        return done == count

    link.wait_for(f"{count} nodes are Ready", ready, _READY_SECONDS)
