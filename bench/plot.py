"""The ratios to the limit as a picture for docs/: one group of bars a case, one bar a contender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.contenders import LIMIT
from bench.results import Report, Row, rows
from bench.tables import facts

#: Told apart in print and by the colour-blind.
_COLOURS = {"phalanx": "#0072b2", "kube-scheduler": "#e69f00", "kube-scheduler-100": "#b8b8b8"}

FORMATS = ("svg", "png")


def plot(report: Report, stem: Path) -> list[Path]:
    """Write the picture as ``stem.svg`` and ``stem.png``; return the files.

    Cases without a limit ("does not fit") are not in it. A bar with an arrow was given up: it is longer than shown.

    :raises ImportError: without matplotlib, which is in the dependency group ``bench``
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "phalanx"  # the same figures give the same file
    from matplotlib import pyplot, ticker

    found = rows(report)
    limits = {row.case: row.seconds.median for row in found if row.contender.startswith(LIMIT) and row.seconds}
    names = [name for name in _COLOURS if any(row.contender == name for row in found)]
    cases = [case for case in report.cases if case in limits]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.55 * max(1, len(cases))), layout="constrained")
    height = 0.8 / max(1, len(names))
    for place, name in enumerate(names):
        for line, case in enumerate(cases):
            for row in (row for row in found if (row.case, row.contender) == (case, name)):
                _bar(axes, row, limits[case], line + (place - (len(names) - 1) / 2) * height, height)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.margins(x=0.1)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xlabel("times the limit: nobody schedules, a client creates and binds (log scale)")
    axes.set_title(facts(report.machine, report.nodes, report.runs), fontsize=7)
    handles = [mpl.patches.Patch(color=_COLOURS[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    files = [stem.with_suffix(f".{kind}") for kind in FORMATS]
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
    return files


def _bar(axes: Any, row: Row, limit: float, y: float, height: float) -> None:
    ratio = row.cut / limit if row.cut else row.to_limit
    if ratio is None:
        return
    # From the limit on: on a logarithmic axis a length means something only from 1.
    axes.barh(y, ratio - 1, height * 0.9, left=1, color=_COLOURS[row.contender])
    label = f" > {ratio:.0f} →" if row.cut else f" {ratio:.2f}"
    axes.text(max(1, ratio), y, label, va="center", fontsize=7)
