"""Filters and requests against upstream's semantics, one row a rule."""

from __future__ import annotations

import msgspec
import pytest

from api.wire import PodSpec
from scheduler.core import filters, requests, signature
from scheduler.core.nodes import NodeTable
from tests.builders import node, pod


def passing(table: NodeTable, **spec) -> set[str]:
    mask, _ = filters.static(table, signature.of_pod(pod("p", **spec)))
    return {name for name, ok in zip(table.names, mask.tolist(), strict=True) if ok}


@pytest.fixture
def table() -> NodeTable:
    made = NodeTable()
    made.set(node("a", labels={"disk": "ssd", "gen": "7"}))
    made.set(
        node("b", labels={"disk": "hdd", "gen": "9"}, taints=[{"key": "gpu", "value": "x", "effect": "NoSchedule"}])
    )
    made.set(node("c", unschedulable=True))
    made.set(node("d", taints=[{"key": "soft", "effect": "PreferNoSchedule"}]))
    made.set(node("gone"))
    made.remove("gone")
    return made


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU = {"key": "gpu", "value": "x", "effect": "NoSchedule"}
EVERYTHING = [{"operator": "Exists"}]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, {"a", "d"}),
        ({"tolerations": [GPU]}, {"a", "b", "d"}),
        ({"tolerations": [GPU | {"value": "y"}]}, {"a", "d"}),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, {"a", "b", "d"}),
        ({"tolerations": EVERYTHING}, {"a", "b", "c", "d"}),
        ({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}, {"a", "c", "d"}),
        ({"nodeSelector": {"disk": "ssd"}}, {"a"}),
        ({"nodeSelector": {"disk": "none"}}, set()),
        ({"affinity": affinity(expression("disk", "In", "ssd", "x"))}, {"a"}),
        ({"affinity": affinity(expression("disk", "NotIn", "ssd"))}, {"d"}),
        ({"affinity": affinity(expression("disk", "Exists")), "tolerations": [GPU]}, {"a", "b"}),
        ({"affinity": affinity(expression("disk", "DoesNotExist"))}, {"d"}),
        ({"affinity": affinity(expression("gen", "Gt", "7")), "tolerations": [GPU]}, {"b"}),
        ({"affinity": affinity(expression("gen", "Lt", "9"))}, {"a"}),
        ({"affinity": affinity(expression("disk", "Gt", "1")), "tolerations": [GPU]}, set()),
        ({"affinity": affinity(expression("disk", "In", "ssd"), expression("disk", "DoesNotExist"))}, {"a", "d"}),
        ({"affinity": affinity({})}, set()),
        ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["d"]}]})}, {"d"}),
        (
            {"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["d"]}]})},
            {"a"},
        ),
    ],
)
def test_which_nodes_pass(table, spec, names):
    assert passing(table, **spec) == names


def test_each_refused_node_is_under_its_first_reason(table):
    _, refused = filters.static(table, signature.of_pod(pod("p", nodeSelector={"disk": "hdd"})))
    assert {reason: int(mask.sum()) for reason, mask in refused} == {
        filters.NODE_SELECTOR: 3,
        "untolerated taint {gpu=x:NoSchedule}": 1,
    }


def test_labels_of_later_nodes_and_changes_are_seen(table):
    assert passing(table, nodeSelector={"new": "1"}) == set()
    table.set(node("a", labels={"new": "1"}))
    for i in range(100):
        table.set(node(f"x{i}", labels={"new": "1"} if i % 2 else {}))
    assert len(passing(table, nodeSelector={"new": "1"})) == 51


def of(**spec) -> dict[str, int]:
    return requests.of_pod(msgspec.convert(spec, PodSpec))


def container(cpu, **extra):
    return {"resources": {"requests": {"cpu": cpu}}, **extra}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("500m")]}, 1500),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, 3000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("4")],
            },
            6000,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("4"), container("2", restartPolicy="Always")],
            },
            4000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "2"}}}, 2000),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000),
    ],
)
def test_effective_requests(spec, cpu):
    assert of(**spec) == {"cpu": cpu, "pods": 1}


def test_host_ports_conflict_by_protocol_port_and_address():
    on = signature.conflicts
    assert on(("TCP", 80, ""), ("TCP", 80, "10.0.0.1"))
    assert on(("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.1"))
    assert not on(("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.2"))
    assert not on(("TCP", 80, ""), ("UDP", 80, ""))
    assert not on(("TCP", 80, ""), ("TCP", 81, ""))
