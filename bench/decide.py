"""How long the scheduler's core takes to decide, with no API server: `handle` and `cycle` on generated events.

The events are what the informers hand to the core in production: the same wire types, made from plain manifests, with
the garbage collector as the process sets it. What is timed is the calls alone, on a core that has all nodes already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from api.membership import GroupKey
from api.model import PodGroup
from api.wire import Node, Pod
from bench import objects, results
from bench.cases import NODE_CPU, NODE_MEMORY
from bench.results import OUT, Machine
from bench.stats import Spread
from cluster import nodes
from runtime.memory import freeze_gc, thaw_gc, tune_gc
from scheduler.core.core import Core
from scheduler.core.events import Event, GroupGone, GroupSet, NodeSet, PodGone, PodSet
from scheduler.core.instructions import Decision

FILE = OUT / "decide.json"
NODES = (1_000, 5_000, 50_000)
SIZES = (10, 100, 1_000, 5_000)
NOFIT, WAITING = 1_000, 10_000
REPETITIONS = 7

_NAMESPACE = "default"
_CREATED = "2026-01-01T00:00:00Z"
_uids = (f"{number:08x}-1111-4111-8111-111111111111" for number in itertools.count(1))


class Figure(msgspec.Struct, kw_only=True):
    """One thing, measured several times."""

    nodes: int
    what: str
    unit: str
    values: list[float]


class Decisions(msgspec.Struct, kw_only=True):
    """All figures of one call."""

    machine: Machine
    figures: list[Figure] = msgspec.field(default_factory=list)


class WrongError(Exception):
    """The core decided something else than it had to."""


class Subject:
    """A core that knows some nodes, and a clock that stands still unless it is moved."""

    def __init__(self, node_count: int) -> None:
        self.node_count = node_count
        self.core = Core()
        self.now = 0.0
        for index in range(node_count):
            self.core.handle(NodeSet(_node(index)))
        self.drain()

    def drain(self) -> None:
        """Let it decide all that is due."""
        while self.core.cycle(self.now) is not None:
            pass

    def feed(self, some: Iterable[Event]) -> None:
        """Hand over events."""
        for event in some:
            self.core.handle(event)

    def timed_feed(self, some: Sequence[Event]) -> float:
        """Hand over events; return the seconds."""
        handle = self.core.handle
        started = time.perf_counter()
        for event in some:
            handle(event)
        return time.perf_counter() - started

    def timed_cycle(self) -> tuple[float, Decision | None]:
        """Decide once; return the seconds, and what was decided."""
        started = time.perf_counter()
        decision = self.core.cycle(self.now)
        return time.perf_counter() - started, decision


def gang(name: str, size: int, cpu: str = "1") -> tuple[Event, list[Event], list[Event]]:
    """Return the events of a gang: its group, its pods, and what takes all of it away again."""
    body = _living(objects.pod_group(name, size))
    group = PodGroup.model_validate(body)
    pods = [_pod(objects.pod(f"{name}-{i}", scheduler="phalanx", group=name, cpu=cpu)) for i in range(size)]
    gone: list[Event] = [PodGone(pod.metadata.uid) for pod in pods]
    return GroupSet(group), [PodSet(pod) for pod in pods], [*gone, GroupGone(GroupKey(_NAMESPACE, name))]


def handle_pods(subject: Subject, repetitions: int) -> list[float]:
    """Return the microseconds that one pod of a gang takes in `handle`, of 5,000 pods."""
    taken = []
    for number in range(repetitions):
        group, pods, gone = gang(f"handled-{number}", SIZES[-1])
        subject.core.handle(group)
        taken.append(subject.timed_feed(pods) / len(pods) * 1e6)
        subject.feed(gone)
        subject.drain()
    return taken


def place(subject: Subject, size: int, repetitions: int) -> list[float]:
    """Return the milliseconds of the cycle that places a gang."""
    taken = []
    for number in range(repetitions):
        group, pods, gone = gang(f"placed-{size}-{number}", size)
        subject.feed([group, *pods])
        seconds, decision = subject.timed_cycle()
        _expect(decision, "scheduled", size)
        taken.append(seconds * 1e3)
        subject.feed(gone)
        subject.drain()
    return taken


def refuse(subject: Subject, size: int, repetitions: int) -> list[float]:
    """Return the milliseconds of the cycle that finds one pod of a gang too many.

    The pods are such that no two fit on a node, and all nodes but one less than there are pods are taken.
    """
    large = str(NODE_CPU // 2 + 1)
    taken_nodes = [
        _pod(objects.pod(f"before-{i}", scheduler="nobody", node=nodes.name(i), cpu=large))
        for i in range(subject.node_count - (size - 1))
    ]
    subject.feed(PodSet(pod) for pod in taken_nodes)
    subject.drain()
    taken = []
    for number in range(repetitions):
        group, pods, gone = gang(f"refused-{number}", size, large)
        subject.feed([group, *pods])
        seconds, decision = subject.timed_cycle()
        _expect(decision, "unschedulable", 0)
        taken.append(seconds * 1e3)
        subject.feed(gone)
        subject.drain()
    subject.feed(PodGone(pod.metadata.uid) for pod in taken_nodes)
    subject.drain()
    return taken


def among_waiting(subject: Subject, waiting: int, repetitions: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of a cycle that has nothing to do, and of one that places a gang of 10, while many wait.

    They wait since none of them fits on any node; time stands still, so that none is due for another try.
    """
    leave: list[Event] = []
    for number in range(waiting):
        group, pods, gone = gang(f"waiting-{number}", 2, str(2 * NODE_CPU))
        subject.feed([group, *pods])
        leave += gone
    subject.drain()
    idle = []
    for _ in range(repetitions):
        seconds, decision = subject.timed_cycle()
        if decision is not None:
            raise WrongError(f"there was to be nothing to decide, and it decided {decision.entity}")
        idle.append(seconds * 1e3)
    placed = []
    for number in range(repetitions):
        group, pods, gone = gang(f"passing-{number}", 10)
        subject.feed([group, *pods])
        seconds, decision = subject.timed_cycle()
        _expect(decision, "scheduled", 10)
        placed.append(seconds * 1e3)
        # They stay: their leaving would give room, and so wake those that wait.
        leave += gone
    subject.feed(leave)
    subject.drain()
    return idle, placed


