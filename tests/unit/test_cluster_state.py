from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import yaml

from cli import cluster as cli_cluster
from cluster import Cluster, ClusterError, ClusterNotFoundError, clusters, modules, nodes, pki, state
from cluster.kubeconfig import Access
from cluster.paths import Layout
from cluster.procs import Identity
from cluster.state import Process, State


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_STATE", str(tmp_path / "state"))


def saved(name: str = "c", *, alive: bool = True) -> State:
    me = Identity.of(os.getpid())
    supervisor = me if alive else Identity(me.pid, me.start_time - 1, me.boot)
    processes = {
        "etcd": Process(10, 20, "/log"),
        "kwok": Process(11, 21, "/log", ended="exited with code 0", asked=True),
    }
    made = State(name=name, supervisor=supervisor, owner=me, ready=True, nodes=3, processes=processes)
    layout = Layout.of(name)
    layout.logs.mkdir(parents=True)
    made.write(layout.state_file)
    return made


class TestState:
    def test_round_trip(self) -> None:
        made = saved()
        assert state.load("c") == made
        assert Layout.of("c").state_file.stat().st_mode & 0o777 == 0o600

    def test_status(self) -> None:
        made = saved()
        assert made.status == "ready"
        made.processes["etcd"].ended = "was killed by SIGKILL"
        made.write(Layout.of("c").state_file)
        assert state.load("c").status == "degraded"
        assert made.died == {"etcd": "was killed by SIGKILL"}
        made.ready = False
        made.processes.clear()
        made.write(Layout.of("c").state_file)
        assert state.load("c").status == "starting"

    def test_dead_when_the_supervisor_is_gone_even_if_its_pid_is_not(self) -> None:
        made = saved(alive=False)
        assert made.status == "dead"
        assert made.pids == {}

    def test_pids_are_those_that_run(self) -> None:
        assert saved().pids == {"supervisor": os.getpid(), "etcd": 10}

    def test_unknown_name_says_what_there_is(self) -> None:
        saved("one")
        with pytest.raises(ClusterNotFoundError, match=r"no cluster 'two' \(there is: one\)"):
            Cluster.load("two")

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"supervisor": 1}', '{"supervisor": {"pid": 1}, "owner": null}'])
    def test_a_broken_file_is_no_cluster(self, text: str) -> None:
        layout = Layout.of("broken")
        layout.root.mkdir(parents=True)
        layout.state_file.write_text(text)
        assert clusters() == []
        with pytest.raises(ClusterNotFoundError):
            Cluster.load("broken")

    def test_down_clears_a_dead_cluster_and_signals_nobody(self) -> None:
        saved(alive=False)  # its pid is ours: a signal would end this test
        cluster = Cluster.load("c")
        (cluster.logs / "etcd.log").write_text("last words\n")
        kept = cluster.down(keep_logs=True)
        assert kept is not None
        assert (kept / "etcd.log").read_text() == "last words\n"
        assert clusters() == []
        assert not Layout.of("c").root.exists()

    def test_a_place_that_cannot_be_used_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("PHALANX_STATE", str(tmp_path / "file"))
        monkeypatch.setattr(modules.Modules, "prepare", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli_cluster.up("c")
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert "PHALANX_STATE" in said
        assert "Traceback" not in said

    def test_only_an_owner_runs_processes(self) -> None:
        saved()
        with pytest.raises(ClusterError, match="only the process that started it"):
            Cluster.load("c").run("x", ["true"])


class TestKubeconfig:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "kubeconfig"
        access = Access(server="https://127.0.0.1:1", ca="CA\n", token="secret")
        access.write(path, "c", "admin")
        assert Access.read(path) == access
        assert path.stat().st_mode & 0o777 == 0o600
        assert yaml.safe_load(path.read_text())["current-context"] == "phalanx-c"

    def test_client_certificate(self, tmp_path: Path) -> None:
        path = tmp_path / "kubeconfig"
        access = Access(server="https://127.0.0.1:1", ca="CA\n", certificate="CERT\n", key="KEY\n")
        access.write(path, "c", "scheduler")
        assert Access.read(path) == access
        assert yaml.safe_load(path.read_text())["current-context"] == "phalanx-c-scheduler"

    @pytest.mark.parametrize("text", ["", "[]", "a: [", "current-context: x\ncontexts: []\n"])
    def test_not_one(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "kubeconfig"
        path.write_text(text)
        with pytest.raises(ClusterError, match="not a kubeconfig"):
            Access.read(path)


class TestPki:
    def test_python_verifies_the_serving_certificate_strictly(self, tmp_path: Path) -> None:
        keys = pki.make(tmp_path / "data")
        client = ssl.create_default_context(cafile=str(keys.ca))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(keys.serving, keys.serving_key)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        assert ends[0].getpeercert()

    def test_keys_are_private(self, tmp_path: Path) -> None:
        keys = pki.make(tmp_path / "data")
        for name in pki.Pki.__slots__:
            assert getattr(keys, name).stat().st_mode & 0o777 == 0o600


class TestNodes:
    def test_racks_and_zones(self) -> None:
        made = [nodes.node(i)["metadata"]["labels"] for i in range(8)]
        assert [m[nodes.RACK] for m in made] == [f"rack-{i % 4}" for i in range(8)]
        zones = {(m[nodes.RACK], m[nodes.ZONE]) for m in made}
        assert zones == {("rack-0", "zone-0"), ("rack-1", "zone-1"), ("rack-2", "zone-0"), ("rack-3", "zone-1")}

    def test_resources_labels_and_taints(self) -> None:
        taint = {"key": "a", "effect": "NoSchedule"}
        made = nodes.node(7, cpu="2", resources={"x/y": "1"}, labels={"a": "b"}, taints=[taint])
        assert made["metadata"]["name"] == "node-0007"
        assert made["metadata"]["labels"]["a"] == "b"
        assert made["status"]["allocatable"] == {"cpu": "2", "memory": "32Gi", "pods": "110", "x/y": "1"}
        assert made["spec"]["taints"] == [taint]

    def test_next_index(self) -> None:
        assert nodes.next_index([]) == 0
        assert nodes.next_index(["node-0001", "node-0010", "other", "node-9x"]) == 11

    def test_ready(self) -> None:
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        assert nodes.is_ready(ready)
        assert not nodes.is_ready({"status": {}})
        tainted = ready | {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]}}
        assert not nodes.is_ready(tainted)
