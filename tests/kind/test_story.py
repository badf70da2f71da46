"""The main story on a real API server: a Job becomes a gang, starts whole or not at all, and leaves nothing."""

from __future__ import annotations

import re

import pytest

from api.names import group_name
from cluster import Cluster
from tests.kind.checks import AuditLog, Watcher, left_over, replay, settle, world_of, wrong_objects
from tests.kind.conftest import Phalanx
from tests.kind.kube import Kube, Obj, condition, initially_scheduled, job, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("phalanx"), pytest.mark.needs("fake nodes")]


def key(made: Obj) -> str:
    return group_name(made["metadata"]["name"], made["metadata"]["uid"])


def bound(kube: Kube, namespace: str, name: str, count: int, timeout: float = 30) -> list[Obj]:
    """Wait until so many pods of a Job are bound, and return all of its pods."""

    def look() -> list[Obj]:
        pods = kube.list("pods", namespace, labelSelector=f"job-name={name}")
        return pods if sum(1 for pod in pods if pod["spec"].get("nodeName")) == count else []

    return until(look, timeout, f"{count} pods of {name} are bound")


class TestGang:
    def test_a_job_becomes_workload_pod_group_and_pods_bound_together(
        self, kube: Kube, namespace: str, audit: AuditLog, watcher: Watcher, record_property
    ) -> None:
        mark = audit.mark()
        made = kube.create("jobs", job("gang", 8), namespace)
        pods = bound(kube, namespace, "gang", 8)
        assert len(pods) == 8
        assert {pod["spec"]["schedulerName"] for pod in pods} == {"phalanx"}
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {key(made)}
        assert [o["kind"] for pod in pods for o in pod["metadata"]["ownerReferences"]] == ["Job"] * 8

        (workload,) = kube.list("workloads", namespace)
        (group,) = kube.list("podgroups", namespace)
        assert workload["metadata"]["name"] == group["metadata"]["name"] == key(made)
        assert workload["spec"]["controllerRef"] == {"apiGroup": "batch", "kind": "Job", "name": "gang"}
        (template,) = workload["spec"]["podGroupTemplates"]
        assert template["name"] == "pods"
        assert template["schedulingPolicy"] == {"gang": {"minCount": 8}}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 8}}
        assert wrong_objects(kube, [namespace]) == []

        until(lambda: initially_scheduled(kube.get("podgroups", key(made), namespace))[0] == "True")
        binds = audit.binds(namespace, mark)
        assert len(binds) == 8
        spread = binds[-1].answered - binds[0].received
        print(f"8 binds within {spread * 1e3:.0f} ms")
        record_property("bind_spread_ms", round(spread * 1e3))
        assert spread < 2.0
        watcher.catch_up(namespace)
        assert replay(watcher.changes(), namespaces=[namespace]).violations == []

    def test_it_runs_to_its_end_and_nothing_of_it_stays(self, kube: Kube, namespace: str) -> None:
        made = kube.create("jobs", job("short", 4), namespace)
        pods = bound(kube, namespace, "short", 4)
        kube.finish(namespace, [pod["metadata"]["name"] for pod in pods])
        until(lambda: condition(kube.get("jobs", "short", namespace), "Complete"), what="the Job is complete")
        assert initially_scheduled(kube.get("podgroups", key(made), namespace))[0] == "True"
        kube.delete("jobs", "short", namespace, propagationPolicy="Background")
        for resource in ("pods", "podgroups", "workloads"):
            until(lambda r=resource: not kube.list(r, namespace), what=f"no {resource} are left")


class TestTooLarge:
    def test_it_stays_wholly_pending_with_the_reason_and_starts_when_nodes_come(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher
    ) -> None:
        tag = {"only-for": namespace}
        names = cluster.add_nodes(2, labels=tag)
        try:
            made = kube.create("jobs", job("large", 6, cpu="4", selector=tag), namespace)
            until(lambda: len(kube.list("pods", namespace)) == 6)
            status, reason, message = until(
                lambda: (c := initially_scheduled(kube.find("podgroups", key(made), namespace)))[0] and c
            )
            assert (status, reason) == ("False", "Unschedulable")
            assert "4 of 6" in message
            assert re.search(r"of \d+ nodes: .*\b2 \w+", message), message
            for kind, name in (("PodGroup", key(made)), ("Job", "large")):
                notes = until(
                    lambda k=kind, n=name: [
                        e["note"] for e in kube.events_about(namespace, k, n) if e["reason"] == "FailedScheduling"
                    ],
                    what=f"an Event on {kind} {name}",
                )
                assert any("4 of 6" in note for note in notes)
            assert kube.bound(namespace) == []

            names += cluster.add_nodes(1, labels=tag)
            bound(kube, namespace, "large", 6)
            until(lambda: initially_scheduled(kube.get("podgroups", key(made), namespace))[0] == "True")
            watcher.catch_up(namespace)
            report = replay(watcher.changes(), namespaces=[namespace])
            assert report.violations == []
            assert report.binds == 6
        finally:
            for name in names:
                kube.delete("nodes", name)

    def test_it_blocks_nobody(self, cluster: Cluster, kube: Kube, namespace: str) -> None:
        tag = {"only-for": namespace}
        names = cluster.add_nodes(1, cpu="4", labels=tag)
        try:
            kube.create("jobs", job("ten", 10, selector=tag), namespace)
            until(lambda: len(kube.list("pods", namespace)) == 10)
            kube.create("jobs", job("two", 2, selector=tag), namespace)
            bound(kube, namespace, "two", 2)
            bound(kube, namespace, "ten", 0)
        finally:
            for name in names:
                kube.delete("nodes", name)


