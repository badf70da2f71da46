"""Job -> Workload -> PodGroup on a real API server, with the controllers as users run them and no scheduler of ours:
pods are bound by the administrator where a bound pod is needed."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from api.names import group_name
from cluster import Cluster
from controllers.app import Controllers
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.exchange import CallNext, Request, Response
from runtime.kr8s_seam import connect
from runtime.manager import Manager
from tests.kind.audit import Audited, AuditLog
from tests.kind.checks import wrong_objects
from tests.kind.conftest import PROGRAM, OwnCluster, Phalanx, fresh_namespace
from tests.kind.kube import Kube, KubeError, Obj, job, pod, pod_group, until

pytestmark = [pytest.mark.timeout(180), pytest.mark.needs("fake nodes")]

GANG = {"phalanx.dev/gang": "job"}


@pytest.fixture(scope="module")
def cluster(own_cluster: OwnCluster) -> Iterator[Cluster]:
    with own_cluster(nodes=4) as made:
        yield made


@pytest.fixture
def kube(cluster: Cluster) -> Iterator[Kube]:
    with Kube(cluster.kubeconfig) as requests:
        yield requests


@pytest.fixture(scope="module")
def processes(cluster: Cluster) -> Phalanx:
    return Phalanx(cluster)


@pytest.fixture
def controllers(processes: Phalanx) -> Phalanx:
    if not processes.cluster.alive("controllers"):
        processes.start("controllers")
    return processes


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    with fresh_namespace(kube, "jobs") as name:
        yield name


def key(made: Obj) -> str:
    return group_name(made["metadata"]["name"], made["metadata"]["uid"])


def leaving(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def named_groups(pods: list[Obj]) -> set[str]:
    return {p["spec"]["schedulingGroup"]["podGroupName"] for p in pods}


def priority_class(kube: Kube, name: str, **fields: Any) -> None:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, **fields}
    kube.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


def child_of_a_cronjob(cluster: Cluster, kube: Kube, namespace: str) -> Obj:
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job("x", 2)["spec"]}},
    }
    kube.request("POST", f"/apis/batch/v1/namespaces/{namespace}/cronjobs", cron)
    cluster.kubectl_run("create", "job", "-n", namespace, "child", "--from=cronjob/c")
    return kube.get("jobs", "child", namespace)


def group_of(kube: Kube, made: Obj, *, other_than: str = "") -> Obj:
    """Wait for the PodGroup of a Job, not in deletion and not of that uid."""

    def look() -> Obj | None:
        found = kube.find("podgroups", key(made), made["metadata"]["namespace"])
        return None if found is None or leaving(found) or found["metadata"]["uid"] == other_than else found

    found = until(look, what=f"PodGroup {key(made)} is there")
    assert found is not None
    return found


def members(kube: Kube, namespace: str, made: Obj, count: int) -> list[Obj]:
    """Wait for the live pods of a Job."""

    def look() -> list[Obj]:
        selector = f"batch.kubernetes.io/controller-uid={made['metadata']['uid']}"
        found = [
            p for p in kube.list("pods", namespace, labelSelector=selector) if "deletionTimestamp" not in p["metadata"]
        ]
        return found if len(found) == count else []

    return until(look, what=f"{count} pods of {made['metadata']['name']}")


def bind(kube: Kube, made: Obj, node: str = "node-0000") -> None:
    metadata = made["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    where = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
    kube.request("POST", where, body)


def phase(kube: Kube, namespace: str, name: str) -> str:
    found = kube.find("pods", name, namespace)
    return found["status"]["phase"] if found else "gone"


def events(kube: Kube, made: Obj, reason: str) -> list[str]:
    metadata = made["metadata"]
    about = kube.events_about(metadata["namespace"], "Job", metadata["name"])
    return [event["note"] for event in about if event["reason"] == reason]


def stays(check: object, seconds: float = 2.0) -> None:
    """Hold ``check`` true for a while: what must not happen would have."""
    assert callable(check)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert check()
        time.sleep(0.1)


def quiet(cluster: Cluster, namespace: str, seconds: float = 3.0) -> None:
    """No write of ours in a namespace: others of the shared cluster may be on their way out."""
    audit = AuditLog(cluster.audit_log)
    time.sleep(1.0)  # for Events that are on their way
    mark = audit.mark()
    time.sleep(seconds)
    assert [write for write in audit.our_writes(mark) if write.namespace == namespace] == []


#: Resource and namespace of the Job by which the controllers find out whether kube-controller-manager makes groups.
PROBE = ("jobs", "phalanx-system")


def our_writes(cluster: Cluster, namespace: str, mark: int) -> list[Audited]:
    """Our writes in a test's namespace and our own: what an earlier test left in its own may well need something."""
    places = (namespace, "phalanx-system")
    return [event for event in AuditLog(cluster.audit_log).our_writes(mark) if event.namespace in places]


