"""The provider that needs only the Go module proxy: components built from modules, run as plain processes.

etcd, kube-apiserver, kube-controller-manager and, on request, kube-scheduler are the real ones; nodes are
kwok's.
"""

from __future__ import annotations

import os
import shutil
import sys

from cluster import build, pki, recipes
from cluster.client import Client
from cluster.components import PORTS, Plan
from cluster.errors import ClusterError, ComponentDiedError, UnavailableError
from cluster.events import Event, Report
from cluster.link import Link
from cluster.ports import free_ports
from cluster.provider import Endpoint
from cluster.spec import ClusterSpec

_ATTEMPTS = 4
_CLASH = "address already in use"


class Modules:
    """See the module's description."""

    fake_nodes = True

    def prepare(self, spec: ClusterSpec, report: Report) -> None:
        """Build what is not in the cache."""
        if not sys.platform.startswith("linux"):
            raise UnavailableError("clusters made of plain processes need Linux")
        build.ensure(recipes.modules(spec.release), report)

    def start(self, spec: ClusterSpec, link: Link, report: Report) -> Endpoint:
        """Start all components; on new ports when another program took one in the meantime."""
        programs = build.ensure(recipes.modules(spec.release), report)
        keys = pki.make(link.layout.data)
        for attempt in range(1, _ATTEMPTS + 1):
            ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
            plan = Plan(spec, link.layout, programs, ports, keys)
            try:
                return self._start(plan, link)
            except ComponentDiedError as death:
                if attempt == _ATTEMPTS or not any(_CLASH in line for line in death.tail):
                    raise
                report(Event("note", f"{death.name} found its port taken; trying other ports"))
                self._stop_all(plan, link)
        raise AssertionError("unreachable")

    def _start(self, plan: Plan, link: Link) -> Endpoint:
        plan.write_files()
        for component in ("etcd", "kube-apiserver"):
            self._run(plan, link, component)
        with Client(plan.access("admin"), timeout=5) as client:

            def answers() -> bool:
                try:
                    return client.raw("GET", "/readyz")[0] == 200
                except OSError:
                    return False

            link.wait_for("the API server is ready", answers, 60)
        for component in plan.spec.components:
            if component not in ("etcd", "kube-apiserver"):
                self._run(plan, link, component)
        return Endpoint(
            kubernetes=plan.spec.release.version,
            kubeconfig=plan.kubeconfig("admin"),
            kubectl=plan.programs["kubectl"],
            audit_log=plan.layout.audit_log,
            ports={name: port for name, port in plan.ports.items() if name in plan.spec.components},
        )

    @staticmethod
    def _run(plan: Plan, link: Link, component: str) -> None:
        link.run(component, plan.argv(component), dict(os.environ), grace=0)

    @staticmethod
    def _stop_all(plan: Plan, link: Link) -> None:
        for component in reversed(plan.spec.components):
            try:
                link.request(stop=component)
            except ClusterError:
                continue  # not started yet
        link.deaths.clear()
        shutil.rmtree(plan.layout.data / "etcd", ignore_errors=True)
