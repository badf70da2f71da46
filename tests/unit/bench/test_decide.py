"""That it measures what it says: the core decides as it must. Nothing is said of how long that takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from rich.console import Console

from bench import decide, results


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decide, "FILE", tmp_path / "decide.json")
    monkeypatch.setattr(decide, "SIZES", (2, 10))
    monkeypatch.setattr(decide, "NOFIT", 5)
    monkeypatch.setattr(decide, "WAITING", 20)
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_everything_is_measured_on_every_number_of_nodes() -> None:
    console = Console(record=True, width=200)
    report = decide.conduct(console, (8, 20), repetitions=3)
    decide.show(console, report)
    assert results.read(decide.FILE, decide.Decisions) == report
    assert len(report.figures) == 2 * 6
    assert all(len(figure.wall) == len(figure.cpu) == 3 for figure in report.figures)
    shown = console.export_text()
    for text in (
        "8 nodes",
        "20 nodes",
        "handle, a pod, µs",
        "cycle, 5 pods do not fit, ms",
        "nothing to do, 20 groups wait",
    ):
        assert text in shown
        assert text in decide.markdown(report)


def test_a_wrong_decision_is_not_measured() -> None:
    subject = decide.Subject(2)
    with pytest.raises(decide.WrongError, match="to be 'scheduled' with 17 placed"):
        decide.place(subject, 17, 1)


def test_the_core_is_left_as_it_was() -> None:
    subject = decide.Subject(4)
    decide.place(subject, 8, 3)
    decide.refuse(subject, 3, 3)
    decide.among_waiting(subject, 5, 3)
    decide.place(subject, 32, 1)
