from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from scheduler.core import signature
from scheduler.core.capacity import Capacities
from scheduler.core.nodes import NodeTable
from scheduler.core.placement import HOST_PORTS, PORTS_OF_MEMBERS, Ask, place
from tests.builders import node, pod


def table_of(*cpus: int) -> NodeTable:
    table = NodeTable()
    for index, cpu in enumerate(cpus):
        table.set(node(f"n{index}", cpu=str(cpu)))
    return table


def ask(count: int, **spec) -> Ask:
    return Ask(signature.of_pod(pod("p", **spec)), count)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 30))
def test_identical_pods_fit_exactly_when_the_numbers_add_up(cpus, need, count):
    placement = place(Capacities(table_of(*cpus)), [ask(count, cpu=str(need))])
    room = sum(cpu // need for cpu in cpus)
    assert placement.placed == min(room, count)
    per_node = np.bincount(placement.rows[0], minlength=len(cpus))
    assert all(taken * need <= cpu for taken, cpu in zip(per_node.tolist(), cpus, strict=True))
    assert bool(placement.reasons) == (room < count)
    if placement.reasons:
        assert sum(placement.reasons.values()) == len(cpus), "each node has one reason"
        assert placement.proven


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 20))
def test_the_fewest_nodes_are_used(cpus, count):
    placement = place(Capacities(table_of(*cpus)), [ask(count, cpu="1")])
    used = len(set(placement.rows[0].tolist()))
    left, fewest = min(count, sum(cpus)), 0
    for cpu in sorted(cpus, reverse=True):
        if left > 0:
            left, fewest = left - cpu, fewest + 1
    assert used == fewest


def test_one_pod_takes_the_tightest_node():
    assert place(Capacities(table_of(8, 3, 5)), [ask(3)]).rows[0].tolist() == [1, 1, 1]


def test_larger_pods_first():
    """The small ones would take the only node that holds a large one."""
    placement = place(Capacities(table_of(4, 2)), [ask(2, cpu="1"), ask(1, cpu="4")])
    assert placement.placed == 3


def test_different_pods_that_do_not_fit_are_not_proven():
    assert not place(Capacities(table_of(4)), [ask(2, cpu="1"), ask(1, cpu="4")]).proven


def test_host_ports_one_a_node():
    ports = {"containers": [{"resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]}
    placement = place(Capacities(table_of(8, 8)), [ask(3, **ports)])
    assert sorted(placement.rows[0].tolist()) == [0, 1]
    assert placement.reasons == {PORTS_OF_MEMBERS: 2}
    table = table_of(8, 8)
    table.take("n0", signature.of_pod(pod("q", **ports)))
    placement = place(Capacities(table), [ask(2, **ports)])
    assert placement.rows[0].tolist() == [1]
    assert placement.reasons[HOST_PORTS] == 1


def test_unknown_resources_fit_nowhere_and_say_so():
    spec = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    placement = place(Capacities(table_of(8)), [ask(1, **spec)])
    assert placement.placed == 0
    assert placement.reasons == {"too small (allocatable nvidia.com/gpu)": 1}


def test_overcommitted_nodes_take_nothing():
    table = table_of(2)
    table.take("n0", signature.of_pod(pod("q", cpu="5")))
    assert place(Capacities(table), [ask(1)]).placed == 0


def test_no_nodes():
    placement = place(Capacities(NodeTable()), [ask(1)])
    assert placement.placed == 0
    assert placement.nodes == 0
