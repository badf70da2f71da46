"""Taking a cluster that is there: what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import ClusterError, ClusterSpec, SpecError
from cluster.events import quiet
from cluster.existing import Existing, _flattened, _kubeconfigs


def spec(path: Path | None = None) -> ClusterSpec:
    return ClusterSpec(name="taken", provider="existing", kubeconfig=path)


def test_it_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(SpecError, match=r"give --kubeconfig, or set KUBECONFIG"):
        Existing().prepare(spec(), quiet)


def test_the_option_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", "/one:/two")
    assert _kubeconfigs(spec()) == "/one:/two"
    with pytest.raises(SpecError, match="there is no kubeconfig"):
        _kubeconfigs(spec(tmp_path / "none"))
    (tmp_path / "some").touch()
    assert _kubeconfigs(spec(tmp_path / "some")) == str(tmp_path / "some")


def test_no_current_context(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'error: current-context must exist' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    with pytest.raises(ClusterError, match=r"/some is not a kubeconfig with a current context: .*must exist"):
        _flattened(kubectl, "/some")


@pytest.mark.parametrize(("provider", "nodes"), [("existing", 1), ("kind", 51), ("modules", 20_001)])
def test_nodes_that_it_cannot_have(provider: str, nodes: int) -> None:
    with pytest.raises(SpecError, match=rf"nodes must be from 0 to {nodes - 1} with provider {provider}"):
        ClusterSpec(name="c", provider=provider, nodes=nodes)


def test_nodes_by_default() -> None:
    assert [ClusterSpec(name="c", provider=p).node_count for p in ("modules", "kind", "existing")] == [16, 2, 0]


def test_others_take_no_kubeconfig() -> None:
    with pytest.raises(SpecError, match="only existing takes one"):
        ClusterSpec(name="c", kubeconfig=Path("/some"))


def test_no_such_provider() -> None:
    with pytest.raises(SpecError, match="no cluster provider 'minikube'; there is: modules, kind, existing"):
        ClusterSpec(name="c", provider="minikube")
