"""Real nodes: what only a kubelet can do to us, and the story with pods that really run.

``tox -e real-kind``. The nodes are few and small (each has the machine's CPUs), so each test leaves nothing running.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from api.names import group_name
from cluster import Cluster, ClusterError, ClusterSpec, up
from cluster.kind import daemon
from cluster.kind.config import kind_name
from cluster.kind.preload import BUSYBOX
from cluster.procs import Identity
from tests.kind.checks import AuditLog, Watcher, left_over, replay, world_of, wrong_objects
from tests.kind.conftest import PROGRAM, ROOT, Phalanx
from tests.kind.kube import Kube, Obj, condition, initially_scheduled, job, until

if TYPE_CHECKING:
    from pytest_kind import KindCluster

pytestmark = [pytest.mark.real_kind, pytest.mark.timeout(400)]

#: On its request to end it says so, works on for three seconds, and ends well.
POLITE = "trap 'echo ending; sleep 3; exit 0' TERM; echo working; while :; do sleep 0.2; done"
STUBBORN = "trap '' TERM; while :; do sleep 0.2; done"


def real_job(name: str, parallelism: int, script: str, *, cpu: str = "200m", grace: int = 30, **spec: object) -> Obj:
    body = job(name, parallelism, cpu=cpu, memory="16Mi", **spec)
    pod = body["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": BUSYBOX, "command": ["sh", "-c", script]}
    pod["terminationGracePeriodSeconds"] = grace
    return body


def key(made: Obj) -> str:
    return group_name(made["metadata"]["name"], made["metadata"]["uid"])


def workers(kube: Kube) -> list[Obj]:
    role = "node-role.kubernetes.io/control-plane"
    return [node for node in kube.list("nodes") if role not in node["metadata"]["labels"]]


def running(kube: Kube, namespace: str, count: int) -> list[Obj]:
    def look() -> list[Obj]:
        pods = [pod for pod in kube.list("pods", namespace) if "deletionTimestamp" not in pod["metadata"]]
        return pods if [pod["status"]["phase"] for pod in pods] == ["Running"] * count else []

    return until(look, 90, f"{count} pods run")


def ended_at(pod: Obj) -> float:
    """When a pod's container ended, in seconds since the epoch, the fraction cut off."""
    (status,) = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(status["state"]["terminated"]["finishedAt"]).timestamp()


