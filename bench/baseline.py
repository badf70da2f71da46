"""Whether Phalanx has become slower: the ratio of one small case to the limit, beside the one that is committed.

A ratio, since seconds are the machine's; both sides alternate in the same minute.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from rich.console import Console

from bench import results, run, suite
from bench.cases import parse
from bench.contenders import contenders, rotated
from bench.results import Machine, Run
from bench.stats import Spread

FILE = Path(__file__).with_name("baseline.json")

#: What is run: small, so that it takes no more than two minutes.
CASE, NODES, RUNS = "30x10", 200, 5
CONTENDERS = ("limit-48", "phalanx")

#: How many times the committed ratio is too much; less is what machines differ by.
TOLERANCE = 1.5


class Baseline(msgspec.Struct, kw_only=True):
    """The committed figures; ``ratio`` is that of the medians."""

    case: str
    nodes: int
    runs: int
    ratio: float
    limit_seconds: float
    phalanx_seconds: float
    machine: Machine


class Verdict(msgspec.Struct, frozen=True):
    """What came of the comparison, and a sentence about it."""

    ok: bool
    message: str


def measure(console: Console) -> Baseline:
    """Run the small case and return its figures.

    :raises RunError: if a run could not be carried out, or its outcome is wrong
    """
    suite.build(console)
    machine = results.machine(suite.kubernetes())
    case, sides = parse(CASE), contenders(CONTENDERS)
    done: list[Run] = []
    # One control plane for all runs of a side: starting them is what takes long.
    with contextlib.ExitStack() as stack:
        benches = {side.name: stack.enter_context(run.prepared(case, side, NODES)) for side in sides}
        for number in range(RUNS):
            for side in rotated(sides, number):
                bench = benches[side.name]
                if number:
                    bench.clear()
                done.append(_right(bench.measure(number)))
                console.print(f"{CASE} on {NODES} nodes, {side.name}: {done[-1].seconds:.2f} s", highlight=False)
    return baseline(done, machine)


def _right(one: Run) -> Run:
    if one.error or one.cut:
        raise run.RunError(f"{one.case} for {one.contender}: {one.error or f'not within {one.seconds:.0f} s'}")
    return one


def baseline(done: list[Run], machine: Machine) -> Baseline:
    """Sum up the runs of both sides."""
    limit, phalanx = (Spread.of([each.seconds for each in done if each.contender == name]) for name in CONTENDERS)
    return Baseline(
        case=CASE,
        nodes=NODES,
        runs=RUNS,
        ratio=round(phalanx / limit, 3),
        limit_seconds=round(limit.median, 3),
        phalanx_seconds=round(phalanx.median, 3),
        machine=machine,
    )


def judge(now: Baseline, committed: Baseline) -> Verdict:
    """Compare what was measured with what is committed."""
    if (now.case, now.nodes) != (committed.case, committed.nodes):
        return Verdict(
            False,
            f"bench/baseline.json is of {committed.case} on {committed.nodes} nodes, measured was {now.case} on "
            f"{now.nodes}: renew it with python -m bench check --update",
        )
    most = TOLERANCE * committed.ratio
    said = (
        f"{now.case} on {now.nodes} nodes takes Phalanx {now.ratio:.2f} times the limit "
        f"({now.phalanx_seconds:.2f} s, limit {now.limit_seconds:.2f} s); "
        f"committed is {committed.ratio:.2f}, allowed {most:.2f}"
    )
    if now.ratio > most:
        return Verdict(
            False,
            f"{said}: slower than it was. Find out why (python -m bench decide; make bench CASES={now.case} "
            f"NODES={now.nodes}), or, if it is meant to be, python -m bench check --update",
        )
    return Verdict(True, said)
