"""The manifests without a cluster: complete, in step with the code, and least privilege.

That an API server takes them under strict validation, and that the policies do what ``api`` says, is tested on live
servers in ``tests/kind/test_policies.py``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from api import names

ROOT = Path(__file__).parents[2] / "manifests"
OVERLAYS = ["base", "overlays/1.37", "overlays/demo"]
KUBECTL = shutil.which("kubectl")

Obj = dict[str, Any]


def documents(path: Path) -> list[Obj]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def base() -> list[Obj]:
    return [
        d
        for path in sorted((ROOT / "base").glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for d in documents(path)
    ]


def find(kind: str, name: str) -> Obj:
    (found,) = [d for d in base() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def build(overlay: str) -> list[Obj]:
    if KUBECTL is None:
        pytest.skip("kubectl is not installed")
    argv = [KUBECTL, "kustomize", str(ROOT / overlay)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def test_every_file_is_listed() -> None:
    for kustomization in ROOT.rglob("kustomization.yaml"):
        listed = documents(kustomization)[0]
        patches = [patch["path"] for patch in listed.get("patches", []) if "path" in patch]
        paths = [*listed.get("resources", []), *listed.get("components", []), *patches]
        for path in paths:
            assert (kustomization.parent / path).exists(), path
        others = {p.name for p in kustomization.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert others == {path for path in paths if path.endswith(".yaml")}, kustomization


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_builds_without_duplicates(overlay: str) -> None:
    objects = build(overlay)
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys)) == len(base())
    assert all(o["metadata"]["labels"]["app.kubernetes.io/part-of"] == "phalanx" for o in objects)


def test_our_namespace_runs_restricted_pods_only() -> None:
    labels = find("Namespace", names.SYSTEM_NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_our_priority_class_is_for_no_one_by_default() -> None:
    found = find("PriorityClass", "phalanx-system")
    assert not found.get("globalDefault", False)
    assert found["value"] <= 1_000_000_000, "more is the system's own"


class TestPermissions:
    def rules(self) -> list[Obj]:
        return [rule for d in base() if d["kind"] in ("Role", "ClusterRole") for rule in d["rules"]]

    def test_nothing_is_granted_by_wildcard(self) -> None:
        for rule in self.rules():
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]

    def test_no_secrets_and_no_change_of_permissions(self) -> None:
        for rule in self.rules():
            assert not {"secrets", "configmaps", "roles", "clusterroles", "serviceaccounts"} & set(rule["resources"])
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])

    def test_jobs_are_created_in_our_namespace_only(self) -> None:
        for document in base():
            for rule in document.get("rules", []):
                if {"create", "delete"} & set(rule["verbs"]) and "jobs" in rule["resources"]:
                    assert document["kind"] == "Role"
                    assert document["metadata"]["namespace"] == names.SYSTEM_NAMESPACE

    def test_each_process_may_renew_its_own_lease_and_no_other(self) -> None:
        leases = {d["metadata"]["name"] for d in base() if d["kind"] == "Lease"}
        assert leases == {"phalanx-controllers", "phalanx-scheduler"}
        for document in base():
            for rule in document.get("rules", []):
                if "leases" in rule["resources"]:
                    assert document["kind"] == "Role"
                    assert rule["verbs"] == ["create"] or set(rule["resourceNames"]) <= leases
                    assert len(rule.get("resourceNames", [""])) == 1

    def test_every_role_is_bound_to_an_account_that_exists(self) -> None:
        accounts = {d["metadata"]["name"] for d in base() if d["kind"] == "ServiceAccount"}
        bound = set()
        for document in base():
            if document["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                bound.add((document["roleRef"]["kind"], document["roleRef"]["name"]))
                for subject in document["subjects"]:
                    assert subject["name"] in accounts
                    assert subject["namespace"] == names.SYSTEM_NAMESPACE
        assert bound == {(d["kind"], d["metadata"]["name"]) for d in base() if d["kind"] in ("Role", "ClusterRole")}


POLICIES = [document for document in base() if document["kind"] == "MutatingAdmissionPolicy"]


class TestPolicies:
    @pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
    def test_they_are_of_the_kind_that_was_tried(self, policy: Obj) -> None:
        spec = policy["spec"]
        assert spec["failurePolicy"] == "Fail"
        assert "paramKind" not in spec
        assert {m["patchType"] for m in spec["mutations"]} == {"ApplyConfiguration"}
        (rule,) = spec["matchConstraints"]["resourceRules"]
        assert rule["operations"] == ["CREATE"]

    def test_whom_they_could_refuse(self) -> None:
        """Fail is bearable only because nothing else is matched: namespaces that opted in, and marked pods."""
        for policy in POLICIES:
            name = policy["metadata"]["name"]
            binding = find("MutatingAdmissionPolicyBinding", name)
            assert binding["spec"]["policyName"] == name
            selector = policy["spec"]["matchConstraints"].get("objectSelector")
            if policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["jobs"]:
                namespaces = binding["spec"]["matchResources"]["namespaceSelector"]
                assert namespaces == {"matchLabels": {names.JOBS_LABEL: "enabled"}}
            else:
                assert selector == {"matchLabels": {names.GANG_LABEL: "job"}}

    def test_the_demo_takes_all_namespaces_but_two(self) -> None:
        for binding in build("overlays/demo"):
            if binding["kind"] == "MutatingAdmissionPolicyBinding" and binding["metadata"]["name"] == "phalanx-jobs":
                (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
                assert expression["operator"] == "NotIn"
                assert set(expression["values"]) == {"kube-system", names.SYSTEM_NAMESPACE}
                return
        pytest.fail("the binding is not there")

    def test_every_name_in_the_expressions_is_one_of_api(self) -> None:
        known = {value for value in vars(names).values() if isinstance(value, str)}
        for path in (*(ROOT / "base").glob("policy-*.yaml"), ROOT / "overlays/1.37/native-jobs.yaml"):
            code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
            found = set(re.findall(r"phalanx\.dev/[a-z-]+", code))
            assert found
            assert found <= known, path
        assert f"'{names.SCHEDULER_NAME}'" in (ROOT / "base/policy-pods.yaml").read_text()
        assert names.JOB_CONTROLLER in (ROOT / "base/policy-jobs.yaml").read_text()


def test_samples_are_jobs() -> None:
    samples = {path.stem: documents(path) for path in (ROOT / "samples").glob("*.yaml")}
    assert set(samples) >= {"gang-8", "too-large", "single", "min-count"}
    for name, found in samples.items():
        assert [d["kind"] for d in found] == ["Job"]
        assert found[0]["metadata"]["name"] == name