class TestStory:
    def test_four_real_pods_start_together_talk_and_complete(
        self,
        kube: Kube,
        namespace: str,
        phalanx: Phalanx,
        audit: AuditLog,
        watcher: Watcher,
        kind_cluster: KindCluster,
    ) -> None:
        mark = audit.mark()
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ring"}}
        service["spec"] = {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": "ring"}}
        kube.request("POST", f"/api/v1/namespaces/{namespace}/services", service)
        # Each serves its number and reads its neighbour's by name: over nodes, it works only if all are there.
        script = """
            mkdir /tmp/w; echo $JOB_COMPLETION_INDEX > /tmp/w/n; httpd -p 8080 -h /tmp/w
            next=$(( (JOB_COMPLETION_INDEX + 1) % 4 ))
            until wget -q -O /tmp/got http://ring-$next.ring:8080/n 2>/dev/null; do sleep 0.5; done
            echo "$JOB_COMPLETION_INDEX heard from $(cat /tmp/got)"
            sleep 5
        """
        body = real_job("ring", 4, script)
        body["spec"]["template"]["spec"]["subdomain"] = "ring"
        made = kube.create("jobs", body, namespace)
        until(lambda: len(kube.bound(namespace)) == 4, what="all four are bound")
        assert wrong_objects(kube, [namespace]) == []
        assert initially_scheduled(until(lambda: kube.find("podgroups", key(made), namespace)))
        until(lambda: condition(kube.get("jobs", "ring", namespace), "Complete"), 120, "the Job is complete")
        pods = kube.list("pods", namespace)
        assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 4
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {key(made)}
        said = kind_cluster.kubectl("logs", "-n", namespace, "-l", "job-name=ring", "--tail=-1")
        assert sorted(said.split("\n")) == ["", *(f"{i} heard from {(i + 1) % 4}" for i in range(4))]
        assert len(audit.binds(namespace, mark)) == 4
        watcher.catch_up(namespace)
        assert replay(watcher.changes(), namespaces=[namespace]).violations == []

    def test_one_too_large_stays_wholly_pending_with_its_reason_and_blocks_nobody(
        self, kube: Kube, namespace: str, phalanx: Phalanx
    ) -> None:
        cpus = sum(int(node["status"]["allocatable"]["cpu"]) for node in workers(kube))
        made = kube.create("jobs", real_job("large", cpus + 1, "echo never", cpu="900m"), namespace)
        status, reason, message = until(
            lambda: (c := initially_scheduled(kube.find("podgroups", key(made), namespace)))[0] and c
        )
        assert (status, reason) == ("False", "Unschedulable")
        assert f"of {cpus + 1}" in message
        until(
            lambda: any(e["reason"] == "FailedScheduling" for e in kube.events_about(namespace, "Job", "large")),
            what="an Event on the Job",
        )
        kube.create("jobs", real_job("small", 2, "true"), namespace)
        until(lambda: condition(kube.get("jobs", "small", namespace), "Complete"), 90, "the small one is complete")
        pods = kube.list("pods", namespace, labelSelector="job-name=large")
        assert len(pods) == cpus + 1
        assert {pod["status"]["phase"] for pod in pods} == {"Pending"}
        assert [pod for pod in pods if pod["spec"].get("nodeName")] == []

    def test_a_job_that_is_no_gang_runs_as_if_phalanx_were_not_there(
        self, kube: Kube, namespace: str, phalanx: Phalanx, audit: AuditLog
    ) -> None:
        mark = audit.mark()
        kube.create("jobs", real_job("alone", 1, "true"), namespace)
        until(lambda: condition(kube.get("jobs", "alone", namespace), "Complete"), 90, "the Job is complete")
        (pod,) = kube.list("pods", namespace)
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert "schedulingGroup" not in pod["spec"]
        assert kube.list("podgroups", namespace) == []
        assert [e for e in audit.our_writes(mark) if e.namespace == namespace] == []


class TestGrace:
    @pytest.mark.parametrize("how", ["delete", "suspend"])
    def test_members_end_in_their_own_time_and_their_group_after_them(
        self, kube: Kube, namespace: str, phalanx: Phalanx, watcher: Watcher, how: str
    ) -> None:
        made = kube.create("jobs", real_job("polite", 2, POLITE), namespace)
        pods = running(kube, namespace, 2)
        for pod in pods:  # so that the last state of each can be read
            finalizers = {"metadata": {"finalizers": [*pod["metadata"].get("finalizers", ()), "phalanx.dev/test"]}}
            kube.patch("pods", pod["metadata"]["name"], namespace, finalizers)
        asked = time.time()
        try:
            if how == "delete":
                kube.delete("jobs", "polite", namespace, propagationPolicy="Background")
            else:
                kube.patch("jobs", "polite", namespace, {"spec": {"suspend": True}})
            names = [pod["metadata"]["name"] for pod in pods]
            ended = until(
                lambda: (
                    (now := [kube.get("pods", name, namespace) for name in names])
                    and all(pod["status"]["phase"] == "Succeeded" for pod in now)
                    and now
                ),
                40,
                "both have ended well",
            )
        finally:
            for pod in pods:
                kube.patch("pods", pod["metadata"]["name"], namespace, {"metadata": {"finalizers": None}})
        assert all(2 <= ended_at(pod) - asked < 25 for pod in ended), [ended_at(pod) - asked for pod in ended]
        until(lambda: not kube.find("podgroups", key(made), namespace), 40, "the PodGroup is gone")
        watcher.catch_up(namespace)
        assert replay(watcher.changes(), namespaces=[namespace]).violations == []
        assert left_over(world_of(kube), [namespace]) == []
        if how == "suspend":
            kube.patch("jobs", "polite", namespace, {"spec": {"suspend": False}})
            running(kube, namespace, 2)
            assert wrong_objects(kube, [namespace]) == []

    def test_the_kubelet_kills_one_that_does_not_listen(
        self, kube: Kube, namespace: str, phalanx: Phalanx, watcher: Watcher
    ) -> None:
        kube.create("jobs", real_job("stubborn", 2, STUBBORN, grace=4), namespace)
        running(kube, namespace, 2)
        began = time.monotonic()
        kube.delete("jobs", "stubborn", namespace, propagationPolicy="Background")
        until(lambda: not kube.list("pods", namespace), 40, "the pods are gone")
        assert time.monotonic() - began > 3
        until(lambda: not kube.list("podgroups", namespace), 40, "the PodGroup is gone")
        watcher.catch_up(namespace)
        assert replay(watcher.changes(), namespaces=[namespace]).violations == []


class TestKubelet:
    def test_a_pod_it_refuses_takes_no_room(self, kube: Kube, namespace: str, phalanx: Phalanx) -> None:
        for node in workers(kube):
            name = node["metadata"]["name"]
            refused = real_job("x", 1, "true", cpu="1000")["spec"]["template"]["spec"] | {"nodeName": name}
            metadata = {"name": f"refused-{name}"}
            kube.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": refused}, namespace)
        pods = until(
            lambda: (
                (now := kube.list("pods", namespace)) and all(p["status"]["phase"] == "Failed" for p in now) and now
            ),
            what="the kubelets have refused",
        )
        assert {pod["status"]["reason"] for pod in pods} == {"OutOfcpu"}
        kube.create("jobs", real_job("after", 4, "true"), namespace)
        until(lambda: condition(kube.get("jobs", "after", namespace), "Complete"), 90, "a gang runs all the same")


class TestCluster:
    def test_our_processes_act_as_their_accounts_and_write_only_what_is_theirs(
        self, kube: Kube, namespace: str, phalanx: Phalanx, audit: AuditLog
    ) -> None:
        mark = audit.mark()
        kube.create("jobs", real_job("mine", 2, "true"), namespace)
        until(lambda: condition(kube.get("jobs", "mine", namespace), "Complete"), 90, "the Job is complete")
        kube.delete("jobs", "mine", namespace, propagationPolicy="Background")
        until(lambda: not kube.list("podgroups", namespace))
        assert {event.account for event in audit.our_writes(mark)} == {"phalanx-controllers", "phalanx-scheduler"}
        assert audit.not_ours_to_write(mark) == []

    def test_what_is_told_of_it(self, cluster: Cluster, kind_cluster: KindCluster) -> None:
        listed = subprocess.run(
            [PROGRAM, "cluster", "list", "-o", "json"], capture_output=True, text=True, timeout=60, check=True
        )
        (record,) = [item for item in json.loads(listed.stdout) if item["name"] == cluster.name]
        assert (record["status"], record["provider"], record["nodes"]) == ("ready", "kind", 3)
        assert record["kubeconfig"] == str(cluster.kubeconfig)
        assert Path(record["audit_log"]).stat().st_size
        names = kind_cluster.kubectl("get", "nodes", "-o", "name").split()
        nodes = {name.removeprefix("node/") for name in names}
        assert len(nodes) == 3
        assert nodes | {"supervisor"} <= set(record["pids"])
        assert all(Identity.of(pid).alive for pid in record["pids"].values())
        with pytest.raises(ClusterError, match="has real nodes"):
            cluster.add_nodes(1)

    def test_one_that_is_there_is_taken_and_left_as_it_is(self, cluster: Cluster, kube: Kube) -> None:
        spec = ClusterSpec(name="taken", provider="existing", kubeconfig=cluster.kubeconfig)
        with up(spec) as taken:
            assert taken.status == "ready"
            assert taken.state.kubernetes == cluster.state.kubernetes
            assert taken.state.nodes == 3
            assert list(taken.pids) == ["supervisor"]
            with pytest.raises(ClusterError, match="no audit log"):
                _ = taken.audit_log
            assert taken.kubeconfig_as("scheduler").exists()
            root = taken.kubeconfig.parent
        assert not root.exists()
        assert cluster.status == "ready"
        assert len(kube.list("nodes")) == 3

    @pytest.mark.needs("kind")
    def test_a_killed_owner_leaves_nothing_and_disturbs_nobody(self, cluster: Cluster, kube: Kube) -> None:
        script = (
            "from cluster import *\n"
            "with up(ClusterSpec(name='orphan', nodes=0, provider='kind')) as c:\n"
            "    print('up', flush=True)\n"
            "    input()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            orphan = Cluster.load("orphan")
            processes = [Identity.of(pid) for name, pid in orphan.pids.items() if name != "dockerd"]
            assert len(processes) == 2
            root = orphan.kubeconfig.parent
            owner.kill()
        until(lambda: not root.exists(), 90, "its folder is gone")
        assert all(process.wait(20) for process in processes)
        label = f"label={daemon.LABEL}={kind_name('orphan')}"
        assert daemon.in_use().run("ps", "-aq", "--filter", label) == ""
        assert cluster.status == "ready"
        assert len(kube.list("nodes")) == 3
