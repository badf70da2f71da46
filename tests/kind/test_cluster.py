"""The cluster library on real control planes: what it promises about life, death and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import (
    Cluster,
    ClusterError,
    ClusterExistsError,
    ClusterNotFoundError,
    ClusterSpec,
    ComponentDiedError,
    Event,
    ServiceAccountMissingError,
    clusters,
    modules,
    up,
)
from cluster.components import PORTS
from cluster.ports import free_ports
from cluster.procs import Identity

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("plain processes")]

ROOT = Path(__file__).parents[2]


def until(check: Callable[[], Any], timeout: float = 30) -> Any:
    """Poll until ``check`` gives something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (result := check()):
        assert time.monotonic() < deadline, f"{check} did not hold within {timeout} s"
        time.sleep(0.05)
    return result


@pytest.fixture(scope="module", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def shared(_own_state: None) -> Iterator[Cluster]:
    spec = ClusterSpec(name="shared", nodes=6, node_cpu="4", node_memory="8Gi", node_pods=20, scheduler=True)
    with up(spec) as cluster:
        yield cluster


def phalanx(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.cluster", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def get(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(cluster.kubectl_run("get", *arguments, "-o", "json").stdout)


def identities(cluster: Cluster) -> list[Identity]:
    found = [Identity.of(pid) for pid in cluster.pids.values()]
    assert all(process.alive for process in found)
    return found


def job(name: str, pods: int, **spec: Any) -> str:
    template = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        }
    }
    return json.dumps(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"parallelism": pods, "completions": pods, "template": template} | spec,
        }
    )


def phases(cluster: Cluster, name: str) -> list[str]:
    return [pod["status"]["phase"] for pod in get(cluster, "pods", "-l", f"job-name={name}")["items"]]


class TestControlPlane:
    def test_nodes_are_ready_as_asked(self, shared: Cluster) -> None:
        items = get(shared, "nodes")["items"]
        assert [item["metadata"]["name"] for item in items] == [f"node-{i:04d}" for i in range(6)]
        for item in items:
            ready = [c["status"] for c in item["status"]["conditions"] if c["type"] == "Ready"]
            assert ready == ["True"]
            assert "taints" not in item["spec"]
            assert item["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "20"}
        labels = [item["metadata"]["labels"] for item in items]
        assert {label["topology.phalanx.dev/rack"] for label in labels} == {f"rack-{i}" for i in range(4)}
        assert {label["topology.kubernetes.io/zone"] for label in labels} == {"zone-0", "zone-1"}

    def test_nodes_can_be_added(self, shared: Cluster) -> None:
        names = shared.add_nodes(2, cpu="1", resources={"example.com/gpu": "8"}, labels={"kind": "gpu"})
        try:
            assert names == ["node-0006", "node-0007"]
            items = get(shared, "nodes", "-l", "kind=gpu")["items"]
            assert [item["status"]["allocatable"]["example.com/gpu"] for item in items] == ["8", "8"]
        finally:
            shared.kubectl_run("delete", "node", *names)

    def test_a_node_made_by_kubectl_is_kept_alive_only_with_the_annotation(self, shared: Cluster) -> None:
        nodes = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "annotations": annotations},
            }
            for name, annotations in (("by-hand", {"kwok.x-k8s.io/node": "fake"}), ("stranger", {}))
        ]
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes})
        shared.kubectl_run("create", "-f", "-", input=document)
        try:
            shared.kubectl_run("wait", "--for=condition=Ready", "node/by-hand", "--timeout=30s")
            assert "conditions" not in get(shared, "node", "stranger")["status"]
        finally:
            shared.kubectl_run("delete", "node", "by-hand", "stranger")

    def test_workload_api_is_served_and_jobs_are_left_alone(self, shared: Cluster) -> None:
        assert get(shared, "podgroups.v1beta1.scheduling.k8s.io", "-A")["items"] == []

    def test_audit_log_tells_who_did_what(self, shared: Cluster) -> None:
        shared.kubectl_run("create", "configmap", "audited")
        events = [json.loads(line) for line in shared.audit_log.read_text().splitlines()]
        (created,) = [
            event for event in events if event["verb"] == "create" and event["objectRef"].get("name") == "audited"
        ]
        assert created["level"] == "Metadata"
        assert created["user"]["username"] == "kubernetes-admin"
        users = {event["user"]["username"] for event in events}
        assert "system:kube-scheduler" in users
        assert any(user.startswith("system:serviceaccount:kube-system:") for user in users)
        assert {event["stage"] for event in events} <= {"ResponseStarted", "ResponseComplete", "Panic"}

    def test_kubectl_failure_says_why(self, shared: Cluster) -> None:
        with pytest.raises(ClusterError, match=r'"nothing" not found'):
            shared.kubectl_run("get", "pod", "nothing")


