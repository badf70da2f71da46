"""Runs the cases: contenders alternate, every run is kept at once, a bar shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import results, run
from bench.cases import Case
from bench.contenders import Contender, rotated
from bench.results import OUT, Report, Run
from cluster import ClusterSpec, console_report
from cluster.provider import provider

FILE = OUT / "bench.json"


def kubernetes() -> str:
    """Return the version of the control planes."""
    return ClusterSpec(name="bench").release.version


def build(console: Console) -> None:
    """Build the control plane if it is not in the cache, outside of any run."""
    with console_report(console) as report:
        provider("modules").prepare(ClusterSpec(name="bench"), report)


def conduct(
    console: Console,
    cases: Sequence[Case],
    of: Sequence[Contender],
    *,
    nodes: int,
    runs: int,
    older: Report | None = None,
) -> Report:
    """Measure all cases for all contenders and return the raw figures, which are in :data:`FILE` at every moment.

    :param older: what it has of others is kept
    :raises ComparisonError: if that cannot stand beside what would be measured
    :raises RunError: if a run could not be carried out
    :raises ClusterError: if a control plane could not be made
    """
    build(console)
    report = Report(
        machine=results.machine(kubernetes()),
        nodes=nodes,
        runs=runs,
        cases=[str(case) for case in cases],
    )
    if older is not None:
        results.take_over(report, older, {(str(case), each.name) for case in cases for each in of})
    with _bar(console) as progress:
        task = progress.add_task("", total=runs * sum(each.takes_part(case) for case in cases for each in of))
        for case in cases:
            sides = [each for each in of if each.takes_part(case)]
            for number in range(runs):
                # Another order each time: what else the machine does hits all alike.
                for contender in rotated(sides, number):
                    progress.update(task, description=f"{case} for {contender.name}, run {number + 1} of {runs}")
                    started = time.monotonic()
                    done = run.measure(case, contender, nodes, number)
                    report.results.append(done)
                    results.save(FILE, report)
                    progress.console.print(_line(done, time.monotonic() - started), highlight=False)
                    progress.advance(task)
    return report


def _line(done: Run, whole: float) -> str:
    """Say in a line how a run went."""
    outcome = f"> {done.seconds:.0f} s, given up" if done.cut else f"{done.seconds:.2f} s"
    if done.error:
        outcome = f"[bold red]WRONG: {escape(done.error)}[/]"
    what = f"{done.case}, {done.contender}, run {done.number + 1}"
    return f"[dim]{what}:[/] {outcome} [dim](with all around it {whole:.0f} s)[/]"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
