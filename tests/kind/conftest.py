"""Real control planes for the tests: one shared, with the manifests installed, and our two processes on it.

``cluster`` is a :class:`cluster.Cluster`; ``phalanx`` adds the processes, each as the ServiceAccount that the
manifests give it. Tests that break things take a cluster of their own from ``own_cluster``.

``--provider`` says who makes the clusters. What a test needs of them is known from its fixtures, or it says so with
``@pytest.mark.needs``; where the provider does not have it, the test is skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from cluster import Cluster, ClusterError, ClusterSpec, UnavailableError, console_report, recipes, up
from cluster.kind import daemon
from cluster.kind.config import kind_name
from cluster.provider import provider
from tests.kind.checks import AuditLog, Watcher
from tests.kind.kube import Kube, job, until

if TYPE_CHECKING:
    from pytest_kind import KindCluster

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("phalanx")
PROCESSES = ("controllers", "scheduler")

#: What a test can need, and the providers that have it.
NEEDS = {
    "fake nodes": {"modules"},
    "a cluster of its own": {"modules"},
    "the audit log": {"modules", "kind"},
    "plain processes": {"modules"},
    "real nodes": {"kind", "existing"},
    "kind": {"kind"},
}
#: What the users of a fixture need.
OF_FIXTURES = {
    "audit": "the audit log",
    "kind_cluster": "kind",
    "own_cluster": "a cluster of its own",
    "spare": "a cluster of its own",
}
UNAVAILABLE = pytest.StashKey[str]()

OwnCluster = Callable[..., contextlib.AbstractContextManager[Cluster]]


class Phalanx:
    """Our processes in one cluster, as users run them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._from: dict[str, int] = {}

    def start(self, *names: str, wait: bool = True) -> None:
        """Start processes; with ``wait``, return once they work."""
        for name in names or PROCESSES:
            log = self.cluster.log(name)
            self._from[name] = log.stat().st_size if log.exists() else 0
            argv = [PROGRAM, name, "--kubeconfig", self.cluster.kubeconfig_as(name)]
            self.cluster.run(name, argv, cwd=ROOT)
        if wait:
            for name in names or PROCESSES:
                self.wait_for(name, '"working"')

    def ensure(self, *names: str) -> None:
        """Start what does not run."""
        dead = [name for name in names or PROCESSES if not self.cluster.alive(name)]
        if dead:
            self.start(*dead)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is known to be dead."""
        os.kill(self.cluster.pids[name], signal.SIGKILL)
        until(lambda: name not in self.cluster.pids, what=f"{name} is seen dead", every=0.02)

    def stop(self, *names: str) -> None:
        """End processes that run, in order."""
        for name in names or PROCESSES:
            if self.cluster.alive(name):
                self.cluster.stop(name)

    def said(self, name: str) -> str:
        """What a process wrote since it was started last."""
        log = self.cluster.log(name)
        if not log.exists():
            return ""
        with log.open(errors="replace") as file:
            file.seek(self._from.get(name, 0))
            return file.read()

    def wait_for(self, name: str, pattern: str, timeout: float = 30) -> str:
        """Wait for a line of a process' log since its start, and return it."""

        def look() -> str | None:
            found = next((line for line in self.said(name).splitlines() if re.search(pattern, line)), None)
            assert found or self.cluster.alive(name), f"{name} died:\n{self.said(name)[-3000:]}"
            return found

        return until(look, timeout, f"{name} says {pattern!r}; it said:\n{self.said(name)[-3000:]}") or ""


def install(cluster: Cluster, overlay: str = "demo") -> None:
    """Apply the manifests and wait until the admission policies act."""
    cluster.kubectl_run("apply", "-k", str(ROOT / "manifests" / "overlays" / overlay))
    with Kube(cluster.kubeconfig) as kube:

        def marked() -> bool:
            answer = kube.create("jobs", job("probe", 2), "default", dry_run=True)
            return answer["spec"]["template"]["metadata"].get("labels", {}).get("phalanx.dev/gang") == "job"

        until(marked, what="the admission policies act")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs(what, ...): run only where the clusters have it: {', '.join(NEEDS)}")
    config.addinivalue_line("markers", "real_kind: on real nodes, with real pods")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("provider")
    for item in items:
        needs = [what for mark in item.iter_markers("needs") for what in mark.args]
        needs += [what for name, what in OF_FIXTURES.items() if name in getattr(item, "fixturenames", ())]
        needs += ["real nodes"] * (item.get_closest_marker("real_kind") is not None)
        lacking = sorted({what for what in needs if chosen not in NEEDS[what]})
        if lacking:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(lacking)}: not with --provider {chosen}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is not in the cache: outside of any test's time."""
    config = session.config
    willing = [item for item in session.items if item.get_closest_marker("skip") is None]
    fixtures = {name for item in willing for name in getattr(item, "fixturenames", ())}
    if config.option.collectonly or not fixtures & {"cluster", "own_cluster"}:
        return
    with console_report(Console(stderr=True)) as report:
        try:
            provider(config.getoption("provider")).prepare(shared_spec(config), report)
        except UnavailableError as error:
            config.stash[UNAVAILABLE] = str(error)
        except ClusterError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reason := config.stash.get(UNAVAILABLE, ""):
        terminalreporter.section(f"NOT TESTED with provider {config.getoption('provider')}", "!", red=True, bold=True)
        terminalreporter.write_line(reason, red=True, bold=True)


def shared_spec(config: pytest.Config) -> ClusterSpec:
    """The shared cluster's; on the provider's usual number of nodes."""
    given = config.getoption("kubeconfig", None)  # an option of pytest-kind
    existing = config.getoption("provider") == "existing"
    return ClusterSpec(
        name="suite",
        scheduler=True,
        provider=config.getoption("provider"),
        kubeconfig=Path(given) if given and existing else None,
    )


