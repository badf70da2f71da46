"""A cluster as its users see it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster import nodes
from cluster.client import Client
from cluster.errors import (
    ApiError,
    ClusterError,
    CommandError,
    NotOwnerError,
    ServiceAccountMissingError,
)
from cluster.events import Event, Report, quiet
from cluster.kubeconfig import Access
from cluster.link import Link, wait_for
from cluster.paths import Layout
from cluster.procs import Identity
from cluster.state import State, Status, load
from cluster.supervisor import CLEANUP_SECONDS, KEEP_LOGS, keep_logs

#: The ServiceAccounts of our manifests, by the short name of who uses them.
SERVICE_ACCOUNTS: Mapping[str, str] = {"controllers": "phalanx-controllers", "scheduler": "phalanx-scheduler"}
NAMESPACE = "phalanx-system"

_TOKEN_SECONDS = 24 * 3600


class Cluster:
    """One live cluster. Made by :func:`up` (which owns it) or :meth:`load` (anybody, by name).

    Only the owner can run processes in it, stop them and detach from it.
    """

    def __init__(self, layout: Layout, link: Link | None = None, report: Report = quiet) -> None:
        self._layout = layout
        self._link = link
        self._report = report

    @classmethod
    def load(cls, name: str) -> Cluster:
        """Return the cluster called ``name``, alive or dead.

        :raises ClusterNotFoundError: if there is none
        """
        load(name)
        return cls(Layout.of(name))

    def __repr__(self) -> str:
        return f"<Cluster {self.name!r}>"

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._layout.name

    @property
    def state(self) -> State:
        """What ``cluster.json`` says now.

        :raises ClusterNotFoundError: if the cluster has been taken down
        """
        return load(self.name)

    @property
    def status(self) -> Status:
        """How it is now; ``dead`` when its supervisor is gone."""
        return self.state.status

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._layout.kubeconfig

    @property
    def kubectl(self) -> Path:
        """A kubectl of the cluster's version."""
        return Path(self.state.kubectl)

    @property
    def audit_log(self) -> Path:
        """Where the API server writes its audit log: one JSON event a line, level Metadata."""
        if not (path := self.state.audit_log):
            raise ClusterError(f"cluster {self.name!r} has no audit log that we know of")
        return Path(path)

    @property
    def logs(self) -> Path:
        """The folder of all logs."""
        return self._layout.logs

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now: components, what :meth:`run` started, and ``supervisor``."""
        return self.state.pids

    # --- working on it ----------------------------------------------------------------------------------

    def kubectl_run(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl on this cluster, as administrator.

        :param input: what it reads on standard input (for ``-f -``)
        :raises CommandError: if it fails; the message has what it said
        """
        argv = [str(self.kubectl), *arguments]
        try:
            done = subprocess.run(
                argv,
                env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"kubectl {' '.join(arguments)} did not end within {timeout:.0f} s") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise CommandError(f"kubectl {' '.join(arguments)} exited with {done.returncode}:\n{said}")
        return done

    def kubeconfig_as(self, who: str) -> Path:
        """Write a kubeconfig that acts as one of our ServiceAccounts for 24 hours, and return its path.

        :param who: ``controllers`` or ``scheduler``
        :raises ServiceAccountMissingError: if our manifests are not installed
        """
        try:
            account = SERVICE_ACCOUNTS[who]
        except KeyError:
            raise ClusterError(f"{who!r} is nobody to act as; there is: {', '.join(SERVICE_ACCOUNTS)}") from None
        admin = Access.read(self.kubeconfig)
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        try:
            with Client(admin) as client:
                token = client.request("POST", path, request)["status"]["token"]
        except ApiError as error:
            if error.status != 404:
                raise
            raise ServiceAccountMissingError(
                f"cluster {self.name!r} has no ServiceAccount {NAMESPACE}/{account} yet: install the manifests "
                "first (kubectl apply -k with the overlay for this cluster)"
            ) from None
        target = self._layout.root / f"kubeconfig-{who}"
        Access(server=admin.server, ca=admin.ca, token=token).write(target, self.name, who)
        return target

    def add_nodes(
        self,
        count: int,
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: int = 110,
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        racks: int = 4,
        zones: int = 2,
        wait: bool = True,
    ) -> list[str]:
        """Add fake nodes and return their names; with ``wait``, when all of them are Ready.

        :param resources: further resources, such as ``{"nvidia.com/gpu": "8"}``
        :raises NotReadyError: if they did not get ready
        :raises ClusterError: if the cluster has real nodes
        """
        if not self.state.fake_nodes:
            raise ClusterError(f"cluster {self.name!r} has real nodes; nothing would keep a fake one alive")
        access = Access.read(self.kubeconfig)
        with Client(access) as client:
            first = nodes.next_index(item["metadata"]["name"] for item in nodes.list_nodes(client))
        made = [
            nodes.node(
                index,
                cpu=cpu,
                memory=memory,
                pods=pods,
                racks=racks,
                zones=zones,
                resources=resources,
                labels=labels,
                taints=taints,
                ready=not self.state.kwok,
            )
            for index in range(first, first + count)
        ]
        nodes.create(access, made)
        names = [item["metadata"]["name"] for item in made]
        if self._link is not None:
            self._link.request(facts={"nodes": self.state.nodes + count})
        if wait and names:
            self.wait_nodes_ready(names)
        return names

    def wait_nodes_ready(self, names: Sequence[str], timeout: float | None = None) -> None:
        """Wait until all of these nodes are Ready and free of the taint for nodes that are not."""
        wanted = set(names)
        with Client(Access.read(self.kubeconfig)) as client:

            def ready() -> bool:
                items = nodes.list_nodes(client)
                left = wanted - {item["metadata"]["name"] for item in items if nodes.is_ready(item)}
                done = len(wanted) - len(left)
                self._report(Event("progress", "nodes are getting Ready", "nodes", done, len(wanted)))
                return not left

            what = f"{len(wanted)} nodes are Ready"
            timeout = timeout or 60 + len(wanted) / 20
            if self._link is not None:
                self._link.wait_for(what, ready, timeout)
            else:
                wait_for(f"cluster {self.name!r}: {what}", ready, timeout)

    # --- processes of the owner -------------------------------------------------------------------------

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        grace: float = 5,
    ) -> int:
        """Start a process as part of the cluster and return its pid; it ends when the cluster does.

        Its output goes to :meth:`log`. A name can be used again once its process has ended.

        :param env: added to this process' environment; ``KUBECONFIG`` is the administrator's unless set here
        :param grace: seconds between SIGTERM and SIGKILL when it is to end
        """
        whole = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **(env or {})}
        return self._owned().run(name, [str(a) for a in argv], whole, grace=grace, cwd=cwd or Path.cwd())

    def stop(self, name: str) -> None:
        """End a process of the cluster: a component, or one that :meth:`run` started."""
        self._owned().request(stop=name)
        self._report(Event("stopped", f"{name} stopped", name))

    def alive(self, name: str) -> bool:
        """Tell whether a process of the cluster runs."""
        try:
            now = self.state
        except ClusterError:
            return False
        entry = now.processes.get(name)
        if entry is None or entry.ended or not now.supervisor.alive:
            return False
        return Identity(entry.pid, entry.start_time).alive

    def log(self, name: str) -> Path:
        """Return the log file of a component or of a process that :meth:`run` started."""
        return self._layout.log(name)

    # --- its end ----------------------------------------------------------------------------------------

    @property
    def owned(self) -> bool:
        """Whether this process owns the cluster, so that it goes down with it."""
        return self._link is not None and self._link.open

    def detach(self) -> None:
        """Leave the cluster up when this process ends."""
        self._owned().detach()

    def down(self, *, keep_logs: bool = False) -> Path | None:
        """Take the cluster down, dead or alive, and return where its logs are kept, if they are.

        Its processes are known by pid and start time: no other process is ever signalled.
        """
        if self._link is not None and self._link.open:
            self._link.down(keep_logs=keep_logs)
        else:
            self._down_by_name(keep_logs)
        return self._layout.kept_logs if keep_logs else None

    def _down_by_name(self, keep: bool) -> None:
        try:
            now = self.state
        except ClusterError:
            return
        if keep:
            with contextlib.suppress(OSError):
                (self._layout.root / KEEP_LOGS).touch()
        now.supervisor.end(grace=30 + CLEANUP_SECONDS * len(now.cleanups))
        remove(self._layout, now, keep=keep)

    def _owned(self) -> Link:
        if self._link is None or not self._link.open:
            raise NotOwnerError(
                f"cluster {self.name!r}: only the process that started it, and did not detach, can do that"
            )
        return self._link


def remove(layout: Layout, known: State | None, *, keep: bool = False) -> None:
    """Remove what a dead supervisor left: nothing runs any more, but the folder is there."""
    if known is not None:
        for cleanup in known.cleanups:
            _run_cleanup(cleanup, layout)
        # Killed by the kernel with the supervisor; a moment may pass.
        for process in known.processes.values():
            Identity(process.pid, process.start_time, known.supervisor.boot).wait(5)
    if layout.root.is_dir():
        if keep:
            keep_logs(layout)
        shutil.rmtree(layout.root, ignore_errors=True)


def _run_cleanup(what: Mapping[str, Any], layout: Layout) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), layout.log("cleanup").open("ab") as out:
        subprocess.run(
            what["argv"],
            env=what["env"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=CLEANUP_SECONDS,
            check=False,
        )
