"""One run: a fresh control plane, one contender, one case, and the truth about how it went."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import load, objects, timing
from bench.cases import Case
from bench.contenders import ROOT, Contender
from bench.load import Outcome
from bench.procs import Usage, usage
from bench.results import Run
from bench.verify import MismatchError, verify_bound, verify_refused
from cluster import Cluster, up
from cluster.audit import AuditLog
from cluster.client import Client
from cluster.events import Report, quiet
from cluster.kubeconfig import Access

#: Seconds after which a run is given up.
CUT = 300.0

#: Seconds for what comes before: a scheduler that has not bound two pods by then never will.
_PATIENCE = 120.0
#: Seconds between two looks at the audit log, which costs the server nothing.
_LOOK = 0.1
#: Seconds without any write but to Leases, after which everything has come to rest.
_REST = 1.0

_SERVER = "kube-apiserver"


class RunError(Exception):
    """A run did not come about: the machine's fault, or the bench's."""


def measure(case: Case, contender: Contender, nodes: int, number: int = 0, report: Report = quiet) -> Run:
    """Measure one case for one contender on a control plane that is there for nothing else.

    :param nodes: how many it has
    :param number: which of several runs it is, for the record
    :raises RunError: if it could not be carried out; a wrong outcome is no such error, but in the run
    :raises ClusterError: if there was no control plane
    """
    with prepared(case, contender, nodes, report) as bench:
        return bench.measure(number)


@contextlib.contextmanager
def prepared(case: Case, contender: Contender, nodes: int, report: Report = quiet) -> Iterator[Bench]:
    """Give a control plane with a contender on it that works, ready for the first create.

    :raises RunError: if the contender did not get there
    :raises ClusterError: if there was no control plane
    """
    name = f"bench-{os.getpid()}-{contender.name}"
    with tempfile.TemporaryDirectory() as folder:
        spec = contender.spec(case, name, nodes, Path(folder))
        with up(spec, report) as cluster:
            bench = Bench(case, contender, nodes, cluster, Path(folder))
            bench.prepare()
            yield bench


class Bench:
    """A control plane with a contender on it. One is for one run; or for several, each :meth:`clear`-ed away."""

    def __init__(self, case: Case, contender: Contender, nodes: int, cluster: Cluster, folder: Path) -> None:
        self.case = case
        self.contender = contender
        self.nodes = nodes
        self.cluster = cluster
        self.folder = folder
        self.access = Access.read(cluster.kubeconfig)
        self.audit = AuditLog(cluster.audit_log)

    # -- before ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make everything that is there before the first create, and see the contender bind two pods."""
        self._load(objects.namespaces(self.contender.labels))
        self._wait_for_service_accounts()
        self.contender.install(self.cluster)
        self._load(objects.before(self.case, self.nodes))
        self.contender.start(self.cluster)
        if not self.contender.is_limit:
            mark = self.audit.mark()
            self._load(*objects.warm_up(self.case, self.contender.scheduler, native=self.contender.native(self.case)))
            self._wait_for_binds(objects.WARM_UP, 2, mark, _PATIENCE, "the contender binds two pods")
        self._wait_for_rest()

    def _load(self, *phases: load.Phase) -> None:
        if any(phases):
            with self._creator(load.CONNECTIONS, phases) as creator:
                _go(creator)
                _ended(creator, _PATIENCE)

    def _wait_for_service_accounts(self) -> None:
        """A namespace takes pods once kube-controller-manager has made its ServiceAccount."""
        deadline = time.monotonic() + _PATIENCE
        with Client(self.access) as client:
            for name in (objects.BENCH, objects.WARM_UP, objects.BEFORE):
                while client.raw("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")[0] != 200:
                    if time.monotonic() > deadline:
                        raise RunError(f"namespace {name} got no ServiceAccount")
                    time.sleep(_LOOK)

    def _wait_for_rest(self) -> None:
        """Wait until nobody writes any more: the work of what came before is not this run's."""
        deadline = time.monotonic() + _PATIENCE
        mark, since = self.audit.mark(), time.monotonic()
        while time.monotonic() - since < _REST:
            if time.monotonic() > deadline:
                raise RunError(f"not within {_PATIENCE:.0f} s: nobody writes for {_REST:.0f} s")
            time.sleep(_LOOK)
            events, mark = self.audit.read(mark)
            if any(event.is_write and event.resource != "leases" for event in events):
                since = time.monotonic()

    # -- the run -----------------------------------------------------------------------------------------------------

    def measure(self, number: int = 0) -> Run:
        """Create the objects of the case and wait for what is to come of them.

        :param number: which of several runs it is, for the record
        :raises RunError: if it could not be carried out
        """
        case, contender = self.case, self.contender
        load_before = round(os.getloadavg()[0], 2)
        binder = None
        if contender.is_limit:
            phases = objects.create_and_bind(case, self.nodes)
            if case.kind == "jobs":
                binder = load.Binder(objects.BENCH, objects.places(case, self.nodes))
        else:
            phases = objects.create(case, contender.scheduler, native=contender.native(case))
        with self._creator(contender.connections, phases, binder) as creator:
            mark = self.audit.mark()
            started = self._usages()
            deadline = time.monotonic() + CUT
            _go(creator)
            cut = not (
                self._wait_for_binds(objects.BENCH, case.pods, mark, CUT, process=creator)
                if case.fits
                else self._wait_for_refusal(deadline, creator)
            )
            ended = self._usages()
            outcome = None if cut else _ended(creator, max(1.0, deadline - time.monotonic()))
        run = Run(
            case=str(case),
            contender=contender.name,
            number=number,
            seconds=CUT,
            cut=cut,
            used={name: ended[name].since(started[name]) for name in contender.processes},
            whole={name: ended[name] for name in contender.processes},
            server=ended[_SERVER].since(started[_SERVER]),
            creator_cpu=outcome.cpu if outcome else 0,
            load=load_before,
        )
        return run if cut else self._judged(run, mark)

    def clear(self) -> None:
        """Take the pods and groups of a run away again, for another one.

        :raises RunError: if they stay
        """
        pods = f"/api/v1/namespaces/{objects.BENCH}/pods"
        groups = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{objects.BENCH}/podgroups"
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        deadline = time.monotonic() + _PATIENCE
        with Client(self.access, timeout=_PATIENCE) as client:
            for path in (pods, groups):
                client.request("DELETE", path, now)
            # A group is gone when kube-controller-manager has seen that its pods are.
            while any(client.request("GET", f"{path}?limit=1")["items"] for path in (pods, groups)):
                if time.monotonic() > deadline:
                    raise RunError(f"pods and groups of the run before are not gone within {_PATIENCE:.0f} s")
                time.sleep(_LOOK)
        self._wait_for_rest()

    def _judged(self, run: Run, mark: int) -> Run:
        """Add the times of the audit log, and what a final list says of the outcome."""
        # A second bind, or one of a gang that cannot fit, would come about now.
        time.sleep(_REST)
        events, _ = self.audit.read(mark, *timing.SIGNS)
        counts = timing.bind_counts(events, objects.BENCH)
        run.binds = counts.total()
        try:
            pods, nodes = self._list("pods"), self._list("nodes")
            if self.case.fits:
                verify_bound(
                    pods,
                    nodes,
                    namespace=objects.BENCH,
                    groups=self.case.groups,
                    size=self.case.size,
                    binds=counts,
                )
                run.seconds = timing.all_bound(events, objects.BENCH)
                if self.case.kind != "jobs":
                    groups = objects.members(self.case)
                    run.group_seconds = sorted(timing.group_latencies(events, objects.BENCH, groups))
            else:
                verify_refused(pods, namespace=objects.BENCH, size=self.case.size, binds=counts)
                run.seconds = timing.verdict(events, objects.BENCH)
        except MismatchError as mismatch:
            run.error = str(mismatch)
        return run

    def _usages(self) -> dict[str, Usage]:
        pids = self.cluster.pids
        names = (*self.contender.processes, _SERVER)
        if dead := [name for name in names if name not in pids]:
            raise RunError(f"{', '.join(dead)} ended: {self._last_words(dead[0])}")
        return {name: usage(pids[name]) for name in names}

    # -- what happens ------------------------------------------------------------------------------------------------

    def _wait_for_binds(
        self,
        namespace: str,
        count: int,
        mark: int,
        timeout: float,
        what: str = "",
        process: subprocess.Popen[str] | None = None,
    ) -> bool:
        """Follow the audit log until so many different pods are bound; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        bound: set[str] = set()
        while len(bound) < count:
            if time.monotonic() > deadline:
                if what:
                    raise RunError(f"not within {timeout:.0f} s: {what}; {self._last_words(*self.contender.processes)}")
                return False
            self._see_that_all_live(process)
            time.sleep(_LOOK)
            events, mark = self.audit.read(mark, '"subresource":"binding"')
            bound.update(timing.binds(events, namespace))
        return True

    def _wait_for_refusal(self, deadline: float, process: subprocess.Popen[str]) -> bool:
        """Wait until the group or one of its pods says that it does not fit."""
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        with Client(self.access) as client:
            while time.monotonic() < deadline:
                self._see_that_all_live(process)
                if _refused(client):
                    return True
                time.sleep(_LOOK)
        return False

    def _see_that_all_live(self, creator: subprocess.Popen[str] | None) -> None:
        if creator is not None and creator.poll():
            _ended(creator, 1)
        for name in self.contender.processes:
            if not self.cluster.alive(name):
                raise RunError(f"{name} ended: {self._last_words(name)}")

    def _last_words(self, *names: str) -> str:
        said = []
        for name in names:
            with contextlib.suppress(OSError):
                lines = self.cluster.log(name).read_text(errors="replace").splitlines()[-5:]
                said += [f"{name} said last:", *lines]
        return "\n".join(said)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _list(self, resource: str) -> list[dict[str, Any]]:
        with Client(self.access, timeout=120) as client:
            items: list[dict[str, Any]] = client.request("GET", f"/api/v1/{resource}")["items"]
        return items

    @contextlib.contextmanager
    def _creator(
        self, connections: int, phases: Sequence[load.Phase], binder: load.Binder | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Give the neutral client, ready to begin; it is ended with the block."""
        plan = load.Plan(self.access.server, self.access.ca, self.access.token, connections, list(phases), binder)
        file = self.folder / "plan"
        file.touch(mode=0o600)
        file.write_bytes(msgspec.msgpack.encode(plan))
        argv = [sys.executable, "-m", "bench.load", str(file)]
        with subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "ready":
                    _ended(process, _PATIENCE)
                yield process
            finally:
                process.kill()


