"""The admission policies on a live API server, compared with the rules in ``api``: one table for both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api import names
from api.eligibility import Eligible, Ineligible, Misconfigured, decide, marked
from api.membership import GroupKey, group_of
from api.wire import Job, Pod
from cluster import Cluster
from tests.kind.conftest import ROOT, OwnCluster
from tests.kind.kube import Kube, Obj, until

pytestmark = pytest.mark.timeout(300)

ENABLED, OTHER = "enabled", "other"
POLICY, MIN_COUNT = names.POLICY_ANNOTATION, names.MIN_COUNT_ANNOTATION


def manifest(
    name: str | None = "j",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    pod: Obj | None = None,
    namespace: str = ENABLED,
    **spec: Any,
) -> Obj:
    metadata: Obj = {"namespace": namespace, **({"name": name} if name else {"generateName": "made-"})}
    if annotations is not None:
        metadata["annotations"] = annotations
    if owner is not None:
        kind, api_version = owner
        reference = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u-1", "controller": True}
        metadata["ownerReferences"] = [reference]
    template = {
        "metadata": {"labels": labels or {}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "w", "image": "example.com/w", "resources": {"requests": {"cpu": "10m"}}}],
            **(pod or {}),
        },
    }
    defaults = {"completionMode": "Indexed", "parallelism": 4, "completions": 4}
    body = {key: value for key, value in {**defaults, **spec}.items() if value is not None}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**body, "template": template}}


NON_INDEXED: Obj = {"completionMode": "NonIndexed"}
MARK = {names.GANG_LABEL: "job"}

#: Every rule of ``decide`` from both sides. Compared with it, so no expectation is written here.
TABLE: dict[str, Obj] = {
    "automatic": {},
    "generateName": {"name": None},
    "suspended": {"suspend": True},
    "two": {"parallelism": 2, "completions": 2},
    "one": {"parallelism": 1, "completions": 1},
    "turns": {"completions": 8},
    "parallelism-left-out": {"parallelism": None, "completions": 2},
    "both-left-out": {"parallelism": None, "completions": None, **NON_INDEXED},
    "mode-left-out": {"completionMode": None},
    "non-indexed": NON_INDEXED,
    "work-queue": {"completions": None, **NON_INDEXED},
    "parallelism-0": {"parallelism": 0},
    "none": {"annotations": {POLICY: "none"}},
    "none-but-marked": {"annotations": {POLICY: "none"}, "labels": MARK},
    "marked-by-hand": {"labels": MARK},
    "marked-by-hand-no-gang": {"labels": MARK, **NON_INDEXED},
    "marked-otherwise": {"labels": {names.GANG_LABEL: "yes"}},
    "other-labels": {"labels": {"app": "x"}},
    "gang": {"annotations": {POLICY: "gang"}, **NON_INDEXED},
    "gang-work-queue": {"annotations": {POLICY: "gang"}, "completions": None, **NON_INDEXED},
    "gang-one": {"annotations": {POLICY: "gang"}, "parallelism": 1, "completions": 1},
    "gang-turns": {"annotations": {POLICY: "gang"}, "completions": 8},
    "gang-0": {"annotations": {POLICY: "gang"}, "parallelism": 0},
    "basic": {"annotations": {POLICY: "basic"}, **NON_INDEXED},
    "basic-0": {"annotations": {POLICY: "basic"}, "parallelism": 0},
    "basic-min-count": {"annotations": {POLICY: "basic", MIN_COUNT: "2"}},
    "bad-policy": {"annotations": {POLICY: "gagn"}},
    "bad-policy-no-gang": {"annotations": {POLICY: "Gang"}, **NON_INDEXED},
    "bad-policy-0": {"annotations": {POLICY: "x"}, "parallelism": 0},
    "empty-policy": {"annotations": {POLICY: ""}, **NON_INDEXED},
    "other-annotations": {"annotations": {"a": "b"}},
    **{
        f"min-count-{text!r}": {"annotations": {MIN_COUNT: text}}
        for text in ("1", "3", "4", "5", "0", "-1", "+4", " 4", "4.0", "four", "", "04", "0" * 30 + "2", "9" * 30, "٣")
    },
    "min-count-no-gang": {"annotations": {MIN_COUNT: "2"}, **NON_INDEXED},
    "mode-all": {"annotations": {names.DISRUPTION_MODE_ANNOTATION: "all"}},
    "mode-single": {"annotations": {names.DISRUPTION_MODE_ANNOTATION: "single"}},
    "mode-bad": {"annotations": {names.DISRUPTION_MODE_ANNOTATION: "some"}},
    "mode-all-basic": {"annotations": {names.DISRUPTION_MODE_ANNOTATION: "all", POLICY: "basic"}},
    "topology": {"annotations": {names.TOPOLOGY_ANNOTATION: "rack"}},
    "managed-by-job-controller": {"managedBy": names.JOB_CONTROLLER},
    "managed-by-other": {"managedBy": "example.com/other"},
    "owned-by-cronjob": {"owner": ("CronJob", "batch/v1")},
    "owned-by-other": {"owner": ("JobSet", "jobset.x-k8s.io/v1alpha2")},
    "default-scheduler": {"pod": {"schedulerName": "default-scheduler"}},
    "our-scheduler": {"pod": {"schedulerName": "phalanx"}},
    "our-scheduler-no-gang": {"pod": {"schedulerName": "phalanx"}, **NON_INDEXED},
    "other-scheduler": {"pod": {"schedulerName": "volcano"}},
    "other-scheduler-gang": {"pod": {"schedulerName": "volcano"}, "annotations": {POLICY: "gang"}},
    "names-a-group": {"pod": {"schedulingGroup": {"podGroupName": "g"}}},
    "names-a-group-by-label": {"labels": {names.POD_GROUP_LABEL: "g"}},
    "native-gang": {"scheduling": {"schedulingPolicy": {"gang": {}}}, **NON_INDEXED},
    "native-gang-2": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}}},
    "native-basic": {"scheduling": {"schedulingPolicy": {"basic": {}}}},
    "native-basic-no-gang": {"scheduling": {"schedulingPolicy": {"basic": {}}}, **NON_INDEXED},
    "native-mode-only": {"scheduling": {"disruptionMode": {"single": {}}}},
    "native-all": {"scheduling": {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}},
    "native-and-annotated": {
        "scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        "annotations": {MIN_COUNT: "2", POLICY: "gang"},
    },
    "native-empty": {"scheduling": {}},
    "native-empty-no-gang": {"scheduling": {}, **NON_INDEXED},
}


@pytest.fixture(scope="module", params=["workload", "native-jobs"])
def cluster(request: pytest.FixtureRequest, own_cluster: OwnCluster) -> Iterator[Cluster]:
    """The 1.37 overlay, with one namespace that opted in and one that did not."""
    with own_cluster(nodes=1, profile=request.param) as made:
        made.kubectl_run("apply", "--validate=strict", "-k", str(ROOT / "manifests/overlays/1.37"))
        for namespace in (ENABLED, OTHER):
            made.kubectl_run("create", "namespace", namespace)
        made.kubectl_run("label", "namespace", ENABLED, f"{names.JOBS_LABEL}=enabled")
        with Kube(made.kubeconfig) as kube:
            # The overlay before was the demo's, which takes all namespaces.
            until(lambda: marked(stored(kube, {})) and not marked(stored(kube, {"namespace": OTHER})))
        yield made


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    with Kube(cluster.kubeconfig) as requests:
        yield requests


@pytest.fixture(scope="module")
def native(cluster: Cluster) -> bool:
    return cluster.state.profile == "native-jobs"


def stored(kube: Kube, fields: Obj) -> Job:
    return typed(dry_run(kube, manifest(**fields)))


def dry_run(kube: Kube, obj: Obj) -> Obj:
    resource = "jobs" if obj["kind"] == "Job" else "pods"
    return kube.create(resource, obj, obj["metadata"]["namespace"], dry_run=True)


def typed(obj: Obj) -> Job:
    return msgspec.convert(obj, Job)


def label_of(job: Obj) -> str | None:
    value: str | None = job["spec"]["template"]["metadata"].get("labels", {}).get(names.GANG_LABEL)
    return value


def pods_of(kube: Kube, job: str, count: int) -> list[Pod]:
    def look() -> list[Obj]:
        found = kube.list("pods", ENABLED, labelSelector=f"{names.GANG_LABEL}=job")
        mine = [pod for pod in found if pod["metadata"]["ownerReferences"][0]["name"] == job]
        return mine if len(mine) == count else []

    return msgspec.convert(until(look, what=f"Job {job} has {count} pods"), list[Pod])


@pytest.mark.parametrize("case", TABLE)
def test_marks_what_decide_takes_and_nothing_else(kube: Kube, case: str) -> None:
    sent = manifest(**TABLE[case])
    answer = dry_run(kube, sent)
    verdict = decide(typed(answer))
    assert marked(typed(answer)) == isinstance(verdict, Eligible | Misconfigured), verdict
    if isinstance(verdict, Ineligible):
        expected = "none" if label_of(sent) == "job" else label_of(sent)
        assert label_of(answer) == expected, "only a mark that leads nowhere is taken away"


@pytest.mark.parametrize("case", TABLE)
def test_what_a_server_drops_is_not_lost(kube: Kube, case: str) -> None:
    """``spec.scheduling`` without its gate: what is decided is what the user wrote, not what was stored."""
    sent = manifest(**TABLE[case])
    wanted, decided = decide(typed(sent)), decide(stored(kube, TABLE[case]))
    if isinstance(wanted, Eligible):
        assert decided == wanted
    else:
        assert type(decided) is type(wanted)


@pytest.mark.parametrize("case", TABLE)
def test_other_namespaces_are_left_alone(kube: Kube, native: bool, case: str) -> None:
    sent = manifest(**{**TABLE[case], "namespace": OTHER})
    answer = dry_run(kube, sent)
    assert label_of(answer) == label_of(sent)
    assert answer["metadata"].get("annotations", {}) == sent["metadata"].get("annotations", {})
    if native:
        assert answer["spec"].get("scheduling") == sent["spec"].get("scheduling")


@pytest.mark.parametrize("case", TABLE)
def test_asks_natively_for_what_decide_says(kube: Kube, native: bool, case: str) -> None:
    sent = manifest(**TABLE[case])
    answer = dry_run(kube, sent)
    asked = answer["spec"].get("scheduling")
    if not native:
        assert asked is None, "a server without the gate drops it"
        return
    verdict, before = decide(typed(sent)), sent["spec"].get("scheduling", {})
    if isinstance(verdict, Ineligible):
        assert asked == sent["spec"].get("scheduling")
    elif isinstance(verdict, Eligible):
        policy, mode = verdict.template.scheduling_policy, verdict.template.disruption_mode
        if policy.basic is not None:
            assert asked["schedulingPolicy"] == {"basic": {}}
        else:
            assert policy.gang is not None
            gang = asked["schedulingPolicy"]["gang"]
            assert gang.get("minCount", typed(answer).spec.parallelism) == policy.gang.min_count
            explicit = MIN_COUNT in sent["metadata"].get("annotations", {}) or "minCount" in str(before)
            assert ("minCount" in gang) == explicit, "left out, it follows an elastic Job's parallelism"
        assert asked.get("disruptionMode") == (mode.model_dump(exclude_none=True) if mode else None)
    elif typed(answer).spec.parallelism:
        assert next(iter(asked["schedulingPolicy"])) in ("gang", "basic")


@pytest.mark.parametrize("name", ["short", "n" * 61, "dotted.name.of-a-job", f"{'long-name-' * 5}x.y", None])
def test_pods_name_the_group_that_names_py_computes(kube: Kube, native: bool, name: str | None) -> None:
    sent = manifest(name, annotations={POLICY: "gang"}, parallelism=1, completions=1, **NON_INDEXED)
    job = typed(kube.create("jobs", sent, ENABLED))
    if native and ("." in job.metadata.name or len(job.metadata.name) > 57):
        pytest.skip("kube-controller-manager makes no pod for a Job of such a name by itself")
    (pod,) = pods_of(kube, job.metadata.name, 1)
    assert pod.spec.scheduler_name == names.SCHEDULER_NAME
    assert pod.spec.scheduling_group is not None
    if not native:  # kube-controller-manager's own integration names the group itself
        group = names.group_name(job.metadata.name, job.metadata.uid)
        assert len(group) <= 63
        assert pod.spec.scheduling_group.pod_group_name == group
        assert group_of(pod, job) == GroupKey(ENABLED, group)


def test_a_cronjobs_child_is_a_root(cluster: Cluster, kube: Kube) -> None:
    template = {"spec": manifest("template", parallelism=2, completions=2)["spec"]}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": template},
    }
    cluster.kubectl_run("create", "-n", ENABLED, "-f", "-", input=json.dumps(cron))
    cluster.kubectl_run("create", "job", "-n", ENABLED, "cron-child", "--from=cronjob/c")
    child = typed(kube.get("jobs", "cron-child", ENABLED))
    for pod in pods_of(kube, "cron-child", 2):
        assert pod.spec.scheduling_group is not None
        assert pod.spec.scheduling_group.pod_group_name == names.group_name("cron-child", child.metadata.uid)


def test_a_job_made_again_under_its_name_gets_another_group(kube: Kube) -> None:
    seen = set()
    for _ in range(2):
        kube.create("jobs", manifest("again", parallelism=2, completions=2), ENABLED)
        for pod in pods_of(kube, "again", 2):
            assert pod.spec.scheduling_group is not None
            seen.add(pod.spec.scheduling_group.pod_group_name)
        kube.delete("jobs", "again", ENABLED, propagationPolicy="Foreground")
        until(lambda: kube.find("jobs", "again", ENABLED) is None, what="the Job is gone")
    assert len(seen) == 2


def test_only_marked_pods_of_jobs_are_stamped(kube: Kube) -> None:
    def spec_of(pod_spec: Obj | None = None, **metadata: Any) -> tuple[str, Obj | None]:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": ENABLED, **metadata},
            "spec": {"containers": [{"name": "w", "image": "example.com/w"}], **(pod_spec or {})},
        }
        spec = dry_run(kube, pod)["spec"]
        return spec["schedulerName"], spec.get("schedulingGroup")

    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "o", "uid": "12345678-9abc-4def", "controller": True}
    untouched = ("default-scheduler", None)
    assert spec_of() == untouched
    assert spec_of(labels=MARK) == untouched
    assert spec_of(ownerReferences=[job]) == untouched
    assert spec_of(labels=MARK, ownerReferences=[{**job, "apiVersion": "example.com/v1"}]) == untouched
    assert spec_of(labels=MARK, ownerReferences=[{**job, "controller": False}]) == untouched
    assert spec_of(labels={names.GANG_LABEL: "none"}, ownerReferences=[job]) == untouched
    stamped = ("phalanx", {"podGroupName": "o-123456789abc"})
    assert spec_of(labels=MARK, ownerReferences=[job]) == stamped
    other = {**job, "kind": "Other", "apiVersion": "example.com/v1", "uid": "u", "controller": False}
    assert spec_of(labels=MARK, ownerReferences=[other, job]) == stamped
    ours = {"schedulerName": "volcano"}
    assert spec_of(ours, labels=MARK, ownerReferences=[job]) == ("volcano", stamped[1])
    theirs = {"podGroupName": "theirs"}
    named = {"schedulingGroup": theirs}
    assert spec_of(named, labels=MARK, ownerReferences=[job]) == ("phalanx", theirs), "it names its group already"
    labelled = {**MARK, names.POD_GROUP_LABEL: "mine"}
    assert spec_of(labels=labelled, ownerReferences=[job]) == ("phalanx", None), "it names its group already"


@pytest.mark.parametrize("server_side", [False, True])
@pytest.mark.parametrize("scheduler", [{}, {"schedulerName": "default-scheduler"}])
def test_apply_again_and_diff_stay_clean(cluster: Cluster, kube: Kube, server_side: bool, scheduler: Obj) -> None:
    name = f"clean-{server_side}-{len(scheduler)}".lower()
    body = json.dumps(manifest(name, suspend=True, pod=scheduler))
    flags = ["--server-side"] if server_side else []
    cluster.kubectl_run("apply", *flags, "-f", "-", input=body)
    cluster.kubectl_run("apply", *flags, "-f", "-", input=body)
    cluster.kubectl_run("diff", *flags, "-f", "-", input=body)
    assert kube.get("jobs", name, ENABLED)["metadata"]["generation"] == 1


def test_the_manifests_are_applied_again_without_a_change(cluster: Cluster) -> None:
    again = cluster.kubectl_run("apply", "--validate=strict", "-k", str(ROOT / "manifests/overlays/1.37"))
    assert [line for line in again.stdout.splitlines() if not line.endswith("unchanged")] == []


@pytest.mark.parametrize("overlay", ["base", "overlays/1.37", "overlays/demo"])
def test_every_overlay_passes_strict_validation(cluster: Cluster, overlay: str) -> None:
    cluster.kubectl_run("apply", "--validate=strict", "--dry-run=server", "-k", str(ROOT / "manifests" / overlay))


@pytest.mark.parametrize("sample", sorted((ROOT / "manifests/samples").glob("*.yaml")), ids=lambda path: path.stem)
def test_samples(cluster: Cluster, sample: Path) -> None:
    done = cluster.kubectl_run(
        "create", "-n", ENABLED, "--validate=strict", "--dry-run=server", "-o", "json", "-f", str(sample)
    )
    assert marked(typed(json.loads(done.stdout))) == (sample.stem != "single")


READ = ("get", "list", "watch")
ALLOWED: dict[str, set[tuple[str, str]]] = {
    "controllers": {
        *((verb, "jobs.batch") for verb in READ),
        *((verb, "pods") for verb in READ),
        *((verb, "priorityclasses.scheduling.k8s.io") for verb in READ),
        *((verb, "workloads.scheduling.k8s.io") for verb in (*READ, "create", "patch")),
        *((verb, "podgroups.scheduling.k8s.io") for verb in (*READ, "create", "patch", "delete")),
        *((verb, "events.events.k8s.io") for verb in ("create", "patch")),
    },
    "scheduler": {
        *((verb, "jobs.batch") for verb in READ),
        *((verb, "pods") for verb in READ),
        *((verb, "nodes") for verb in READ),
        *((verb, "podgroups.scheduling.k8s.io") for verb in READ),
        ("create", "pods/binding"),
        ("patch", "pods/status"),
        ("patch", "podgroups.scheduling.k8s.io/status"),
        *((verb, "events.events.k8s.io") for verb in ("create", "patch")),
    },
}
KINDS = [
    *("jobs.batch", "pods", "nodes", "secrets", "configmaps", "namespaces", "events.events.k8s.io"),
    *("priorityclasses.scheduling.k8s.io", "workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io"),
    *("pods/binding", "pods/status", "pods/eviction", "podgroups.scheduling.k8s.io/status", "jobs.batch/status"),
]


@pytest.mark.parametrize("who", ALLOWED)
def test_permissions_are_what_is_used_and_no_more(cluster: Cluster, who: str) -> None:
    def can(verb: str, kind: str, namespace: str) -> bool:
        whole, _, subresource = kind.partition("/")
        resource, _, group = whole.partition(".")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "namespace": namespace}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        allowed: bool = account.request("POST", path, review)["status"]["allowed"]
        return allowed

    with Kube(cluster.kubeconfig_as(who)) as account:
        for kind in KINDS:
            for verb in ("get", "list", "create", "patch", "delete", "update"):
                wanted = (verb, kind) in ALLOWED[who]
                assert can(verb, kind, OTHER) == wanted, (who, verb, kind)
        for verb in ("create", "delete"):
            assert can(verb, "jobs.batch", names.SYSTEM_NAMESPACE) == (who == "controllers"), verb