class TestPods:
    def test_run_until_told_to_end(self, shared: Cluster) -> None:
        shared.kubectl_run("create", "-f", "-", input=job("told", 3))
        until(lambda: phases(shared, "told") == ["Running"] * 3)
        items = get(shared, "pods", "-l", "job-name=told")["items"]
        assert all(pod["status"]["podIP"].startswith("10.") for pod in items)
        names = [pod["metadata"]["name"] for pod in items]
        shared.kubectl_run("annotate", "pod", names[0], "phalanx.dev/finish=succeeded")
        until(lambda: get(shared, "job", "told")["status"].get("succeeded") == 1)
        assert sorted(phases(shared, "told")) == ["Running", "Running", "Succeeded"]
        shared.kubectl_run("annotate", "pod", *names[1:], "phalanx.dev/finish=succeeded")
        shared.kubectl_run("wait", "--for=condition=Complete", "job/told", "--timeout=30s")
        shared.kubectl_run("delete", "job", "told")

    def test_fail_with_the_exit_code_they_are_told(self, shared: Cluster) -> None:
        rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
        document = job("failing", 1, podFailurePolicy={"rules": rules}, backoffLimit=5)
        shared.kubectl_run("create", "-f", "-", input=document)
        until(lambda: phases(shared, "failing") == ["Running"])
        shared.kubectl_run(
            "annotate", "pod", "-l", "job-name=failing", "phalanx.dev/exit-code=42", "phalanx.dev/finish=failed"
        )
        shared.kubectl_run("wait", "--for=condition=Failed", "job/failing", "--timeout=30s")
        assert phases(shared, "failing") == ["Failed"]
        shared.kubectl_run("delete", "job", "failing")

    def test_annotated_template_ends_by_itself(self, shared: Cluster) -> None:
        document = json.loads(job("short", 2))
        annotations = {"phalanx.dev/finish": "succeeded", "phalanx.dev/finish-after": "200ms"}
        document["spec"]["template"]["metadata"] = {"annotations": annotations}
        shared.kubectl_run("create", "-f", "-", input=json.dumps(document))
        shared.kubectl_run("wait", "--for=condition=Complete", "job/short", "--timeout=30s")
        shared.kubectl_run("delete", "job", "short")

    def test_deleted_pods_go_at_once_and_a_jobs_pod_is_replaced(self, shared: Cluster) -> None:
        shared.kubectl_run("create", "-f", "-", input=job("deleted", 1, backoffLimit=10))
        until(lambda: phases(shared, "deleted") == ["Running"])
        (before,) = get(shared, "pods", "-l", "job-name=deleted")["items"]
        begun = time.monotonic()
        # Its grace period is 30 s; it is over as soon as its containers have ended.
        shared.kubectl_run("delete", "pod", before["metadata"]["name"], "--timeout=20s")
        assert time.monotonic() - begun < 10
        until(lambda: phases(shared, "deleted") == ["Running"])
        shared.kubectl_run("delete", "job", "deleted")
        until(lambda: phases(shared, "deleted") == [])

    def test_grace_period_is_used_up_on_request(self, shared: Cluster) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stubborn", "annotations": {"phalanx.dev/ignore-sigterm": "true"}},
            "spec": {"terminationGracePeriodSeconds": 3, "containers": [{"name": "main", "image": "none"}]},
        }
        shared.kubectl_run("create", "-f", "-", input=json.dumps(pod))
        shared.kubectl_run("wait", "--for=condition=Ready", "pod/stubborn", "--timeout=30s")
        begun = time.monotonic()
        shared.kubectl_run("delete", "pod", "stubborn", "--timeout=20s")
        assert 1.5 < time.monotonic() - begun < 10