def _go(creator: subprocess.Popen[str]) -> None:
    assert creator.stdin is not None
    creator.stdin.write("go\n")
    creator.stdin.flush()


def _ended(creator: subprocess.Popen[str], timeout: float) -> Outcome:
    """Return what the creator says at its end."""
    try:
        said, complaint = creator.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise RunError(f"the creator did not end within {timeout:.0f} s") from None
    if creator.returncode:
        raise RunError(f"the creator failed: {complaint.strip()[-1000:]}")
    return msgspec.json.decode(said, type=Outcome)


def _refused(client: Client) -> bool:
    """Whether the group, or else any pod of it, says that it cannot be scheduled now."""
    group = client.request("GET", f"/apis/scheduling.k8s.io/v1beta1/namespaces/{objects.BENCH}/podgroups/g0")
    if _says_no(group, "PodGroupInitiallyScheduled"):
        return True
    pod = client.request("GET", f"/api/v1/namespaces/{objects.BENCH}/pods/g0-0")
    return _says_no(pod, "PodScheduled")


def _says_no(item: Mapping[str, Any], condition: str) -> bool:
    conditions = item.get("status", {}).get("conditions") or []
    return any(
        each["type"] == condition and each["status"] == "False" and each.get("reason") == "Unschedulable"
        for each in conditions
    )
