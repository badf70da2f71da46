"""The figures as tables: for a terminal, and as Markdown for docs/. Both are made of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from bench.cases import Kind, parse
from bench.results import Machine, Report, Row, rows
from bench.stats import Spread

TITLES: dict[Kind, str] = {
    "gangs": "Gangs of pods created at once: first create to last bind",
    "singles": "Pods without a group: first create to last bind",
    "stream": "A stream of gangs: first create to last bind, and each gang by itself",
    "nofit": "A gang that cannot fit: last create to the first status that says so",
    "jobs": "Jobs: Job create to last bind, controllers included",
}


#: Columns that are not broken over lines.
_WHOLE = ("case", "contender", "median s", "min–max", "x limit", "CPU s", "peak MiB")


def show(console: Console, report: Report) -> None:
    """Print one table for each group of cases, and what was wrong."""
    for title, columns, lines in _tables(report):
        table = Table(title=title, caption=facts(report.machine, report.nodes, report.runs))
        for column in columns:
            # Figures that are cut short on a narrow terminal would be worse than headings that are.
            table.add_column(
                column, justify="left" if column in ("case", "contender") else "right", no_wrap=column in _WHOLE
            )
        for _, same in groupby(lines, key=lambda line: line[0].case):
            for row, cells in same:
                style = "bold red" if row.errors else "bold" if row.contender == "phalanx" else None
                table.add_row(*cells, style=style)
            table.add_section()
        console.print(table)
    for run in report.failed:
        console.print(f"WRONG: {run.case}, {run.contender}, run {run.number + 1}: {run.error}", style="bold red")


def markdown(report: Report) -> str:
    """Return the same tables as Markdown."""
    parts = [facts(report.machine, report.nodes, report.runs) + "."]
    for title, columns, lines in _tables(report):
        header = "| " + " | ".join(columns) + " |"
        line = "|" + "|".join("---" if column in ("case", "contender") else "---:" for column in columns) + "|"
        body = ["| " + " | ".join(cells) + " |" for _, cells in lines]
        parts.append("\n".join([f"**{title}**", "", header, line, *body]))
    return "\n\n".join(parts)


def facts(machine: Machine, nodes: int, runs: int) -> str:
    """Say where and how it was measured."""
    processor = f" ({machine.processor})" if machine.processor else ""
    return (
        f"Kubernetes {machine.kubernetes}, {nodes:,} nodes, median of {runs} run{'s' * (runs != 1)}; "
        f"{machine.cores} cores{processor}, {machine.memory_gib:.0f} GiB, Python {machine.python}, "
        f"load before {machine.load_before:.1f}, {machine.at[:10]}"
    )


def median(row: Row) -> str:
    """Return the median; of what was given up, after how long; of what went wrong, that."""
    if row.cut is not None:
        return f"> {row.cut:.0f} s"
    return f"{row.seconds.median:.2f}" if row.seconds else "wrong"


def spread(seconds: Spread | None) -> str:
    """Return the extremes."""
    return f"{seconds.low:.2f}–{seconds.high:.2f}" if seconds else ""


def ratio(value: float | None) -> str:
    """Return how many times as long it took."""
    return "" if value is None else f"{value:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Return whole milliseconds."""
    return "" if seconds is None else f"{seconds * 1000:,.0f}"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "case": lambda row: row.case,
    "contender": lambda row: row.contender,
    "median s": median,
    "min–max": lambda row: spread(row.seconds),
    "x limit": lambda row: ratio(row.to_limit),
    "x kube": lambda row: ratio(row.to_kube),
    "CPU s": lambda row: f"{row.cpu:.1f}" if row.peak_mib else "",
    "peak MiB": lambda row: "+".join(f"{mib:.0f}" for mib in row.peak_mib.values()),
    "server CPU s": lambda row: f"{row.server_cpu:.1f}",
}
_GROUP_COLUMNS: dict[str, Callable[[Row], str]] = {
    "gang p50 ms": lambda row: milliseconds(row.group_p50),
    "gang p99 ms": lambda row: milliseconds(row.group_p99),
}


def _tables(report: Report) -> Iterable[tuple[str, list[str], list[tuple[Row, list[str]]]]]:
    """Give title, column names and rows with their cells, for each kind of case there is."""
    found = rows(report)
    for kind, title in TITLES.items():
        mine: Sequence[Row] = [row for row in found if parse(row.case).kind == kind]
        if mine:
            columns = _COLUMNS | (_GROUP_COLUMNS if kind == "stream" else {})
            yield title, list(columns), [(row, [cell(row) for cell in columns.values()]) for row in mine]
