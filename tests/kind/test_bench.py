"""The bench on real control planes: every contender and every kind of case comes to an end, and is proved."""

from __future__ import annotations

import pytest

from bench import objects
from bench.cases import parse
from bench.contenders import contenders
from bench.run import measure

pytestmark = [pytest.mark.needs("a cluster of its own"), pytest.mark.usefixtures("_state")]


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("jobs:2x3", "limit-16"),
        ("stream:5x2@1+5", "phalanx"),
        ("nofit:6", "phalanx"),
        ("jobs:2x3", "kube-scheduler"),
        ("singles:5", "kube-scheduler-100"),
    ],
)
def test_a_run(text: str, who: str) -> None:
    case, (contender,) = parse(text), contenders([who])
    run = measure(case, contender, 8)
    assert (run.error, run.cut) == ("", False)
    assert 0 < run.seconds < 60
    assert run.binds == (case.pods if case.fits else 0)
    assert set(run.used) == set(run.whole) == set(contender.processes)
    assert all(used.cpu > 0 and used.peak_mib > 1 for used in run.whole.values())
    assert len(run.group_seconds) == (case.groups if case.fits and case.kind != "jobs" else 0)
    assert run.server is not None
    assert run.server.cpu > 0


def test_a_wrong_outcome_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (limit,) = contenders(["limit-16"])
    monkeypatch.setattr(objects, "places", lambda case, _nodes: ["node-0000"] * case.pods)
    run = measure(parse("3x3"), limit, 8)
    assert run.error == "1 nodes over their allocatable: node-0000 (cpu: 9000 of 8000)"


def test_a_run_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    (limit,) = contenders(["limit-16"])
    monkeypatch.setattr("bench.run.CUT", 0.05)
    run = measure(parse("stream:2x1@60"), limit, 30)
    assert run.cut
    assert run.seconds == 0.05
