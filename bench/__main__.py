"""``python -m bench``: see :mod:`bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
from cyclopts import App
from rich.console import Console
from rich.markup import escape

from bench import baseline, decide, plot, results, suite, tables
from bench import cases as cases_
from bench import contenders as contenders_
from bench.run import RunError
from cluster import ClusterError

app = App(
    name="python -m bench",
    help="Phalanx beside kube-scheduler and the API server's limit.",
    suppress_keyboard_interrupt=False,  # it is told below
)
console = Console()
if not console.is_terminal:
    console.width = 120  # a log has room for the whole table

T = TypeVar("T")

_PICTURE = Path(__file__).parent.parent / "docs" / "benchmarks"


@app.command
def run(*cases: str, contenders: str = "", nodes: int = 5000, runs: int = 3, add: bool = False) -> None:
    """Measure cases, such as 37x27 or 3x100+20000; all of docs/benchmarks.md unless some are given.

    Parameters
    ----------
    contenders
        Of limit, kube-scheduler, kube-scheduler-100 and phalanx; all unless some are given.
    nodes
        How many nodes each control plane has.
    runs
        How often each is measured.
    add
        Keep the figures there are of other cases and contenders; all of them take hours.
    """
    wanted = [text for text in cases if text.strip()] or [cases_.DEFAULT]
    try:
        chosen = cases_.parse_all(wanted, nodes)
        sides = contenders_.contenders([contenders.strip() or contenders_.CONTENDERS])
        if runs < 1:
            raise ValueError("RUNS must be at least 1")
    except ValueError as error:
        _stop(f"{error}", 2)
    older = _read(suite.FILE, results.Report) if add and suite.FILE.exists() else None
    report = suite.conduct(console, chosen, sides, nodes=nodes, runs=runs, older=older)
    tables.show(console, report)
    _done(suite.FILE)
    console.print("as Markdown: python -m bench report; as a picture: python -m bench plot")
    if report.failed:
        _stop(f"{len(report.failed)} runs had a wrong outcome: see above")


@app.command(name="decide")
def decide_(*nodes: int, repetitions: int = decide.REPETITIONS) -> None:
    """Measure the core's decisions alone, without an API server, on 1,000, 5,000 and 50,000 nodes.

    Parameters
    ----------
    nodes
        Other numbers of nodes.
    repetitions
        How often each is measured.
    """
    report = decide.conduct(console, nodes or decide.NODES, repetitions)
    decide.show(console, report)
    _done(decide.FILE)


@app.command
def check(*, update: bool = False) -> None:
    """Fail when one small case takes Phalanx much longer, beside the limit, than what is committed.

    Parameters
    ----------
    update
        Commit what is measured now instead.
    """
    if update:
        results.save(baseline.FILE, baseline.measure(console))
        console.print(f"written: {_relative(baseline.FILE)}; commit it, and say why it may have changed")
        return
    committed = results.read(baseline.FILE, baseline.Baseline)
    verdict = baseline.judge(baseline.measure(console), committed)
    if not verdict.ok:
        _stop(verdict.message)
    console.print(f"[bold green]✓[/] {escape(verdict.message)}", highlight=False)


@app.command
def report() -> None:
    """Print the figures in bench/out/ as Markdown."""
    print(tables.markdown(_read(suite.FILE, results.Report)))
    if decide.FILE.exists():
        print(f"\n**Decisions of the core alone**\n\n{decide.markdown(_read(decide.FILE, decide.Decisions))}")


@app.command(name="plot")
def plot_(stem: Path = _PICTURE) -> None:
    """Draw the ratios in bench/out/bench.json as STEM.svg and STEM.png."""
    try:
        for file in plot.plot(_read(suite.FILE, results.Report), stem):
            console.print(f"written: {_relative(file)}")
    except ImportError as error:
        _stop(f"{error}: it is in the dependency group bench (tox run -e bench -- plot)")


def _read(path: Path, kind: type[T]) -> T:
    try:
        return results.read(path, kind)
    except OSError:
        _stop(f"there is no {_relative(path)} yet: run make bench, or python -m bench decide", 2)
    except msgspec.DecodeError as error:
        _stop(f"{_relative(path)} is of another version of the bench: {error}", 2)


def _done(file: Path) -> None:
    console.print(f"raw figures: {_relative(file)}")


def _relative(path: Path) -> str:
    return os.path.relpath(path)


def _stop(why: str, status: int = 1) -> NoReturn:
    console.print(f"[bold red]✗[/] {escape(why)}", soft_wrap=True, highlight=False)
    raise SystemExit(status)


def main() -> None:
    """Entry point; what goes wrong is a sentence."""
    try:
        app()
    except (ClusterError, RunError, results.ComparisonError, decide.WrongError) as error:
        _stop(f"the bench stopped: {error}")
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