class TestEnd:
    @pytest.mark.parametrize("propagation", ["Background", "Foreground"])
    def test_the_group_of_a_deleted_job_goes_only_after_its_pods(
        self, kube: Kube, namespace: str, watcher: Watcher, propagation: str
    ) -> None:
        slow = {"phalanx.dev/ignore-sigterm": "true"}
        body = job("leaving", 3)
        body["spec"]["template"]["metadata"] = {"annotations": slow}
        body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3
        kube.create("jobs", body, namespace)
        bound(kube, namespace, "leaving", 3)
        kube.delete("jobs", "leaving", namespace, propagationPolicy=propagation)
        until(lambda: not kube.list("podgroups", namespace), 40, "the PodGroup is gone")
        watcher.catch_up(namespace)
        changes = watcher.changes()
        assert replay(changes, namespaces=[namespace]).violations == []
        pods = {c.uid for c in changes if c.resource == "pods" and c.view and c.view.namespace == namespace}
        (group,) = {c.uid for c in changes if c.resource == "podgroups" and c.view and c.view.namespace == namespace}
        ends: dict[str, int] = {}
        for change in changes:
            if change.uid in pods and (change.view is None or change.view.ended):
                ends.setdefault(change.uid, change.revision)
        (gone,) = [c for c in changes if c.uid == group and c.view is None]
        assert len(ends) == len(pods) == 3
        assert gone.revision > max(ends.values())
        # It was in deletion while all of them still ran: it was kept, not just late.
        assert any(c.uid == group and c.view and c.view.deleting and c.revision < min(ends.values()) for c in changes)
        assert left_over(world_of(kube), [namespace]) == []


class TestOthers:
    def test_a_job_that_is_no_gang_runs_as_if_phalanx_were_not_there(
        self, kube: Kube, namespace: str, audit: AuditLog
    ) -> None:
        mark = audit.mark()
        made = kube.create("jobs", job("alone", 1), namespace)
        assert "phalanx.dev/gang" not in made["spec"]["template"]["metadata"].get("labels", {})
        assert "scheduling" not in made["spec"]
        (pod,) = bound(kube, namespace, "alone", 1)
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert "schedulingGroup" not in pod["spec"]
        assert "phalanx.dev/gang" not in pod["metadata"]["labels"]
        until(lambda: kube.get("pods", pod["metadata"]["name"], namespace)["status"]["phase"] == "Running")
        assert kube.list("podgroups", namespace) == []
        assert kube.list("workloads", namespace) == []
        assert audit.binds(namespace, mark) == []
        assert [e for e in audit.our_writes(mark) if e.namespace == namespace] == []

    def test_one_that_opts_out_too(self, kube: Kube, namespace: str) -> None:
        kube.create("jobs", job("free", 2, annotations={"phalanx.dev/policy": "none"}), namespace)
        pods = bound(kube, namespace, "free", 2)
        assert {pod["spec"]["schedulerName"] for pod in pods} == {"default-scheduler"}
        assert kube.list("podgroups", namespace) == []


def test_only_what_is_ours_is_written(kube: Kube, namespace: str, audit: AuditLog, phalanx: Phalanx) -> None:
    mark = audit.mark()
    kube.create("jobs", job("one", 3), namespace)
    bound(kube, namespace, "one", 3)
    kube.delete("jobs", "one", namespace, propagationPolicy="Background")
    until(lambda: not kube.list("podgroups", namespace))
    settle(lambda: world_of(kube), [namespace])
    assert audit.our_writes(mark)
    assert audit.not_ours_to_write(mark) == []
