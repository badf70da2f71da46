from __future__ import annotations

from pathlib import Path

import pytest

from bench import __main__ as main
from bench import results, suite
from bench.cases import parse
from bench.contenders import contenders
from bench.results import Report
from tests.unit.bench.test_results import report, run


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.app(list(words))
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "3y4"], "'3y4' is no case"),
        (["run", "3x100", "9x9999"], "case 9x9999 has 89,991 pods"),
        (["run", "3x100", "--contenders", "volcano"], "'volcano' is no contender"),
        (["run", "3x100", "--runs", "0"], "RUNS must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert said in capsys.readouterr().out


class TestReport:
    def test_nothing_yet(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(suite, "FILE", tmp_path / "bench.json")
        assert call("report") == 2
        assert "run make bench" in capsys.readouterr().out

    def test_of_another_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(suite, "FILE", tmp_path / "bench.json")
        suite.FILE.write_text("{}")
        assert call("report") == 2
        assert "another version" in capsys.readouterr().out


def test_an_empty_choice_is_everything_and_a_wrong_outcome_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, int]] = []

    def conduct(_console: object, cases: list[object], of: list[object], **_more: int) -> Report:
        asked.append((len(cases), len(of)))
        return report(run("phalanx", 1, error="1 pods not bound: g0-0"))

    monkeypatch.setattr(suite, "conduct", conduct)
    assert call("run", "--contenders", "") == 1
    assert asked == [(14, 6)]
    assert "1 pods not bound: g0-0" in capsys.readouterr().out


def test_runs_are_kept_and_contenders_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure(case: object, contender: object, _nodes: int, number: int) -> results.Run:
        order.append(f"{case} {contender.name}")  # type: ignore[attr-defined]
        return run(contender.name, 1, case=str(case))  # type: ignore[attr-defined]

    monkeypatch.setattr(suite, "FILE", tmp_path / "bench.json")
    monkeypatch.setattr(suite, "build", lambda _console: None)
    monkeypatch.setattr("bench.run.measure", measure)

    sides = contenders(["limit-48 phalanx"])
    made = suite.conduct(main.console, [parse("3x10"), parse("nofit:5")], sides, nodes=50, runs=2)
    assert order == [
        "3x10 limit-48",
        "3x10 phalanx",
        "3x10 phalanx",
        "3x10 limit-48",
        "nofit:5 phalanx",
        "nofit:5 phalanx",
    ]
    assert results.read(suite.FILE, Report) == made