class TestObjects:
    def test_one_workload_and_one_group_and_then_no_write(
        self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        mark = AuditLog(cluster.audit_log).mark()
        made = kube.create("jobs", job("gang", 8), namespace)
        group = group_of(kube, made)
        workload = kube.get("workloads", key(made), namespace)
        assert workload["spec"]["controllerRef"] == {"apiGroup": "batch", "kind": "Job", "name": "gang"}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gang", "uid": made["metadata"]["uid"]}
        owner |= {"controller": True, "blockOwnerDeletion": True}
        assert workload["metadata"]["ownerReferences"] == [owner]
        assert group["metadata"]["ownerReferences"][0] == owner
        assert group["metadata"]["ownerReferences"][1]["uid"] == workload["metadata"]["uid"]
        assert group["spec"]["workloadRef"] == {"workloadName": key(made), "templateName": "pods"}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 8}}
        for reason in ("WorkloadCreated", "PodGroupCreated"):
            until(lambda reason=reason: len(events(kube, made, reason)) == 1, what=reason)  # type: ignore[misc]
        quiet(cluster, namespace)
        # The probe Job of a process that has just started may still have been there.
        writes = [e for e in our_writes(cluster, namespace, mark) if (e.resource, e.namespace) != PROBE]
        assert sorted((e.verb, e.resource, e.code) for e in writes) == [
            ("create", "events", 201),
            ("create", "events", 201),
            ("create", "podgroups", 201),
            ("create", "workloads", 201),
        ]

    def test_every_shape_of_job(self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        asked = {"phalanx.dev/policy": "gang"}
        made = [
            kube.create("jobs", job("two", 2), namespace),
            kube.create("jobs", job("n" * 60, 2), namespace),
            kube.create("jobs", job("a.dotted.name", 3, indexed=False, annotations=asked), namespace),
            kube.create("jobs", job("six-of-eight", 8, annotations={"phalanx.dev/min-count": "6"}), namespace),
        ]
        generated = job("", 2)
        generated["metadata"] = {"generateName": "made-"}
        made.append(kube.create("jobs", generated, namespace))
        alone = kube.create("jobs", job("alone", 2, completions=8), namespace)
        made.append(child_of_a_cronjob(cluster, kube, namespace))
        minimum = [group_of(kube, each)["spec"]["schedulingPolicy"]["gang"]["minCount"] for each in made]
        assert minimum == [2, 2, 3, 6, 2, 2]
        for each in made:
            pods = members(kube, namespace, each, each["spec"]["parallelism"])
            assert named_groups(pods) == {key(each)}
        assert wrong_objects(kube, [namespace]) == []
        assert kube.find("podgroups", key(alone), namespace) is None
        assert events(kube, alone, "JobNotEligible") == []

    def test_they_go_with_their_job_and_its_namesake_gets_its_own(
        self, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        first = kube.create("jobs", job("again", 3), namespace)
        group_of(kube, first)
        kube.delete("jobs", "again", namespace, propagationPolicy="Background")
        second = kube.create("jobs", job("again", 3), namespace)
        group_of(kube, second)
        assert key(first) != key(second)
        for resource in ("workloads", "podgroups", "pods"):
            count = 3 if resource == "pods" else 1
            until(lambda r=resource, n=count: len(kube.list(r, namespace)) == n, what=f"the old {resource} are gone")  # type: ignore[misc]

    def test_an_impossible_annotation_holds_the_job_until_it_is_mended(
        self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        made = kube.create("jobs", job("wrong", 2, annotations={"phalanx.dev/min-count": "7"}), namespace)
        (note,) = until(lambda: events(kube, made, "FailedWorkloadCompilation"))
        assert '"7" is not a number from 1 to 2' in note
        assert [p["spec"]["schedulerName"] for p in members(kube, namespace, made, 2)] == ["phalanx"] * 2
        quiet(cluster, namespace, 1.5)
        assert kube.list("podgroups", namespace) == kube.list("workloads", namespace) == []
        kube.patch("jobs", "wrong", namespace, {"metadata": {"annotations": {"phalanx.dev/min-count": "1"}}})
        assert group_of(kube, made)["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}

    def test_f2_a_strangers_object_is_left_alone_until_it_is_gone(
        self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        controllers.stop("controllers")
        made = kube.create("jobs", job("taken", 2), namespace)
        theirs = kube.create("podgroups", pod_group(key(made), 1), namespace)
        controllers.start("controllers")
        (note,) = until(lambda: events(kube, made, "UnsupportedWorkloadStructure"))
        assert f"PodGroup {key(made)} exists already and is controlled by nobody" in note
        quiet(cluster, namespace)
        now = kube.get("podgroups", key(made), namespace)
        assert now["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
        kube.delete("podgroups", key(made), namespace)
        ours = group_of(kube, made, other_than=theirs["metadata"]["uid"])
        assert ours["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]

    def test_jobs_made_while_we_were_down_are_taken_on_unless_a_pod_was_bound_outside_a_group(
        self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        controllers.stop("controllers")
        waiting = kube.create("jobs", job("waiting", 2), namespace)
        loose = job("loose", 2)
        loose["spec"]["template"]["spec"]["schedulerName"] = "phalanx"
        outside = f"{namespace}-out"
        kube.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": outside}})
        # The demo overlay takes all namespaces: a Job from before the policies is made by taking the mark's name.
        loose["metadata"]["annotations"] = {"phalanx.dev/policy": "none"}
        started = kube.create("jobs", loose, outside)
        bind(kube, members(kube, outside, started, 2)[0])
        kube.patch("jobs", "loose", outside, {"metadata": {"annotations": {"phalanx.dev/policy": "gang"}}})
        controllers.start("controllers")
        group_of(kube, waiting)
        (note,) = until(lambda: events(kube, started, "JobNotEligible"))
        assert "were bound before it had a group" in note
        assert kube.list("workloads", outside) == []
        kube.delete("namespaces", outside)

    def test_a_restart_writes_nothing(self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        for name in ("a", "b"):
            group_of(kube, kube.create("jobs", job(name, 2), namespace))
        quiet(cluster, namespace, 1.5)
        mark = AuditLog(cluster.audit_log).mark()
        controllers.stop("controllers")
        controllers.start("controllers")
        controllers.wait_for("controllers", "kube-controller-manager makes no")
        time.sleep(1)
        writes = our_writes(cluster, namespace, mark)
        assert {(e.resource, e.namespace) for e in writes if e.resource != "events"} <= {PROBE}
        until(lambda: kube.list("jobs", "phalanx-system") == [], what="the probe is gone")

    def test_an_elastic_job(self, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        made = kube.create("jobs", job("elastic", 3), namespace)
        group_of(kube, made)

        def minimum(count: int) -> bool:
            spec = kube.get("podgroups", key(made), namespace)["spec"]["schedulingPolicy"]
            template = kube.get("workloads", key(made), namespace)["spec"]["podGroupTemplates"][0]
            return spec == template["schedulingPolicy"] == {"gang": {"minCount": count}}

        kube.patch("jobs", "elastic", namespace, {"spec": {"parallelism": 9, "completions": 9}})
        until(lambda: minimum(9))
        kube.patch("jobs", "elastic", namespace, {"spec": {"parallelism": 4}})
        until(lambda: minimum(4))
        kube.patch("podgroups", key(made), namespace, {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}})
        until(lambda: minimum(4))

    def test_a_priority_class_that_never_preempts(self, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        priority_class(kube, namespace, value=7, preemptionPolicy="Never")
        sent = job("polite", 2)
        sent["spec"]["template"]["spec"]["priorityClassName"] = namespace
        made = kube.create("jobs", sent, namespace)
        group = group_of(kube, made)
        assert (group["spec"]["priorityClassName"], group["spec"]["priority"]) == (namespace, 7)
        # Without the gate PodGroupPreemptionPolicy the server drops it in silence.
        kept = until(lambda: kube.get("podgroups", key(made), namespace)["metadata"].get("annotations"))
        assert kept == {"phalanx.dev/dropped-fields": '{"preemptionPolicy":"Never"}'}
        until(lambda: len(events(kube, made, "DroppedFields")) == 2)


class TestSuspension:
    @pytest.mark.parametrize("bound", [0, 3])
    def test_suspended_and_resumed(self, kube: Kube, controllers: Phalanx, namespace: str, bound: int) -> None:
        made = kube.create("jobs", job("s", 3), namespace)
        group, workload = group_of(kube, made), kube.get("workloads", key(made), namespace)
        for each in members(kube, namespace, made, 3)[:bound]:
            bind(kube, each)
        for _ in range(3):
            kube.patch("jobs", "s", namespace, {"spec": {"suspend": True}})
            until(
                lambda: (
                    "deletionTimestamp"
                    in (kube.find("podgroups", key(made), namespace) or {"metadata": {"deletionTimestamp": ""}})[
                        "metadata"
                    ]
                )
            )
            kube.patch("jobs", "s", namespace, {"spec": {"suspend": False}})
            successor = group_of(kube, made, other_than=group["metadata"]["uid"])
            assert successor["spec"]["schedulingPolicy"] == group["spec"]["schedulingPolicy"]
            for each in members(kube, namespace, made, 3)[:bound]:
                bind(kube, each)
            group = successor
        assert kube.get("workloads", key(made), namespace)["metadata"]["uid"] == workload["metadata"]["uid"]
        assert wrong_objects(kube, [namespace]) == []

    def test_a_job_made_suspended_has_a_workload_only(
        self, cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        made = kube.create("jobs", job("later", 3, suspend=True), namespace)
        until(lambda: kube.find("workloads", key(made), namespace))
        quiet(cluster, namespace, 1.5)
        assert kube.list("podgroups", namespace) == []
        kube.patch("jobs", "later", namespace, {"spec": {"suspend": False}})
        group_of(kube, made)


#: Keeps a pod of ours from its scheduler; a bind by hand does not look at it.
NOWHERE = {"no-node": "has-this"}


class TestProtection:
    def make(self, kube: Kube, namespace: str, bound: int, waiting: int) -> list[str]:
        """A PodGroup of no Job with members, of which so many run."""
        kube.create("podgroups", pod_group("g", bound + waiting), namespace)
        found = []
        for index in range(bound + waiting):
            made = kube.create("pods", pod(f"p{index}", group="g", selector=NOWHERE), namespace)
            if index < bound:
                bind(kube, made)
                until(lambda name=f"p{index}": phase(kube, namespace, name) == "Running")  # type: ignore[misc]
            found.append(f"p{index}")
        return found

    def gone(self, kube: Kube, namespace: str) -> bool:
        return kube.find("podgroups", "g", namespace) is None

    def test_f5_it_stays_while_a_pod_that_was_bound_is_live(
        self, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        first, second, _ = self.make(kube, namespace, bound=2, waiting=1)
        kube.finish(namespace, [second])
        until(lambda: phase(kube, namespace, second) == "Succeeded")
        kube.delete("podgroups", "g", namespace)
        stays(lambda: not self.gone(kube, namespace))
        kube.finish(namespace, [first])
        until(lambda: phase(kube, namespace, first) == "Succeeded")
        # One that was never bound is still there: upstream alone would keep the group for ever.
        until(lambda: self.gone(kube, namespace), 10)
        assert phase(kube, namespace, "p2") == "Pending"

    def test_pods_that_were_never_bound_do_not_hold_it(self, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        self.make(kube, namespace, bound=0, waiting=3)
        kube.delete("podgroups", "g", namespace)
        until(lambda: self.gone(kube, namespace), 10)

    def test_a_bind_that_lands_after_the_deletion_keeps_it(
        self, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        self.make(kube, namespace, bound=0, waiting=2)
        kube.delete("podgroups", "g", namespace)
        bind(kube, kube.get("pods", "p1", namespace))
        stays(lambda: not self.gone(kube, namespace), 3)
        kube.delete("pods", "p1", namespace)
        until(lambda: self.gone(kube, namespace), 10)

    def test_other_finalizers_are_not_ours_to_remove(self, kube: Kube, controllers: Phalanx, namespace: str) -> None:
        self.make(kube, namespace, bound=0, waiting=1)
        kube.patch(
            "podgroups",
            "g",
            namespace,
            {"metadata": {"finalizers": ["example.com/mine", "scheduling.k8s.io/podgroup-protection"]}},
        )
        kube.delete("podgroups", "g", namespace)
        until(lambda: kube.get("podgroups", "g", namespace)["metadata"]["finalizers"] == ["example.com/mine"], 10)
        kube.patch("podgroups", "g", namespace, {"metadata": {"finalizers": []}})

    def test_f8_an_incomplete_group_can_be_deleted_with_all_its_pods(
        self, kube: Kube, controllers: Phalanx, namespace: str
    ) -> None:
        kube.create("podgroups", pod_group("g", 4), namespace)
        for index in range(3):
            kube.create("pods", pod(f"p{index}", group="g"), namespace)
        kube.delete("podgroups", "g", namespace)
        for index in range(3):
            kube.delete("pods", f"p{index}", namespace)
        until(lambda: not kube.list("pods", namespace) and self.gone(kube, namespace), 10)


def test_killed_at_any_moment(cluster: Cluster, kube: Kube, controllers: Phalanx, namespace: str) -> None:
    """SIGKILL in the middle of the work, with Jobs made, suspended, resized and deleted meanwhile."""
    rng = random.Random(7)
    live: dict[str, Obj] = {}
    for round_ in range(4):
        for index in range(8):
            name = f"r{round_}-{index}"
            live[name] = kube.create("jobs", job(name, rng.randint(2, 4), cpu="10m"), namespace)
        time.sleep(rng.uniform(0, 0.2))
        controllers.kill("controllers")
        for name in rng.sample(sorted(live), 6):
            change = rng.choice(["suspend", "resume", "delete", "resize"])
            if change == "delete":
                kube.delete("jobs", name, namespace, propagationPolicy="Background")
                del live[name]
            elif change == "resize":
                kube.patch("jobs", name, namespace, {"spec": {"parallelism": 5, "completions": 5}})
            else:
                kube.patch("jobs", name, namespace, {"spec": {"suspend": change == "suspend"}})
        controllers.start("controllers", wait=False)
    controllers.wait_for("controllers", '"working"', 60)

    def problems() -> list[str]:
        found = wrong_objects(kube, [namespace])
        groups = {g["metadata"]["name"]: g for g in kube.list("podgroups", namespace)}
        for each in kube.list("jobs", namespace):
            group, name = groups.pop(key(each), None), each["metadata"]["name"]
            if each["spec"]["suspend"]:
                found += [f"Job {name} is suspended and has a group"] if group else []
            elif group is None or group["spec"]["schedulingPolicy"]["gang"]["minCount"] != each["spec"]["parallelism"]:
                found.append(f"Job {name}: its group is {group}")
        return found + [f"PodGroup {name} belongs to no Job" for name in groups]

    last: list[str] = []

    def settled() -> bool:
        last[:] = problems()
        return not last

    with contextlib.suppress(AssertionError):
        until(settled, 60)
    assert last == []
    controllers.wait_for("controllers", "kube-controller-manager makes no", 60)
    assert kube.list("jobs", "phalanx-system") == [], "the probe of a killed predecessor is cleaned up"
    quiet(cluster, namespace)


def test_a17_the_group_is_made_in_the_end_and_pods_wait(
    cluster: Cluster, kube: Kube, processes: Phalanx, namespace: str
) -> None:
    """Creating the PodGroup fails twice with 503, before the real API server."""
    processes.stop("controllers")
    failures = 0

    async def unavailable(request: Request, call_next: CallNext) -> Response:
        nonlocal failures
        if request.verb == "POST" and request.path.endswith("/podgroups") and failures < 2:
            failures += 1
            return Response(
                503, {}, b'{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"etcd is busy"}'
            )
        return await call_next(request)

    made = kube.create("jobs", job("late", 3), namespace)

    async def main() -> None:
        api = await connect(cluster.kubeconfig_as("controllers"), user_agent="phalanx-controllers")
        clock = SystemClock()
        manager = Manager(clock)
        Controllers(Client(api, clock=clock, interceptors=[unavailable]), clock).add_to(manager)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: manager.run(handle_signals=False))
            await anyio.to_thread.run_sync(lambda: group_of(kube, made))
            await anyio.to_thread.run_sync(lambda: until(lambda: events(kube, made, "PodGroupCreated")))
            manager.stop("the test is over")
        await api.aclose()

    anyio.run(main)
    assert failures == 2
    (note,) = events(kube, made, "FailedPodGroupCreate")
    assert "503" in note
    assert "etcd is busy" in note
    assert len(kube.list("workloads", namespace)) == 1
    assert all(not p["spec"].get("nodeName") for p in members(kube, namespace, made, 3))


class TestOtherServers:
    def test_where_kube_controller_manager_makes_the_groups_we_make_none(self, own_cluster: OwnCluster) -> None:
        with (
            own_cluster(nodes=1, profile="native-jobs") as made,
            Kube(made.kubeconfig) as kube,
            fresh_namespace(kube, "n") as namespace,
        ):
            processes = Phalanx(made)
            processes.start("controllers")
            processes.wait_for(
                "controllers", "kube-controller-manager makes the Workloads and PodGroups of Jobs itself"
            )
            theirs = kube.create("jobs", job("theirs", 2, annotations={"phalanx.dev/min-count": "1"}), namespace)
            long = kube.create("jobs", job("n" * 60, 2), namespace)
            child = child_of_a_cronjob(made, kube, namespace)
            (group,) = named_groups(members(kube, namespace, theirs, 2))
            assert group != key(theirs)
            assert kube.get("podgroups", group, namespace)["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}
            assert kube.find("workloads", key(theirs), namespace) is None
            # It leaves a CronJob's children alone, and stalls over long names: those are ours.
            group_of(kube, child)
            until(lambda: len(kube.list("pods", namespace)) == 6, 60, "its back-off is over")
            (group,) = named_groups(members(kube, namespace, long, 2))
            assert group == key(long)
            for each in (theirs, long, child):
                uid = each["metadata"]["uid"]
                workloads = kube.list("workloads", namespace)
                owned = [w for w in workloads if w["metadata"]["ownerReferences"][0]["uid"] == uid]
                assert len(owned) == 1

    def test_the_gate_for_preemption_policies_and_a_default_class_that_never_preempts(
        self, own_cluster: OwnCluster
    ) -> None:
        with (
            own_cluster(nodes=1, feature_gates={"*": {"PodGroupPreemptionPolicy": True}}) as made,
            Kube(made.kubeconfig) as kube,
            fresh_namespace(kube, "p") as namespace,
        ):
            priority_class(kube, "never", value=7, preemptionPolicy="Never")
            processes = Phalanx(made)
            processes.start("controllers")
            sent = job("polite", 2)
            sent["spec"]["template"]["spec"]["priorityClassName"] = "never"
            group = group_of(kube, kube.create("jobs", sent, namespace))
            assert group["spec"]["preemptionPolicy"] == "Never"
            assert "annotations" not in group["metadata"]
            priority_class(kube, "default", value=3, preemptionPolicy="Never", globalDefault=True)
            group = group_of(kube, kube.create("jobs", job("plain", 2), namespace))
            assert (group["spec"]["priority"], group["spec"]["preemptionPolicy"]) == (3, "Never")

    def test_an_api_server_without_the_workload_api_is_one_clear_line(
        self, own_cluster: OwnCluster, tmp_path: Path
    ) -> None:
        with own_cluster(nodes=0, profile="no-gates", installed=False) as made:
            with running(made.kubeconfig, tmp_path) as process:
                process.wait_for("waiting for the cluster")
                time.sleep(4)
                lines = process.end()
            assert len(lines) == 2, "it stays, waits, and says so once"
            assert "does not serve scheduling.k8s.io/v1beta1" in lines[0]
            assert "GenericWorkload" in lines[0]


class TestAccess:
    def test_missing_permissions_are_named_and_their_return_is_noticed(
        self, cluster: Cluster, kube: Kube, processes: Phalanx, namespace: str, tmp_path: Path
    ) -> None:
        processes.stop("controllers")
        config = cluster.kubeconfig_as("controllers")
        binding = kube.get("clusterrolebindings", "phalanx-controllers")
        body = {k: binding[k] for k in ("apiVersion", "kind", "roleRef", "subjects")}
        body["metadata"] = {"name": "phalanx-controllers"}

        def restore() -> None:
            kube.create("clusterrolebindings", body)

        kube.delete("clusterrolebindings", "phalanx-controllers")
        until(lambda: not may_list(config), what="the permission is gone")
        try:
            with running(config, tmp_path) as process:
                process.wait_for("waiting for the cluster")
                made = kube.create("jobs", job("j", 2), namespace)
                restore()
                group_of(kube, made)
                lines = process.end()
        finally:
            with contextlib.suppress(KubeError):
                restore()
        waiting = [line for line in lines if "waiting for the cluster" in line]
        assert len(waiting) == 1, lines
        assert "ServiceAccount phalanx-system/phalanx-controllers lacks the RBAC verb 'list'" in waiting[0]
        assert "on podgroups.scheduling.k8s.io" in waiting[0]

    def test_a_server_that_does_not_answer(self, cluster: Cluster, tmp_path: Path) -> None:
        config = tmp_path / "config"
        port = f":{Kube(cluster.kubeconfig)._address[1]}"
        config.write_text(cluster.kubeconfig.read_text().replace(port, ":1"))
        with running(config, tmp_path) as process:
            process.wait_for("waiting for the cluster")
            time.sleep(4)
            lines = process.end()
        assert len(lines) == 2, lines
        assert "did not answer" in lines[0]
        assert "stopping" in lines[1]

    @pytest.mark.parametrize("text", [None, "not: a kubeconfig", "{"])
    def test_a_kubeconfig_that_cannot_be_used_ends_with_2(self, tmp_path: Path, text: str | None) -> None:
        config = tmp_path / "config"
        if text is not None:
            config.write_text(text)
        done = subprocess.run(
            [str(PROGRAM), "controllers", "--kubeconfig", str(config)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert str(config) in done.stderr
        assert "Traceback" not in done.stderr


class Running:
    """The controllers outside of any cluster's supervision."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def wait_for(self, text: str) -> None:
        def look() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return text in self._log.read_text()

        until(look, 60, text)

    def end(self) -> list[str]:
        """Ask it to stop, in order, and return its log."""
        assert self._process.poll() is None, self._log.read_text()
        self._process.terminate()
        assert self._process.wait(30) == 0
        assert "Traceback" not in self._log.read_text()
        return self._log.read_text().splitlines()


@contextlib.contextmanager
def running(kubeconfig: Path, tmp_path: Path) -> Iterator[Running]:
    log = tmp_path / "log"
    argv = [str(PROGRAM), "controllers", "--kubeconfig", str(kubeconfig), "--log-format", "text"]
    with log.open("wb") as file, subprocess.Popen(argv, stderr=file) as process:
        try:
            yield Running(process, log)
        finally:
            if process.poll() is None:
                process.kill()


def may_list(kubeconfig: Path) -> bool:
    with Kube(kubeconfig) as account:
        try:
            account.list("podgroups")
        except KubeError:
            return False
        return True
