"""What is wrong on the user's or the cluster's side: one clear line or Event that says what, where and what to do.

No crash, no traceback, no hot loop, whatever it is, for both processes; and when it is mended, work goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.names import group_name
from cluster import Cluster, CommandError
from tests.kind.checks import AuditLog
from tests.kind.conftest import PROCESSES, PROGRAM, ROOT, OwnCluster, Phalanx
from tests.kind.kube import Kube, Obj, initially_scheduled, job, pod, pod_group, until

pytestmark = pytest.mark.timeout(180)

#: Requests a second that a process in trouble may send, on average.
CALM = 5.0


def warnings(said: str) -> list[str]:
    """The messages of a process at level warning and above; fails on what is no log line (a traceback, say)."""
    found = []
    for line in said.splitlines():
        record = json.loads(line)
        assert "exception" not in record, line
        if record["level"] in ("warning", "error", "critical"):
            found.append(record["message"])
    return found


def notes(kube: Kube, namespace: str, kind: str, name: str, reason: str) -> list[Obj]:
    return [e for e in kube.events_about(namespace, kind, name) if e["reason"] == reason]


def for_seconds(seconds: float) -> None:
    """Let time pass in which something must *not* happen."""
    began = time.monotonic()
    until(lambda: time.monotonic() - began >= seconds, seconds + 5)


@pytest.fixture
def broken(spare: Phalanx) -> Phalanx:
    """Our processes on a cluster that may be broken."""
    return spare


@pytest.fixture
def own(spare_kube: Kube) -> Kube:
    return spare_kube


class TestJob:
    """On the shared cluster, with both processes."""

    @pytest.mark.parametrize(
        ("annotation", "value", "words"),
        [
            ("phalanx.dev/min-count", "9", ['"9" is not a number from 1 to 3', "set it to"]),
            ("phalanx.dev/min-count", "-1", ['"-1" is not a number from 1 to 3', "set it to"]),
            ("phalanx.dev/policy", "gangg", ['"gangg" is not a policy', "set it to gang, basic or none"]),
            ("phalanx.dev/disruption-mode", "some", ['"some" is not a disruption mode', "set it to single or all"]),
            ("phalanx.dev/topology", "required=rack", ["cannot honour it yet", "remove it"]),
        ],
    )
    def test_impossible_annotation(
        self, kube: Kube, namespace: str, phalanx: Phalanx, annotation: str, value: str, words: list[str]
    ) -> None:
        kube.create("jobs", job("wrong", 3, annotations={annotation: value}), namespace)
        (event,) = until(
            lambda: [e for e in kube.events_about(namespace, "Job", "wrong") if annotation in e.get("note", "")]
        )
        assert event["type"] == "Warning"
        for word in words:
            assert word in event["note"]
        until(lambda: len(kube.list("pods", namespace)) == 3)
        assert kube.list("podgroups", namespace) == kube.list("workloads", namespace) == []
        for_seconds(2)
        assert kube.bound(namespace) == []
        # Told once, not with every look at the Job.
        events = [e for e in kube.events_about(namespace, "Job", "wrong") if annotation in e.get("note", "")]
        assert [e.get("series") for e in events] == [None]

        # Mended, it runs.
        kube.patch("jobs", "wrong", namespace, {"metadata": {"annotations": {annotation: None}}})
        until(lambda: len(kube.bound(namespace)) == 3, what="the mended Job runs")

    @pytest.mark.parametrize("resource", ["podgroups", "workloads"])
    def test_name_taken_by_a_stranger(self, kube: Kube, namespace: str, phalanx: Phalanx, resource: str) -> None:
        phalanx.stop("controllers")  # they would be faster
        made = kube.create("jobs", job("late", 3), namespace)
        name = group_name("late", made["metadata"]["uid"])
        stranger = pod_group(name, 1)
        if resource == "workloads":
            template = {"name": "other", "schedulingPolicy": {"gang": {"minCount": 1}}}
            stranger |= {"kind": "Workload", "spec": {"podGroupTemplates": [template]}}
        before = kube.create(resource, stranger, namespace)
        phalanx.start("controllers")
        (event,) = until(lambda: notes(kube, namespace, "Job", "late", "UnsupportedWorkloadStructure"))
        kind = "PodGroup" if resource == "podgroups" else "Workload"
        for word in (f"{kind} {name}", "controlled by nobody", f"kubectl delete {kind.lower()} {name}"):
            assert word in event["note"]
        until(lambda: len(kube.list("pods", namespace)) == 3)
        for_seconds(2)
        # Its pods wait for the group that is theirs, and the stranger's object is as it was.
        assert kube.bound(namespace) == []
        after = kube.get(resource, name, namespace)
        assert (after["spec"], after["metadata"].get("ownerReferences")) == (before["spec"], None)

        kube.delete(resource, name, namespace)
        until(lambda: len(kube.bound(namespace)) == 3, what="the Job runs once the name is free")

    def test_members_that_disagree(self, kube: Kube, namespace: str, phalanx: Phalanx) -> None:
        kube.create("podgroups", pod_group("mixed", 2), namespace)
        kube.create("pods", pod("one", group="mixed"), namespace)
        kube.create("pods", pod("two", group="mixed", scheduler="other-scheduler"), namespace)
        status, reason, message = until(
            lambda: (c := initially_scheduled(kube.get("podgroups", "mixed", namespace)))[1] == "SchedulerError" and c
        )
        assert status == "False"
        for word in ("spec.schedulerName", '"phalanx"', '"other-scheduler"', "same value"):
            assert word in message, reason
        assert kube.bound(namespace) == []

    def test_quota_for_fewer_pods_than_the_gang_has(self, kube: Kube, namespace: str, phalanx: Phalanx) -> None:
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        kube.request("POST", path, {"metadata": {"name": "three"}, "spec": {"hard": {"pods": "3"}}})
        until(lambda: kube.request("GET", f"{path}/three").get("status", {}).get("hard"))
        made = kube.create("jobs", job("four", 4), namespace)
        name = group_name("four", made["metadata"]["uid"])
        message = until(
            lambda: (m := initially_scheduled(kube.find("podgroups", name, namespace))[2]) and "3 of 4" in m and m
        )
        assert "waiting for 1 more" in message
        assert kube.bound(namespace) == []
        assert "exceeded quota" in until(lambda: notes(kube, namespace, "Job", "four", "FailedCreate"))[0]["note"]
        kube.request("DELETE", f"{path}/three")


class TestCluster:
    """On a cluster that is broken on purpose, and mended again."""

    def runs(self, kube: Kube, name: str, within: float) -> None:
        """Everything works: a gang goes through."""
        kube.create("jobs", job(name, 3), "default")
        until(lambda: len(kube.bound("default", labelSelector=f"job-name={name}")) == 3, within, f"Job {name} is bound")
        kube.delete("jobs", name, "default", propagationPolicy="Background")

    @contextlib.contextmanager
    def without_rights(self, kube: Kube) -> Iterator[None]:
        names = ("phalanx-controllers", "phalanx-scheduler")
        saved = [kube.get("clusterrolebindings", name) for name in names]
        for name in names:
            kube.delete("clusterrolebindings", name)
        try:
            yield
        finally:
            for binding in saved:
                binding["metadata"] = {"name": binding["metadata"]["name"]}
                kube.create("clusterrolebindings", binding)

    def test_rbac_missing_at_the_start(self, broken: Phalanx, own: Kube) -> None:
        audit = AuditLog(broken.cluster.audit_log)
        broken.stop()
        with self.without_rights(own):
            until(lambda: not _may_read(broken.cluster), what="the rights are gone")
            mark = audit.mark()
            broken.start(wait=False)
            for name in PROCESSES:
                broken.wait_for(name, "RBAC")
            for_seconds(4)
            assert len(audit.ours(mark)) < 2 * 4 * CALM + 6
            for name in PROCESSES:
                (line,) = warnings(broken.said(name))
                for word in (
                    f"phalanx-system/phalanx-{name}",
                    "'list'",
                    "podgroups.scheduling.k8s.io",
                    "kubectl apply",
                ):
                    assert word in line
                assert broken.cluster.alive(name)
        for name in PROCESSES:
            broken.wait_for(name, '"working"', 40)
        self.runs(own, "after-start", 30)

    def test_rbac_lost_while_running(self, broken: Phalanx, own: Kube) -> None:
        audit = AuditLog(broken.cluster.audit_log)
        broken.stop()
        broken.start()
        with self.without_rights(own):
            until(lambda: not _may_read(broken.cluster), what="the rights are gone")
            mark = audit.mark()
            own.create("jobs", job("meanwhile", 4), "default")
            broken.wait_for("controllers", "RBAC")
            broken.wait_for("scheduler", "RBAC")
            for_seconds(5)
            assert len(audit.our_writes(mark)) < 2 * 7 * CALM
            for name in PROCESSES:
                lines = [line for line in warnings(broken.said(name)) if "RBAC" in line]
                assert all(f"phalanx-system/phalanx-{name}" in line and "kubectl apply" in line for line in lines)
                # Whatever is refused is named once, not for each object and each attempt.
                assert len(lines) <= 4, f"{name}: {len(lines)} lines"
                assert broken.cluster.alive(name)
        until(lambda: len(own.bound("default", labelSelector="job-name=meanwhile")) == 4, 45, "the Job runs")
        own.delete("jobs", "meanwhile", "default", propagationPolicy="Background")

    def test_outage_of_the_api_server(self, broken: Phalanx, own: Kube) -> None:
        cluster = broken.cluster
        broken.ensure()
        for name in PROCESSES:
            broken.wait_for(name, '"working"', 40)
        self.runs(own, "before-outage", 30)
        argv = Path(f"/proc/{cluster.pids['kube-apiserver']}/cmdline").read_text().split("\0")[:-1]
        cluster.stop("kube-apiserver")
        for_seconds(5)
        cluster.run("kube-apiserver", argv)
        until(lambda: _answers(own), 60, "the API server is back")
        # Each of ours by itself: kube-controller-manager, which makes the pods of a Job, takes its own time.
        began = time.monotonic()
        own.create("podgroups", pod_group("by-hand", 2), "default")
        for index in range(2):
            own.create("pods", pod(f"by-hand-{index}", group="by-hand"), "default")
        made = own.create("jobs", job("after-outage", 3), "default")
        name = group_name("after-outage", made["metadata"]["uid"])
        until(lambda: own.find("podgroups", name, "default"), 45, "the Job has its PodGroup")
        controllers = time.monotonic() - began
        by_hand = {"by-hand-0", "by-hand-1"}
        until(lambda: by_hand <= set(own.bound("default")), 40, "the scheduler works")
        scheduler = time.monotonic() - began
        print(f"after the API server was back: PodGroup {controllers:.1f} s, bound {scheduler:.1f} s")
        # One wait of the back-off that grew meanwhile, 30 s at the most, and no second one.
        assert max(controllers, scheduler) < 35
        until(lambda: len(own.bound("default", labelSelector="job-name=after-outage")) == 3, 60)
        own.clear("jobs", "default", propagationPolicy="Background")
        own.clear("pods", "default", gracePeriodSeconds=0)
        own.delete("podgroups", "by-hand", "default")
        for name in PROCESSES:
            assert cluster.alive(name)
            lines = [line for line in warnings(broken.said(name)) if "did not answer" in line]
            assert lines
            assert all("https://127.0.0.1" in line and "check that it runs" in line for line in lines)
            assert all(" object at 0x" not in line for line in lines)
            assert len(lines) <= 12, lines

    def test_processes_end_when_told_while_all_is_well(self, broken: Phalanx) -> None:
        broken.ensure()
        for name in PROCESSES:
            broken.wait_for(name, '"working"', 40)
        for name in PROCESSES:
            pid, began = broken.cluster.pids[name], time.monotonic()
            os.kill(pid, signal.SIGTERM)
            until(lambda n=name: not broken.cluster.alive(n), what=f"{name} has ended")
            assert time.monotonic() - began < 5
            warnings(broken.said(name))


def test_api_server_without_the_workload_api(own_cluster: OwnCluster) -> None:
    with own_cluster(nodes=1, profile="no-gates", installed=False) as cluster:
        with contextlib.suppress(CommandError):
            cluster.kubectl_run("apply", "-k", str(ROOT / "manifests" / "overlays" / "demo"))
        phalanx, audit = Phalanx(cluster), AuditLog(cluster.audit_log)
        phalanx.start(wait=False)
        for name in PROCESSES:
            phalanx.wait_for(name, "does not serve")
        for_seconds(4)
        assert len(audit.ours()) < 2 * 6 * CALM
        assert audit.our_writes() == []
        for name in PROCESSES:
            (line,) = warnings(phalanx.said(name))
            for word in ("podgroups.scheduling.k8s.io", "v1beta1", "GenericWorkload", "--runtime-config"):
                assert word in line
            assert cluster.alive(name)
        # And where the user looks: on the Job, once.
        with Kube(cluster.kubeconfig) as kube:
            kube.create("jobs", job("four", 4), "default")
            (event,) = until(lambda: notes(kube, "default", "Job", "four", "WaitingForCluster"), 60)
        for word in ("podgroups.scheduling.k8s.io", "v1beta1", "GenericWorkload"):
            assert word in event["note"]


@pytest.mark.parametrize("process", PROCESSES)
class TestKubeconfig:
    def run(self, process: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        argv = [str(PROGRAM), process, "--kubeconfig", str(kubeconfig)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    def test_missing(self, process: str, tmp_path: Path) -> None:
        done = self.run(process, tmp_path / "nowhere")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert "nowhere does not exist" in line
        assert "--kubeconfig" in line

    def test_unreachable(self, process: str, tmp_path: Path) -> None:
        target = tmp_path / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": "none"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        target.write_text(json.dumps(document))
        argv = [str(PROGRAM), process, "--kubeconfig", str(target)]
        log = tmp_path / "log"
        with log.open("w") as out, subprocess.Popen(argv, stdout=out, stderr=out) as running:
            try:
                until(lambda: "did not answer" in log.read_text())
                for_seconds(4)
                assert running.poll() is None
                (line,) = warnings(log.read_text())
                assert "https://127.0.0.1:9" in line
                assert "check that it runs and can be reached" in line
                running.terminate()
                assert running.wait(10) == 0
            finally:
                running.kill()


def _may_read(cluster: Cluster) -> bool:
    """Whether one of our accounts can still list what it needs."""
    answers = []
    for who in PROCESSES:
        with Kube(cluster.kubeconfig_as(who)) as kube:
            try:
                kube.list("podgroups")
                answers.append(True)
            except Exception:
                answers.append(False)
    return any(answers)


def _answers(kube: Kube) -> bool:
    try:
        kube.list("nodes")
    except Exception:
        return False
    return True
