"""The parts of kind clusters that are only computed: configurations, archives, what is undone."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import ClusterError, ClusterSpec, SpecError, UnavailableError, versions
from cluster.errors import BuildError
from cluster.events import quiet
from cluster.kind import archive, config, daemon, debian, docker, host, image, network, preload, runc
from cluster.kind.archive import Image
from cluster.kind.docker import Docker
from cluster.procs import Identity

RELEASE = versions.release("1.37")


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec(**{"name": "lab", "provider": "kind", **fields})


def kubeadm(document: dict[str, Any]) -> dict[str, Any]:
    patches = [yaml.safe_load(text) for text in document["kubeadmConfigPatches"]]
    return next(patch for patch in patches if patch["kind"] == "ClusterConfiguration")


def flags(document: dict[str, Any], component: str) -> dict[str, str]:
    return {flag["name"]: flag["value"] for flag in kubeadm(document)[component]["extraArgs"]}


class TestConfig:
    def test_nodes(self, tmp_path: Path) -> None:
        document = config.render(spec(), tmp_path / "policy", tmp_path / "logs")
        assert document["name"] == "phalanx-lab"
        assert [node["role"] for node in document["nodes"]] == ["control-plane", "worker", "worker"]
        mounts = {mount["containerPath"]: mount["hostPath"] for mount in document["nodes"][0]["extraMounts"]}
        assert mounts == {config.NODE_POLICY: str(tmp_path / "policy"), config.NODE_LOGS: str(tmp_path / "logs")}
        roles = [node["role"] for node in config.render(spec(nodes=0), tmp_path, tmp_path)["nodes"]]
        assert roles == ["control-plane"]

    def test_profiles_and_gates(self, tmp_path: Path) -> None:
        document = config.render(
            spec(profile="native-jobs", feature_gates={"*": {"A": True}, "kube-scheduler": {"B": False}}),
            tmp_path,
            tmp_path,
        )
        everywhere = {"GenericWorkload": True, "WorkloadWithJob": True, "A": True}
        assert document["featureGates"] == everywhere
        written = "GenericWorkload=true,WorkloadWithJob=true,A=true"
        assert flags(document, "apiServer")["feature-gates"] == written
        assert flags(document, "controllerManager")["feature-gates"] == written
        assert flags(document, "scheduler")["feature-gates"] == f"{written},B=false"
        assert "scheduling.k8s.io/v1beta1=true" in flags(document, "apiServer")["runtime-config"]

    def test_no_gates(self, tmp_path: Path) -> None:
        document = config.render(spec(profile="no-gates"), tmp_path, tmp_path)
        assert document["featureGates"] == {}
        assert flags(document, "scheduler") == {}
        assert "runtime-config" not in flags(document, "apiServer")

    def test_what_kind_sets_itself_is_not_lost(self, tmp_path: Path) -> None:
        document = config.render(spec(), tmp_path, tmp_path)
        assert flags(document, "controllerManager")["enable-hostpath-provisioner"] == "true"

    def test_flags_take_the_place_of_ours(self, tmp_path: Path) -> None:
        own = {"kube-apiserver": ["--audit-log-mode=batch", "--profiling"]}
        found = flags(config.render(spec(flags=own), tmp_path, tmp_path), "apiServer")
        assert (found["audit-log-mode"], found["profiling"]) == ("batch", "true")

    def test_no_kwok(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="no kwok"):
            config.render(spec(flags={"kwok": ["--v=4"]}), tmp_path, tmp_path)

    def test_audit_log_and_policy_are_where_the_api_server_looks(self, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        logs.mkdir()
        document = yaml.safe_load(config.write(spec(), tmp_path / "data", logs).read_text())
        inside = {mount["containerPath"]: Path(mount["hostPath"]) for mount in document["nodes"][0]["extraMounts"]}
        volumes = {volume["hostPath"] for volume in kubeadm(document)["apiServer"]["extraVolumes"]}
        assert volumes == set(inside)
        for flag in ("audit-policy-file", "audit-log-path"):
            path = Path(flags(document, "apiServer")[flag])
            assert (inside[str(path.parent)] / path.name).is_file()
        assert (logs / "audit.log").stat().st_mode & 0o777 == 0o600


class TestNetwork:
    NODES = (
        network.NodeAddress("a", "172.18.0.2", "10.244.0.0/24"),
        network.NodeAddress("b", "172.18.0.3", "10.244.1.0/24"),
    )

    def test_addresses_once_all_have_them(self) -> None:
        item = {
            "metadata": {"name": "a"},
            "spec": {},
            "status": {"addresses": [{"type": "Hostname", "address": "a"}]},
        }
        assert network.addresses([item]) is None
        item["spec"] = {"podCIDR": "10.244.0.0/24"}
        assert network.addresses([item]) is None
        item["status"]["addresses"].append({"type": "InternalIP", "address": "172.18.0.2"})
        assert network.addresses([item]) == [self.NODES[0]]

    def test_script(self) -> None:
        text = network.script(self.NODES[0], self.NODES)
        assert "ip route replace 10.244.1.0/24 via 172.18.0.3\n" in text
        assert "10.244.0.0/24 via" not in text
        written = text.split("<<'END'\n")[1].split("\nEND\n")[0]
        assert json.loads(written)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.0.0/24"}]]


class TestArchive:
    def test_as_docker_saves_it_and_the_same_each_time(self, tmp_path: Path) -> None:
        program = tmp_path / "program"
        program.write_text("#!/bin/sh\n")
        made = Image(
            ("example.com/a:1", "example.com/b:1"),
            {"/usr/bin/p": program},
            entrypoint=("/usr/bin/p",),
            links={"/bin/q": "../usr/bin/p"},
            texts={"/etc/passwd": "root"},
            user="1:1",
        )
        first, second = tmp_path / "1.tar", tmp_path / "2.tar"
        archive.write([made], first)
        program.touch()
        archive.write([made], second)
        assert first.read_bytes() == second.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1.tar", "2.tar", "program"]
        with tarfile.open(first) as saved:
            (entry,) = json.load(saved.extractfile("manifest.json") or io.BytesIO())
            configuration = json.load(saved.extractfile(entry["Config"]) or io.BytesIO())
            with tarfile.open(fileobj=saved.extractfile(entry["Layers"][0])) as layer:
                modes = {member.name: oct(member.mode) for member in layer if member.isfile() or member.isdir()}
                assert layer.getmember("bin/q").linkname == "../usr/bin/p"
        assert entry["RepoTags"] == ["example.com/a:1", "example.com/b:1"]
        assert configuration["config"]["Entrypoint"] == ["/usr/bin/p"]
        assert configuration["config"]["User"] == "1:1"
        assert configuration["rootfs"]["diff_ids"] == ["sha256:" + entry["Layers"][0].removesuffix(".tar")]
        assert modes == {
            **dict.fromkeys(("bin", "etc", "usr", "usr/bin", "usr/bin/p"), "0o755"),
            "etc/passwd": "0o644",
            "tmp": "0o1777",
        }


class TestPreload:
    def test_libraries(self) -> None:
        said = (
            "/usr/sbin/nft:\n"
            "\tlinux-vdso.so.1 (0x00007ffc)\n"
            "\tlibnftables.so.1 => /lib/x86_64-linux-gnu/libnftables.so.1 (0x00007f)\n"
            "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
            "/usr/lib/x86_64-linux-gnu/xtables/libxt_statistic.so:\n"
            "\tlibnftables.so.1 => /lib/x86_64-linux-gnu/libnftables.so.1 (0x00007f)\n"
            "\tlibm.so.6 => not found\n"
        )
        assert preload.libraries(said) == [
            "/lib/x86_64-linux-gnu/libnftables.so.1",
            "/lib64/ld-linux-x86-64.so.2",
        ]

    def test_names_are_those_that_are_asked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preload, "_chroot", lambda _root, *argv: "sh\nbusybox\n" if "--list" in argv else "")
        programs = {name: tmp_path / name for name in ("pause", "coredns", "etcd", "kube-proxy")}
        wanted = ["registry.k8s.io/pause:3.10.2", "registry.k8s.io/coredns/coredns:v1.14.6"]
        pause, coredns, busybox = preload.images(wanted, "registry.k8s.io/pause:3.10", programs, tmp_path)
        assert pause.names == ("registry.k8s.io/pause:3.10.2", "registry.k8s.io/pause:3.10")
        assert coredns.entrypoint == ("/coredns",)
        assert busybox.names == (preload.BUSYBOX,)
        assert busybox.links == {"/bin/sh": "busybox"}
        with pytest.raises(BuildError, match=r"asks for the image x/other:1, and nothing of that name was built"):
            preload.images(["x/other:1"], "", programs, tmp_path)

    def test_the_key_says_what_an_image_is_made_from(self) -> None:
        assert image.key(RELEASE) == image.key(RELEASE)
        assert image.name(RELEASE) == f"localhost:1/phalanx-node:v1.37.2-{image.key(RELEASE)}"
        assert image.path(RELEASE).name == f"node-v1.37.2-{image.key(RELEASE)}.tar.zst"


BEFORE = """\
*filter
:INPUT ACCEPT [5:100]
:FORWARD ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
COMMIT
"""
AFTER = """\
*filter
:INPUT ACCEPT [7:140]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:OTHERS - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -s 10.0.0.1/32 -m comment --comment "not docker's" -j DROP
-A FORWARD -o docker0 -m comment --comment "a b" -j DOCKER
COMMIT
*nat
:DOCKER - [0:0]
-A POSTROUTING -s 172.18.0.0/16 ! -o br-0123456789ab -j MASQUERADE
COMMIT
"""


class TestHost:
    def test_only_what_is_dockers_and_new_is_undone(self) -> None:
        assert host.undo_rules(BEFORE, AFTER) == [
            ["-t", "filter", "-D", "FORWARD", "-o", "docker0", "-m", "comment", "--comment", "a b", "-j", "DOCKER"],
            ["-t", "filter", "-F", "DOCKER"],
            ["-t", "filter", "-X", "DOCKER"],
            ["-t", "filter", "-P", "FORWARD", "ACCEPT"],
            ["-t", "nat", "-D", "POSTROUTING", "-s", "172.18.0.0/16", "!", "-o", "br-0123456789ab", "-j", "MASQUERADE"],
            ["-t", "nat", "-F", "DOCKER"],
            ["-t", "nat", "-X", "DOCKER"],
        ]

    def test_a_docker_that_was_there_before_stays(self) -> None:
        assert host.undo_rules(AFTER, AFTER) == []

    def test_a_snapshot_survives_a_file(self) -> None:
        taken = host.Snapshot({"a": "1"}, {"iptables": BEFORE}, ("lo",), ("/sys/fs/cgroup/docker",))
        assert host.Snapshot.from_json(json.loads(json.dumps(taken.to_json()))) == taken


class TestRunc:
    def test_capabilities_that_this_machine_lacks(self) -> None:
        assert runc.withheld("Name:\tx\nCapBnd:\t000001fffeffffff\n") == {"CAP_SYS_RESOURCE"}
        assert runc.withheld("CapBnd:\t000001ffffffffff\n") == set()

    def test_a_request_is_cut_to_what_there_is(self) -> None:
        process = {"capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"], "ambient": []}}
        runc.reduce(process, {"CAP_KILL", "CAP_CHOWN"})
        assert process == {"capabilities": {"bounding": ["CAP_KILL"], "ambient": []}}

    @pytest.mark.parametrize(
        ("argv", "found"),
        [
            (["runc", "--root", "/r", "create", "--bundle", "/b", "id"], ("/b/config.json", True)),
            (["runc", "run", "--bundle=/b", "id"], ("/b/config.json", True)),
            (["runc", "create", "id"], ("config.json", True)),
            (["runc", "exec", "--process", "/p", "id"], ("/p", False)),
            (["runc", "exec", "id", "ls"], None),
            (["runc", "delete", "id"], None),
        ],
    )
    def test_which_file_has_the_request(self, argv: list[str], found: tuple[str, bool] | None) -> None:
        assert runc.request_of(argv) == (found and (Path(found[0]), found[1]))


class TestNotHere:
    @pytest.fixture(autouse=True)
    def _nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A user who is not root, on a machine without any of the programs."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(debian, "_SBIN", str(tmp_path))
        monkeypatch.setattr("os.geteuid", lambda: 1000)

    def test_what_to_install_is_said(self) -> None:
        with pytest.raises(
            UnavailableError, match=r"a kind cluster needs docker, zstd, .*apt-get install docker\.io zstd"
        ):
            debian.ensure(("docker", "zstd"), "a kind cluster", quiet)

    def test_only_root_can_start_docker(self) -> None:
        assert not Docker().answers()
        assert "only root can start one" in docker.obstacle()

    def test_root_needs_an_apt_get(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        assert "neither dockerd nor an apt-get" in docker.obstacle()

    def test_only_root_can_build_a_node_image(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PHALANX_CACHE", str(tmp_path))
        with pytest.raises(UnavailableError, match="only root can build one"):
            image.ensure(RELEASE, quiet)


class TestDaemon:
    @pytest.fixture(autouse=True)
    def _own(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(daemon, "machine_dir", lambda: tmp_path)

    @pytest.mark.parametrize(
        ("users", "ours", "needed"), [("", "", True), ("a", "", False), ("a", "b", False), ("b", "b", True)]
    )
    def test_one_that_is_reached_by_another_name_is_still_ours(
        self, monkeypatch: pytest.MonkeyPatch, users: str, ours: str, needed: bool
    ) -> None:
        monkeypatch.setattr(Docker, "identity", property(lambda self: ours if self.host else users))
        monkeypatch.setattr(Docker, "answers", lambda self: bool(self.identity))
        assert daemon.needed() is needed

    def test_the_last_user_ends_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        record = daemon._Record(Identity.of(1), tmp_path / "storage", host.Snapshot())
        told: list[str] = []

        def start(_report: object) -> daemon._Record:
            told.append("start")
            record.write()
            return record

        monkeypatch.setattr(daemon, "_start", start)
        monkeypatch.setattr(daemon, "_stop", lambda found: told.append(f"stop {found.process.pid}"))
        monkeypatch.setattr(daemon, "_remove_containers", lambda *filters: told.append(f"remove {filters[0]}"))
        monkeypatch.setattr(Docker, "answers", lambda _self: True)
        me = Identity.of(1)
        daemon.release("never-there", me)
        assert daemon.acquire("one", me) == (daemon.ours(), 1)
        daemon.acquire("two", me)
        daemon.acquire("killed", Identity(2**22 + 1, 1))
        assert told == ["start", f"remove label={daemon.LABEL}=killed"]
        with pytest.raises(ClusterError, match=r"a live kind cluster one already, made by process 1$"):
            daemon.acquire("one", Identity.of(os.getpid()))
        daemon.release("one", Identity.of(os.getpid()))
        daemon.release("one", me)
        assert told[2:] == []
        daemon.release("two", me)
        assert told[2:] == ["stop 1"]
