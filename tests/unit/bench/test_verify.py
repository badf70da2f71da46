from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench import objects
from bench.verify import MismatchError, verify_bound, verify_refused
from cluster import nodes

NODES = [nodes.node(index, cpu="2", memory="1Gi", pods=3, ready=True) for index in range(3)]


def pod(name: str, node: str, group: str = "", namespace: str = "bench", cpu: str = "1") -> dict[str, Any]:
    body = objects.pod(name, scheduler="s", group=group, node=node, cpu=cpu)
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}, "status": {"phase": "Pending"}}


def whole() -> list[dict[str, Any]]:
    return [
        pod("a-0", "node-0000", "a"),
        pod("a-1", "node-0000", "a"),
        pod("b-0", "node-0001", "b"),
        pod("b-1", "node-0002", "b"),
    ]


def verify(pods: list[dict[str, Any]], binds: dict[str, int] | None = None) -> None:
    if binds is None:
        ours = [p for p in pods if p["metadata"]["namespace"] == "bench"]
        binds = Counter(p["metadata"]["name"] for p in ours if p["spec"].get("nodeName"))
    verify_bound(pods, NODES, namespace="bench", groups=2, size=2, binds=binds)


def test_all_is_well() -> None:
    verify(whole())


def test_a_pod_that_is_not_bound() -> None:
    pods = whole()
    del pods[3]["spec"]["nodeName"]
    with pytest.raises(MismatchError, match="1 pods not bound: b-1"):
        verify(pods)


def test_a_partial_gang() -> None:
    pods = whole()
    del pods[3]["spec"]["nodeName"]
    with pytest.raises(MismatchError, match=r"1 gangs that are not whole: b \(1 of 2 bound\)"):
        verify(pods)


def test_a_pod_that_is_missing() -> None:
    with pytest.raises(MismatchError, match="3 pods are there instead of 4"):
        verify(whole()[:3])


def test_a_gang_that_is_missing() -> None:
    pods = whole()
    for each in pods:
        each["spec"]["schedulingGroup"] = {"podGroupName": "a"}
    with pytest.raises(MismatchError, match="1 gangs are there instead of 2"):
        verify(pods)


def test_a_pod_that_was_bound_twice() -> None:
    with pytest.raises(MismatchError, match="1 pods bound more than once: a-0"):
        verify(whole(), {"a-0": 2, "a-1": 1, "b-0": 1, "b-1": 1})


def test_a_bind_that_nobody_asked_the_server_for() -> None:
    with pytest.raises(MismatchError, match="no bind was logged: a-0"):
        verify(whole(), {"a-1": 1, "b-0": 1, "b-1": 1})


def test_a_bound_pod_that_is_gone() -> None:
    with pytest.raises(MismatchError, match="bound that are not there any more: lost"):
        verify(whole(), {"a-0": 1, "a-1": 1, "b-0": 1, "b-1": 1, "lost": 1})


def test_a_node_that_is_not_there() -> None:
    pods = whole()
    pods[3]["spec"]["nodeName"] = "node-9999"
    with pytest.raises(MismatchError, match="a node that is not there: b-1"):
        verify(pods)


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ([pod("x", "node-0000", namespace="other", cpu="1m")], r"node-0000 \(cpu: 2001 of 2000\)"),
        ([pod(f"x{i}", "node-0000", namespace="other", cpu="0") for i in range(2)], r"node-0000 \(pods: 4 of 3\)"),
    ],
)
def test_a_node_over_its_allocatable_whosever_pods_they_are(others: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(MismatchError, match=f"1 nodes over their allocatable: {what}"):
        verify([*whole(), *others])


def test_memory_counts() -> None:
    pods = whole()
    pods[0]["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Gi"
    with pytest.raises(MismatchError, match=r"node-0000 \(memory: "):
        verify(pods)


def test_what_has_ended_takes_no_room() -> None:
    ended = pod("x", "node-0000", namespace="other")
    ended["status"]["phase"] = "Succeeded"
    verify([*whole(), ended])


def test_a_resource_that_the_node_lacks() -> None:
    pods = whole()
    pods[0]["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "1"
    with pytest.raises(MismatchError, match=r"example.com/gpu: 1 of 0"):
        verify(pods)


def test_single_pods_are_each_their_own() -> None:
    pods = [pod(f"p-{i}", f"node-000{i}") for i in range(3)]
    verify_bound(pods, NODES, namespace="bench", groups=3, size=1, binds={f"p-{i}": 1 for i in range(3)})


class TestRefused:
    def test_none_is_bound(self) -> None:
        verify_refused([pod("a-0", ""), pod("a-1", "")], namespace="bench", size=2, binds={})

    def test_one_is(self) -> None:
        with pytest.raises(MismatchError, match="the gang cannot fit: a-1"):
            verify_refused([pod("a-0", ""), pod("a-1", "node-0000")], namespace="bench", size=2, binds={})

    def test_one_was(self) -> None:
        with pytest.raises(MismatchError, match="the gang cannot fit: a-0"):
            verify_refused([pod("a-0", ""), pod("a-1", "")], namespace="bench", size=2, binds={"a-0": 1})

    def test_one_is_missing(self) -> None:
        with pytest.raises(MismatchError, match="1 pods are there instead of 2"):
            verify_refused([pod("a-0", "")], namespace="bench", size=2, binds={})
