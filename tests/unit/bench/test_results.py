from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from bench import baseline, results, tables
from bench.procs import Usage, usage
from bench.results import Machine, Report, Run
from bench.stats import Spread, percentile

MACHINE = Machine(at="2026-01-01T00:00:00Z", cores=2, memory_gib=8, python="3.11", kubernetes="1.37.2", load_before=0.5)


def run(contender: str, seconds: float, case: str = "3x100", **more: object) -> Run:
    used = {} if contender.startswith("limit") else {"scheduler": Usage(1.5, 100)}
    whole = {name: Usage(each.cpu + 1, each.peak_mib) for name, each in used.items()}
    return Run(case=case, contender=contender, number=0, seconds=seconds, used=used, whole=whole, **more)  # type: ignore[arg-type]


def report(*runs: Run) -> Report:
    cases = list(dict.fromkeys(each.case for each in runs))
    return Report(machine=MACHINE, nodes=100, runs=3, cases=cases, results=list(runs))


class TestStats:
    def test_spread(self) -> None:
        assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
        assert Spread.of([4.0]) / Spread.of([1.0, 3.0]) == 2.0

    def test_of_nothing(self) -> None:
        with pytest.raises(ValueError, match="nothing was measured"):
            Spread.of([])
        with pytest.raises(ValueError, match="nothing was measured"):
            percentile([], 0.5)

    def test_percentile_is_a_value_that_was_measured(self) -> None:
        values = [float(i) for i in range(1, 101)]
        assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
        assert percentile([7.0], 0.99) == 7.0


class TestRows:
    def test_the_best_number_of_connections_is_the_limit(self) -> None:
        runs = [
            run("limit-16", 3),
            run("limit-48", 2),
            run("limit-128", 2.5),
            run("phalanx", 3),
            run("kube-scheduler", 6),
        ]
        limit, phalanx, kube = results.rows(report(*runs))
        assert (limit.contender, limit.to_limit) == ("limit-48", 1.0)
        assert (phalanx.to_limit, phalanx.to_kube) == (1.5, 0.5)
        assert (kube.to_limit, kube.to_kube) == (3.0, 1.0)

    def test_medians_are_compared(self) -> None:
        runs = [run("limit-16", s) for s in (1, 2, 9)] + [run("phalanx", s) for s in (3, 4, 4)]
        (_, phalanx) = results.rows(report(*runs))
        assert phalanx.to_limit == 2.0
        assert phalanx.seconds == Spread(4, 3, 4, 3)

    def test_what_was_given_up_is_no_measurement(self) -> None:
        runs = [
            run("limit-16", 1),
            *(run("kube-scheduler", 300, cut=True) for _ in range(2)),
            run("kube-scheduler", 290),
        ]
        _, kube = results.rows(report(*runs))
        assert tables.median(kube) == "> 300 s"

    def test_a_wrong_run_is_no_measurement_and_is_told(self) -> None:
        (row,) = results.rows(report(run("phalanx", 1, error="1 pods not bound: g0-0")))
        assert row.seconds is None
        assert tables.median(row) == "wrong"
        assert row.errors == ["1 pods not bound: g0-0"]

    def test_no_limit_of_a_refusal(self) -> None:
        (row,) = results.rows(report(run("phalanx", 0.1, case="nofit:100")))
        assert row.to_limit is None

    def test_peaks_and_cpu(self) -> None:
        (row,) = results.rows(report(run("phalanx", 1), run("phalanx", 2)))
        assert row.cpu == 1.5
        assert row.peak_mib == {"scheduler": 100}


def test_tables_and_markdown_say_the_same() -> None:
    some = report(
        run("limit-48", 1.234),
        run("phalanx", 2.345),
        run("phalanx", 30.1, case="stream:2x2@3", group_seconds=[0.01, 0.5]),
        run("kube-scheduler", 9, error="all wrong"),
    )
    console = Console(record=True, width=200)
    tables.show(console, some)
    shown, written = console.export_text(), tables.markdown(some)
    for text in ("limit-48", "1.23", "2.35", "1.90", "gang p99 ms", "500", "median of 3 runs", "wrong"):
        assert text in shown
        assert text in written
    assert "WRONG: 3x100, kube-scheduler, run 1: all wrong" in shown


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    some = report(run("phalanx", 1, server=Usage(1, 2), group_seconds=[1.5]))
    results.save(tmp_path / "out" / "bench.json", some)
    assert results.read(tmp_path / "out" / "bench.json", Report) == some


class TestTakeOver:
    def test_what_is_measured_again_is_not_taken_over(self) -> None:
        old = report(run("limit-48", 1), run("phalanx", 2), run("phalanx", 3, case="7x7"))
        new = report()
        new.cases = ["3x100"]
        results.take_over(new, old, {("3x100", "phalanx")})
        assert [(each.case, each.contender) for each in new.results] == [("3x100", "limit-48"), ("7x7", "phalanx")]
        assert new.cases == ["3x100", "7x7"]

    def test_figures_of_other_circumstances_are_refused(self) -> None:
        old = report(run("limit-48", 1))
        old.nodes += 1
        with pytest.raises(results.ComparisonError, match="101 nodes, new ones for 100"):
            results.take_over(report(), old, ())


class TestUsage:
    def test_of_this_process(self) -> None:
        now = usage(os.getpid())
        assert now.cpu > 0
        assert now.peak_mib > 1

    def test_a_name_with_anything_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "7").mkdir()
        fields = " ".join(str(number) for number in range(3, 30))
        (tmp_path / "7" / "stat").write_text(f"7 (a) b) {fields}\n")
        (tmp_path / "7" / "status").write_text("Name: a\nVmHWM:\t  2048 kB\n")
        assert usage(7, tmp_path) == Usage((14 + 15) / os.sysconf("SC_CLK_TCK"), 2.0)

    def test_since(self) -> None:
        assert Usage(5, 10).since(Usage(2, 9)) == Usage(3, 10)


class TestBaseline:
    def figures(self, ratio: float, **changes: object) -> baseline.Baseline:
        limit = [run("limit-48", 1.0, case=baseline.CASE)]
        made = baseline.baseline([*limit, run("phalanx", ratio, case=baseline.CASE)], MACHINE)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def test_medians(self) -> None:
        runs = [run("limit-48", s) for s in (1, 2, 9)] + [run("phalanx", s) for s in (2, 3, 4)]
        made = baseline.baseline(runs, MACHINE)
        assert (made.ratio, made.limit_seconds, made.phalanx_seconds) == (1.5, 2, 3)

    @pytest.mark.parametrize(("now", "ok"), [(1.0, True), (2.0, True), (3.0, True), (3.01, False)])
    def test_half_as_much_again_is_too_much(self, now: float, ok: bool) -> None:
        verdict = baseline.judge(self.figures(now), self.figures(2.0))
        assert verdict.ok is ok
        assert f"{now:.2f} times the limit" in verdict.message
        assert "committed is 2.00, allowed 3.00" in verdict.message
        assert ("--update" in verdict.message) is not ok

    def test_of_another_case(self) -> None:
        verdict = baseline.judge(self.figures(1.0), self.figures(1.0, case="7x7"))
        assert not verdict.ok
        assert "--update" in verdict.message
