from __future__ import annotations

from pathlib import Path

import pytest

from cluster import ClusterSpec, SpecError, nodes, recipes, versions
from cluster.components import PORTS, Plan
from cluster.paths import Layout
from cluster.pki import Pki


def plan(tmp_path: Path, **spec: object) -> Plan:
    pki = Pki(**{name: tmp_path / f"{name}.pem" for name in Pki.__slots__})
    pki.ca.write_text("CA")
    programs = {name: Path("/bin") / name for name in (*PORTS, "kubectl")}
    ports = {name: 20000 + i for i, name in enumerate(PORTS)}
    return Plan(ClusterSpec(name="c", **spec), Layout(tmp_path / "c"), programs, ports, pki)  # type: ignore[arg-type]


def flag(argv: list[str], name: str) -> list[str]:
    return [arg.partition("=")[2] for arg in argv if arg.partition("=")[0] == name]


class TestValidation:
    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "..", "a" * 41, "a\n"])
    def test_bad_name(self, name: str) -> None:
        with pytest.raises(SpecError, match="cannot be a cluster's name"):
            ClusterSpec(name=name)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("kubernetes", "1.12", "there is: 1.37.2"),
            ("profile", "none", "there is: workload, native-jobs, no-gates"),
            ("nodes", -1, "from 0 to 20000"),
            ("nodes", 99_999, "from 0 to 20000"),
            ("node_pods", 0, "at least 1"),
            ("node_cpu", "many", "not a Kubernetes quantity"),
            ("node_memory", "32GB", "not a Kubernetes quantity"),
            ("feature_gates", {"etcd": {"A": True}}, "has no feature gates"),
            ("flags", {"kubelet": ["--v=1"]}, "no component 'kubelet'"),
            ("flags", {"etcd": ["v=1"]}, "write --name=value"),
        ],
    )
    def test_bad_value(self, field: str, value: object, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            ClusterSpec(name="c", **{field: value})  # type: ignore[arg-type]

    def test_only_our_own_clusters_can_be_without_kwok(self) -> None:
        with pytest.raises(SpecError, match="has no kwok"):
            ClusterSpec(name="c", provider="kind", kwok=False)

    @pytest.mark.parametrize("written", ["1.37", "1.37.2", "v1.37.2"])
    def test_versions_are_found_however_written(self, written: str) -> None:
        assert ClusterSpec(name="c", kubernetes=written).release.version == "1.37.2"


class TestGates:
    def test_profile_then_all_then_own(self) -> None:
        spec = ClusterSpec(
            name="c",
            feature_gates={
                "*": {"A": True, "B": True},
                "kube-apiserver": {"B": False, "GenericWorkload": False},
            },
        )
        assert spec.gates("kube-apiserver") == {"GenericWorkload": False, "A": True, "B": False}
        assert spec.gates("kube-scheduler") == {"GenericWorkload": True, "A": True, "B": True}

    def test_native_jobs_are_on_everywhere(self) -> None:
        spec = ClusterSpec(name="c", profile="native-jobs")
        for component in versions.GATED:
            assert spec.gates(component) == {"GenericWorkload": True, "WorkloadWithJob": True}

    def test_workload_with_job_is_off_by_default(self) -> None:
        assert ClusterSpec(name="c").gates("kube-apiserver") == {"GenericWorkload": True}

    def test_no_gates_means_no_flag(self, tmp_path: Path) -> None:
        argv = plan(tmp_path, profile="no-gates").argv("kube-apiserver")
        assert flag(argv, "--feature-gates") == []
        assert flag(argv, "--runtime-config") == []

    def test_flags_of_the_default_profile(self, tmp_path: Path) -> None:
        argv = plan(tmp_path).argv("kube-apiserver")
        assert flag(argv, "--feature-gates") == ["GenericWorkload=true"]
        assert flag(argv, "--runtime-config") == ["scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true"]


class TestCommandLines:
    def test_a_flag_replaces_ours_of_the_same_name(self, tmp_path: Path) -> None:
        own = ["--kube-api-qps=5", "--v=4"]
        argv = plan(tmp_path, flags={"kube-controller-manager": own}).argv("kube-controller-manager")
        assert flag(argv, "--kube-api-qps") == ["5"]
        assert flag(argv, "--kube-api-burst") == ["2000"]
        assert argv[-2:] == own

    def test_other_components_keep_theirs(self, tmp_path: Path) -> None:
        made = plan(tmp_path, flags={"kube-scheduler": ["--bind-address=127.0.0.2"]})
        assert flag(made.argv("kube-controller-manager"), "--bind-address") == ["127.0.0.1"]

    @pytest.mark.parametrize(
        "component", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    )
    def test_nothing_listens_beyond_this_machine(self, tmp_path: Path, component: str) -> None:
        argv = plan(tmp_path).argv(component)
        assert argv[0] == f"/bin/{component}"
        assert not [arg for arg in argv if "=0.0.0.0" in arg]
        assert [arg for arg in argv if "127.0.0.1" in arg]

    def test_without_kwok_nodes_need_nobody_to_keep_them(self, tmp_path: Path) -> None:
        made = plan(tmp_path, kwok=False, scheduler=True)
        assert made.spec.components == ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
        assert flag(made.argv("kube-apiserver"), "--disable-admission-plugins") == ["TaintNodesByCondition"]
        controllers = ["*,-node-ipam-controller,-node-lifecycle-controller,-ttl-controller"]
        assert flag(made.argv("kube-controller-manager"), "--controllers") == controllers
        assert nodes.is_ready(nodes.node(0, ready=True))

    def test_with_kwok_nodes_are_not_ready_until_it_says_so(self, tmp_path: Path) -> None:
        made = plan(tmp_path)
        assert "kwok" in made.spec.components
        assert flag(made.argv("kube-apiserver"), "--disable-admission-plugins") == []
        assert flag(made.argv("kube-controller-manager"), "--controllers") == ["*,-node-ipam-controller"]
        assert not nodes.is_ready(nodes.node(0))

    def test_files_are_private(self, tmp_path: Path) -> None:
        made = plan(tmp_path)
        made.layout.data.mkdir(parents=True)
        made.write_files()
        for file in (made.layout.kubeconfig, made.layout.data / "tokens.csv"):
            assert file.stat().st_mode & 0o777 == 0o600
        rows = (made.layout.data / "tokens.csv").read_text().splitlines()
        assert f'{made.tokens["admin"]},kubernetes-admin,kubernetes-admin,"system:masters"' in rows


@pytest.mark.parametrize("minor", list(versions.RELEASES))
def test_every_release_has_its_modules(minor: str) -> None:
    gomod = Path(versions.__file__).parent / "gomod"
    release = versions.release(minor)
    for recipe in (*recipes.modules(release), recipes.kind(release), *recipes.node_image(release)):
        text = (gomod / recipe.gomod / "go.mod").read_text()
        assert (gomod / recipe.gomod / "go.sum").is_file()
        assert f" v{recipe.version}" in text