@pytest.fixture(scope="session")
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place for our clusters' state that no other run shares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_STATE", str(tmp_path_factory.mktemp("clusters")))
        yield


@pytest.fixture(scope="session")
def cluster(_state: None, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The shared cluster: kube-scheduler, manifests applied, policies active; 16 nodes of 8 CPUs, or 2 real ones."""
    if UNAVAILABLE in pytestconfig.stash:
        pytest.skip(pytestconfig.stash[UNAVAILABLE])
    with contextlib.ExitStack() as stack:
        try:
            shared = stack.enter_context(up(shared_spec(pytestconfig)))
        except UnavailableError as error:
            pytestconfig.stash[UNAVAILABLE] = str(error)
            pytest.skip(str(error))
        install(shared)
        yield shared
        if shared.state.provider == "existing":
            overlay = str(ROOT / "manifests" / "overlays" / "demo")
            shared.kubectl_run("delete", "-k", overlay, "--ignore-not-found")


@pytest.fixture(scope="session")
def kind_cluster(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> KindCluster:
    """The shared cluster as pytest-kind has it; made by our provider with our configuration, so here it is found."""
    from pytest_kind import KindCluster

    release = shared_spec(pytestconfig).release
    with pytest.MonkeyPatch.context() as patch:
        # Where it keeps what it would download; and the daemon that our provider has chosen.
        patch.chdir(tmp_path_factory.mktemp("pytest-kind"))
        if host := daemon.in_use().host:
            patch.setenv("DOCKER_HOST", host)
        found = KindCluster(
            kind_name(cluster.name),
            kubeconfig=cluster.kubeconfig,
            kind_path=recipes.kind(release).folder / "kind",
            kubectl_path=cluster.kubectl,
        )
        found.create()
    # The environment is as it was: other clusters are made by this process, too.
    return found


@pytest.fixture(scope="session")
def own_cluster(_state: None) -> OwnCluster:
    """A function that gives a cluster of one's own: a context manager, fields of ClusterSpec as arguments."""

    @contextlib.contextmanager
    def make(*, installed: bool = True, overlay: str = "demo", **fields: Any) -> Iterator[Cluster]:
        fields = {"name": f"own-{uuid.uuid4().hex[:6]}", "nodes": 4, **fields}
        with up(ClusterSpec(**fields)) as made:
            if installed:
                install(made, overlay)
            yield made

    return make


@pytest.fixture(scope="session")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """Requests to the shared cluster, as administrator."""
    with Kube(cluster.kubeconfig) as requests:
        yield requests


@pytest.fixture(scope="session")
def audit(cluster: Cluster) -> AuditLog:
    return AuditLog(cluster.audit_log)


@pytest.fixture(scope="session")
def _processes(cluster: Cluster) -> Phalanx:
    return Phalanx(cluster)


@pytest.fixture(scope="session")
def spare(own_cluster: OwnCluster) -> Iterator[Phalanx]:
    """A second cluster, whose processes and control plane tests may kill. Each leaves the control plane whole."""
    with own_cluster(name="spare", nodes=4) as made:
        yield Phalanx(made)


@pytest.fixture(scope="session")
def spare_kube(spare: Phalanx) -> Iterator[Kube]:
    """Requests to the spare cluster, as administrator."""
    with Kube(spare.cluster.kubeconfig) as requests:
        yield requests


@pytest.fixture
def phalanx(_processes: Phalanx) -> Phalanx:
    """Both processes on the shared cluster; they work when the test begins."""
    _processes.ensure()
    return _processes


@pytest.fixture
def only_controllers(_processes: Phalanx) -> Phalanx:
    """The controllers on the shared cluster, and no scheduler: the test runs its own."""
    _processes.stop("scheduler")
    _processes.ensure("controllers")
    return _processes


@pytest.fixture
def only_scheduler(_processes: Phalanx) -> Phalanx:
    """The scheduler on the shared cluster, and no controllers: the test runs its own."""
    _processes.stop("controllers")
    _processes.ensure("scheduler")
    return _processes


@pytest.fixture
def watcher(kube: Kube) -> Iterator[Watcher]:
    """Records what happens in the shared cluster during one test."""
    with Watcher(kube) as running:
        yield running


@pytest.fixture
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace; at the end it is deleted, and none of its pods is left."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    with fresh_namespace(kube, slug) as name:
        yield name


@contextlib.contextmanager
def fresh_namespace(kube: Kube, slug: str) -> Iterator[str]:
    """Make a namespace and delete it; its objects of other kinds may go a little later than its pods."""
    name = f"{slug}-{uuid.uuid4().hex[:6]}"
    labels = {"phalanx.dev/jobs": "enabled"}
    kube.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        yield name
    finally:
        # A namespace takes its time, and pods on a node that was removed would wait for a garbage collector.
        kube.clear("jobs", name, propagationPolicy="Background")
        kube.delete("namespaces", name)

        def gone() -> bool:
            kube.clear("pods", name, gracePeriodSeconds=0)
            return not kube.list("pods", name)

        until(gone, 60, f"the pods of namespace {name} are gone")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show what our processes said last where a test failed."""
    report = yield
    processes = getattr(item, "funcargs", {}).get("_processes")
    if report.failed and isinstance(processes, Phalanx):
        for name in PROCESSES:
            with contextlib.suppress(Exception):
                report.sections.append((f"{name} said last", "\n".join(processes.said(name).splitlines()[-40:])))
    return report
