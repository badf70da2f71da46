"""Raw figures, as they are kept in ``bench/out/``, and what they come down to."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.contenders import LIMIT
from bench.procs import Usage
from bench.stats import Spread, percentile

OUT = Path(__file__).parent / "out"

T = TypeVar("T")


class Run(msgspec.Struct, kw_only=True):
    """One case for one contender, once.

    :param seconds: from the first create received to the last bind answered; of ``nofit``, to the verdict
    :param cut: it was given up after that many seconds
    :param error: what was wrong with its outcome; "" if nothing was
    :param used: by process of the contender, between the first create and the end
    :param whole: the same since the process started
    :param server: the API server's, between the first create and the end
    :param group_seconds: of each gang, from its last pod created to its last bind
    :param binds: how many were accepted
    :param load: of the machine just before (1 minute), which is mostly the run before this one
    """

    case: str
    contender: str
    number: int
    seconds: float
    cut: bool = False
    error: str = ""
    used: dict[str, Usage] = msgspec.field(default_factory=dict)
    whole: dict[str, Usage] = msgspec.field(default_factory=dict)
    server: Usage | None = None
    creator_cpu: float = 0
    group_seconds: list[float] = msgspec.field(default_factory=list)
    binds: int = 0
    load: float = 0


class Machine(msgspec.Struct, kw_only=True):
    """Where and when it was measured."""

    at: str
    cores: int
    memory_gib: float
    python: str
    kubernetes: str
    load_before: float
    processor: str = ""


class Report(msgspec.Struct, kw_only=True):
    """All raw figures of one call."""

    machine: Machine
    nodes: int
    runs: int
    cases: list[str]
    results: list[Run] = msgspec.field(default_factory=list)

    @property
    def failed(self) -> list[Run]:
        """The runs with a wrong outcome."""
        return [run for run in self.results if run.error]


class Row(msgspec.Struct, kw_only=True):
    """All runs of one case for one contender, summed up. Ratios are of medians; None where there is nothing to
    compare with.

    :param seconds: None if no run ended properly
    :param cut: seconds after which at least half of the runs were given up; the others are not shown
    """

    case: str
    contender: str
    seconds: Spread | None
    cut: float | None
    errors: list[str]
    to_limit: float | None
    to_kube: float | None
    cpu: float
    peak_mib: dict[str, float]
    server_cpu: float
    group_p50: float | None
    group_p99: float | None


class ComparisonError(Exception):
    """Figures that say nothing side by side."""


def machine(kubernetes: str) -> Machine:
    """Say what this machine is, now."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    models = [line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return Machine(
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        cores=os.cpu_count() or 0,
        memory_gib=round(pages / 2**30, 1),
        python=platform.python_version(),
        kubernetes=kubernetes,
        load_before=round(os.getloadavg()[0], 2),
        processor=models[0].partition(":")[2].strip() if models else "",
    )


def rows(report: Report) -> list[Row]:
    """Sum up a report: by case, the limit first; of several numbers of connections, the best one is the limit."""
    found: list[Row] = []
    for case in report.cases:
        mine = [run for run in report.results if run.case == case]
        names = list(dict.fromkeys(run.contender for run in mine))
        limits = {name: _seconds(mine, name) for name in names if name.startswith(f"{LIMIT}-")}
        best = min((name for name in limits if limits[name]), key=lambda name: _median(limits[name]), default=None)
        limit = limits[best] if best else None
        kube = _seconds(mine, "kube-scheduler")
        shown = [name for name in names if name not in limits or name == best or (best is None and name in limits)]
        found += [
            _row(case, name, [run for run in mine if run.contender == name], limit, kube)
            for name in sorted(shown, key=lambda name: not name.startswith(LIMIT))
        ]
    return found


def take_over(new: Report, old: Report, again: Collection[tuple[str, str]]) -> None:
    """Take over what an older report has, but for the cases and contenders that are measured again.

    :raises ComparisonError: if its figures cannot stand in one table with new ones
    """
    for what, mine, theirs in (
        ("nodes", new.nodes, old.nodes),
        ("runs", new.runs, old.runs),
        ("cores", new.machine.cores, old.machine.cores),
        ("as Kubernetes", new.machine.kubernetes, old.machine.kubernetes),
    ):
        if mine != theirs:
            raise ComparisonError(f"the figures there are for {theirs} {what}, new ones for {mine}: leave out --add")
    new.results += [run for run in old.results if (run.case, run.contender) not in again]
    new.cases = list(dict.fromkeys(old.cases + new.cases))


def save(path: Path, what: msgspec.Struct) -> None:
    """Write as JSON; a reader never sees half a file."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1) + b"\n")
    part.replace(path)


def read(path: Path, kind: type[T]) -> T:
    """Read what :func:`save` wrote.

    :raises OSError: if there is no such file
    :raises msgspec.DecodeError: if it is not one of ours
    """
    return msgspec.json.decode(path.read_bytes(), type=kind)


def _row(case: str, name: str, runs: Sequence[Run], limit: Spread | None, kube: Spread | None) -> Row:
    seconds = _seconds(runs, name)
    cut = [run.seconds for run in runs if run.cut]
    groups = [value for run in runs for value in run.group_seconds]
    usable = [run for run in runs if not run.error]
    processes = dict.fromkeys(process for run in usable for process in run.whole)
    return Row(
        case=case,
        contender=name,
        seconds=seconds,
        cut=max(cut) if 2 * len(cut) >= len(runs) and cut else None,
        errors=[run.error for run in runs if run.error],
        to_limit=seconds / limit if seconds and limit else None,
        to_kube=seconds / kube if seconds and kube else None,
        cpu=_middle(sum(used.cpu for used in run.used.values()) for run in usable),
        peak_mib={p: max(run.whole[p].peak_mib for run in usable if p in run.whole) for p in processes},
        server_cpu=_middle(run.server.cpu for run in usable if run.server),
        group_p50=percentile(groups, 0.5) if groups else None,
        group_p99=percentile(groups, 0.99) if groups else None,
    )


def _seconds(runs: Iterable[Run], name: str) -> Spread | None:
    """Of the runs that ended; one that was cut took at least as long as it was let, which is no measurement."""
    values = [run.seconds for run in runs if run.contender == name and not run.error and not run.cut]
    return Spread.of(values) if values else None


def _median(spread: Spread | None) -> float:
    return spread.median if spread else float("inf")


def _middle(values: Iterable[float]) -> float:
    values = list(values)
    return Spread.of(values).median if values else 0.0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