class TestServiceAccounts:
    def test_act_as_one(self, shared: Cluster) -> None:
        with pytest.raises(ServiceAccountMissingError, match="install the manifests first"):
            shared.kubeconfig_as("scheduler")
        failed = phalanx("kubeconfig", "shared", "--as", "scheduler")
        assert failed.returncode == 1
        assert "install the manifests" in " ".join(failed.stderr.split())
        assert "Traceback" not in failed.stderr

        shared.kubectl_run("create", "namespace", "phalanx-system")
        shared.kubectl_run("create", "serviceaccount", "phalanx-scheduler", "-n", "phalanx-system")
        path = shared.kubeconfig_as("scheduler")
        assert path.stat().st_mode & 0o777 == 0o600
        who = shared.kubectl_run("--kubeconfig", str(path), "auth", "whoami", "-o", "json").stdout
        user = json.loads(who)["status"]["userInfo"]["username"]
        assert user == "system:serviceaccount:phalanx-system:phalanx-scheduler"
        printed = phalanx("kubeconfig", "shared", "--as", "scheduler")
        assert printed.returncode == 0
        assert "current-context: phalanx-shared-scheduler" in printed.stdout

    def test_nobody_else(self, shared: Cluster) -> None:
        with pytest.raises(ClusterError, match="nobody to act as"):
            shared.kubeconfig_as("root")


