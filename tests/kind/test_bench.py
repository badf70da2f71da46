"""The bench on real control planes: every contender and every kind of case comes to an end, and is proved."""

from __future__ import annotations

import pytest

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
