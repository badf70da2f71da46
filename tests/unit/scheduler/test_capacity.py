"""What is kept about nodes by signature is what counting them anew would say."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from scheduler.core import signature
from scheduler.core.capacity import Capacities, Need
from scheduler.core.nodes import NodeTable
from tests.builders import node, pod

SIGNATURES = [
    signature.of_pod(pod("small")),
    signature.of_pod(pod("large", cpu="3")),
    signature.of_pod(pod("picky", nodeSelector={"disk": "ssd"})),
]

step = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("give back"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("set"), st.integers(0, 4), st.sampled_from(["ssd", "hdd"])),
    st.tuples(st.just("cordon"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 4), st.none()),
    st.tuples(st.just("ask"), st.integers(0, 2), st.none()),
)


@given(st.lists(step, max_size=40))
def test_kept_counts_are_those_of_a_new_count(steps):
    table = NodeTable()
    kept = Capacities(table)
    for what, number, more in steps:
        name = f"n{number}"
        match what:
            case "take":
                table.take_all([name, name], SIGNATURES[more]) if name in table.rows else table.take(
                    name, SIGNATURES[more]
                )
            case "give back":
                if name in table.rows and table.used[table.rows[name]].any():
                    table.give_back(name, SIGNATURES[more])
            case "set":
                table.set(node(name, cpu="6", labels={"disk": more}))
            case "cordon":
                table.set(node(name, cpu="6", unschedulable=more))
            case "remove":
                table.remove(name)
            case "ask":
                kept.of(SIGNATURES[number])
    for each in SIGNATURES:
        mine, anew = kept.of(each), Capacities(table).of(each)
        assert mine.fits.tolist() == anew.fits.tolist()
        assert mine.total == anew.total == int(np.sum(anew.fits))
        assert mine.passing.tolist() == anew.passing.tolist()


def test_a_need_is_held_by_the_sum_over_its_signatures():
    table = NodeTable()
    table.set(node("n", cpu="4"))
    capacities = Capacities(table)
    small, large, picky = SIGNATURES
    assert capacities.may_hold(Need(4, ((small, 9),)))
    assert not capacities.may_hold(Need(5, ((small, 9),)))
    assert not capacities.may_hold(Need(1, ((picky, 9),)))
    assert capacities.may_hold(Need(3, ((small, 2), (large, 9))))
    assert not capacities.may_hold(Need(4, ((small, 2), (large, 9))))