class TestProcesses:
    def test_run_and_stop(self, shared: Cluster) -> None:
        pid = shared.run("extra", ["sh", "-c", "echo $KUBECONFIG $GREETING; exec sleep 1000"], {"GREETING": "hello"})
        extra = Identity.of(pid)
        assert shared.alive("extra")
        assert shared.pids["extra"] == pid
        until(lambda: shared.log("extra").read_text() == f"{shared.kubeconfig} hello\n")
        shared.stop("extra")
        assert not extra.alive
        assert not shared.alive("extra")
        assert "extra" not in shared.pids
        assert shared.status == "ready"

    def test_what_a_process_started_ends_with_it(self, shared: Cluster, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        shared.run("parent", ["sh", "-c", f"sleep 1000 & echo $! > {note}; wait"])
        grandchild = Identity.of(int(until(lambda: note.exists() and note.read_text())))
        shared.stop("parent")
        assert grandchild.wait(5)

    def test_no_such_program(self, shared: Cluster) -> None:
        with pytest.raises(ClusterError, match="no program /no/such/program"):
            shared.run("missing", ["/no/such/program"])

    def test_only_the_owner_may(self, shared: Cluster) -> None:
        with pytest.raises(ClusterError, match="only the process that started it"):
            Cluster.load("shared").stop("etcd")

    def test_list_as_json(self, shared: Cluster) -> None:
        listed = phalanx("list", "-o", "json")
        assert listed.returncode == 0, listed.stderr
        (record,) = [item for item in json.loads(listed.stdout) if item["name"] == "shared"]
        assert record["status"] == "ready"
        assert record["kubernetes"] == "1.37.2"
        assert record["profile"] == "workload"
        assert record["kubeconfig"] == str(shared.kubeconfig)
        assert record["audit_log"] == str(shared.audit_log)
        assert record["owner"] == os.getpid()
        assert set(record["pids"]) == {
            "supervisor",
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kwok",
        }

    def test_a_live_name_is_refused(self, shared: Cluster) -> None:
        with pytest.raises(ClusterExistsError, match="live cluster 'shared'"), up(ClusterSpec(name="shared")):
            pass
        refused = phalanx("up", "shared")
        assert refused.returncode == 1
        assert "phalanx cluster down shared" in refused.stderr


class TestDeath:
    def test_side_by_side_and_a_component_dies(self) -> None:
        events: list[Event] = []
        with (
            up(ClusterSpec(name="left", nodes=2, profile="no-gates"), events.append) as left,
            up(ClusterSpec(name="right", nodes=1)) as right,
        ):
            assert len(get(left, "nodes")["items"]) == 2
            assert len(get(right, "nodes")["items"]) == 1
            # Not even an empty list: the API is not there.
            raw = "/apis/scheduling.k8s.io/v1beta1/podgroups"
            with pytest.raises(ClusterError, match="could not find the requested resource"):
                left.kubectl_run("get", "--raw", raw)
            right.kubectl_run("get", "--raw", raw)

            os.kill(left.pids["kube-controller-manager"], signal.SIGKILL)
            death = until(lambda: next((e for e in events if e.kind == "died"), None))
            assert death.name == "kube-controller-manager"
            assert "was killed by SIGKILL" in death.text
            assert death.tail
            assert death.log == left.log("kube-controller-manager")
            until(lambda: left.status == "degraded")
            assert right.status == "ready"
            processes = identities(left) + identities(right)
        assert not any(process.alive for process in processes)
        assert clusters_called("left", "right") == []

    def test_a_component_that_cannot_start_is_shown_with_its_log(self) -> None:
        spec = ClusterSpec(name="broken", nodes=0, flags={"kube-apiserver": ["--no-such-flag=1"]})
        with pytest.raises(ComponentDiedError, match="unknown flag: --no-such-flag") as caught, up(spec):
            pass
        assert caught.value.name == "kube-apiserver"
        assert "unknown flag" in caught.value.log.read_text()
        assert clusters_called("broken") == []

    def test_a_taken_port_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[int] = []
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()

            def first_one_taken(count: int) -> list[int]:
                tried.append(count)
                found = free_ports(count)
                if len(tried) == 1:
                    found[PORTS.index("kube-apiserver")] = taken.getsockname()[1]
                return found

            monkeypatch.setattr(modules, "free_ports", first_one_taken)
            events: list[Event] = []
            with up(ClusterSpec(name="clash", nodes=1), events.append) as cluster:
                assert cluster.status == "ready"
        assert len(tried) == 2
        assert any("trying other ports" in event.text for event in events)

    def test_owner_killed(self, tmp_path: Path) -> None:
        script = (
            "from cluster import *\n"
            "with up(ClusterSpec(name='orphan', nodes=1)) as c:\n"
            "    c.run('extra', ['sleep', '1000'])\n"
            "    print('up', flush=True)\n"
            "    input()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            cluster = Cluster.load("orphan")
            processes = identities(cluster)
            assert len(processes) == 6
            root = cluster.kubeconfig.parent
            owner.kill()
        assert all(process.wait(20) for process in processes)
        until(lambda: not root.exists())
        with pytest.raises(ClusterNotFoundError):
            Cluster.load("orphan")

    def test_supervisor_killed_then_replaced_then_taken_down(self) -> None:
        made = phalanx("up", "phoenix", "--nodes", "1")
        assert made.returncode == 0, made.stderr
        assert "export KUBECONFIG=" in made.stderr
        first = Cluster.load("phoenix")
        assert first.status == "ready"
        processes = identities(first)
        os.kill(first.pids["supervisor"], signal.SIGKILL)
        assert all(process.wait(10) for process in processes)
        dead = Cluster.load("phoenix")
        assert dead.status == "dead"
        assert dead.pids == {}
        listed = phalanx("list", "-o", "json")
        assert [(c["name"], c["status"]) for c in json.loads(listed.stdout) if c["name"] == "phoenix"] == [
            ("phoenix", "dead")
        ]

        replaced = phalanx("up", "phoenix", "--nodes", "0", "--gate", "kube-apiserver:WorkloadWithJob=true")
        assert replaced.returncode == 0, replaced.stderr
        assert "was dead" in replaced.stderr
        second = Cluster.load("phoenix")
        assert second.status == "ready"
        processes = identities(second)
        gone = phalanx("down", "phoenix", "--keep-logs")
        assert gone.returncode == 0, gone.stderr
        kept = Path(gone.stdout.strip())
        assert (kept / "kube-apiserver.log").stat().st_size
        assert (kept / "audit.log").stat().st_size
        assert not any(process.alive for process in processes)
        assert clusters_called("phoenix") == []
        again = phalanx("down", "phoenix")
        assert again.returncode == 1
        assert "no cluster 'phoenix'" in again.stderr


class TestNativeJobs:
    def test_kube_controller_manager_makes_the_groups(self) -> None:
        with up(ClusterSpec(name="native", nodes=2, profile="native-jobs", scheduler=True)) as cluster:
            cluster.kubectl_run("create", "-f", "-", input=job("native", 2))
            groups = until(lambda: get(cluster, "podgroups.v1beta1.scheduling.k8s.io")["items"])
            assert groups[0]["metadata"]["ownerReferences"]
            until(lambda: phases(cluster, "native") == ["Running"] * 2)


def clusters_called(*names: str) -> list[str]:
    return [cluster.name for cluster in clusters() if cluster.name in names]