def conduct(console: Console, node_counts: Sequence[int] = NODES, repetitions: int = REPETITIONS) -> Decisions:
    """Measure everything on each number of nodes; all figures are in :data:`FILE` afterwards."""
    tune_gc()
    report = Decisions(machine=results.machine(""))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(node_counts) * (len(SIZES) + 4))
        for count in node_counts:
            progress.update(task, description=f"{count:,} nodes")
            subject = Subject(count)
            freeze_gc()  # as after the first sync
            for figure in _figures(subject, repetitions):
                report.figures.append(figure)
                progress.update(task, advance=1, description=f"{count:,} nodes: {figure.what}")
            del subject
            thaw_gc()
    results.save(FILE, report)
    return report


def _figures(subject: Subject, repetitions: int) -> Iterator[Figure]:
    count = subject.node_count
    yield Figure(nodes=count, what="handle, a pod", unit="µs", values=handle_pods(subject, repetitions))
    for size in SIZES:
        if size <= NODE_CPU * count:
            taken = place(subject, size, repetitions)
            yield Figure(nodes=count, what=f"cycle, {size:,} pods", unit="ms", values=taken)
    size = min(NOFIT, count)
    taken = refuse(subject, size, repetitions)
    yield Figure(nodes=count, what=f"cycle, {size:,} pods do not fit", unit="ms", values=taken)
    idle, passing = among_waiting(subject, WAITING, repetitions)
    yield Figure(nodes=count, what=f"cycle, nothing to do, {WAITING:,} groups wait", unit="ms", values=idle)
    yield Figure(nodes=count, what=f"cycle, 10 pods, {WAITING:,} groups wait", unit="ms", values=passing)


def show(console: Console, report: Decisions) -> None:
    """Print a table: a line for each thing, a column for each number of nodes."""
    counts = list(dict.fromkeys(figure.nodes for figure in report.figures))
    machine = report.machine
    table = Table(
        title="Decisions of the core alone: median (min–max)",
        caption=f"{machine.cores} cores, Python {machine.python}, load before {machine.load_before:.1f}",
    )
    table.add_column("")
    for count in counts:
        table.add_column(f"{count:,} nodes", justify="right")
    for (what, unit), cells in lines(report).items():
        table.add_row(f"{what}, {unit}", *(cells.get(count, "") for count in counts))
    console.print(table)


def markdown(report: Decisions) -> str:
    """Return the same as Markdown."""
    counts = list(dict.fromkeys(figure.nodes for figure in report.figures))
    head = ["| median (min–max) | " + " | ".join(f"{count:,} nodes" for count in counts) + " |"]
    head.append("|---|" + "---:|" * len(counts))
    body = [
        f"| {what}, {unit} | " + " | ".join(cells.get(count, "") for count in counts) + " |"
        for (what, unit), cells in lines(report).items()
    ]
    return "\n".join([*head, *body])


def lines(report: Decisions) -> dict[tuple[str, str], dict[int, str]]:
    """Return by thing and unit what each number of nodes has in the table."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for figure in report.figures:
        spread = Spread.of(figure.values)
        cell = f"{spread.median:.3g} ({spread.low:.3g}–{spread.high:.3g})"
        found.setdefault((figure.what, figure.unit), {})[figure.nodes] = cell
    return found


def _expect(decision: Decision | None, verdict: str, placed: int) -> None:
    if decision is None or decision.verdict != verdict or decision.placed != placed:
        raise WrongError(f"it was to be {verdict!r} with {placed} placed; it is {decision}")


def _node(index: int) -> Node:
    body = nodes.node(index, cpu=str(NODE_CPU), memory=NODE_MEMORY, ready=True)
    return msgspec.convert(_living(body), Node)


def _pod(body: dict[str, Any]) -> Pod:
    return msgspec.convert(_living(body), Pod)


def _living(body: dict[str, Any]) -> dict[str, Any]:
    """Add to a manifest what the API server does."""
    served = {"namespace": _NAMESPACE, "uid": next(_uids), "creationTimestamp": _CREATED}
    return {**body, "metadata": {**body["metadata"], **served}}
