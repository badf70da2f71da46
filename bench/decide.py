"""How long the scheduler's core takes to decide, with no API server: `handle` and `cycle` on generated events.

The events are what the informers hand to the core in production: the same wire types, made from plain manifests, with
the garbage collector as the process sets it. What is timed is the calls alone, on a core that has all nodes already.
"""

from __future__ import annotations

import gc
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
from runtime.memory import tune_gc
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


class Taken(msgspec.Struct, frozen=True):
    """What calls took, in seconds: by the clock, and of this thread's CPU, which is what holds on a busy machine."""

    wall: float
    cpu: float


class Figure(msgspec.Struct, kw_only=True):
    """One thing, measured several times; ``unit`` is µs or ms, of the values."""

    nodes: int
    what: str
    unit: str
    wall: list[float]
    cpu: list[float]

    @classmethod
    def of(cls, subject: Subject, what: str, taken: Sequence[Taken], *, each: int = 0) -> Figure:
        """Put measurements into a unit: µs for one of ``each``, or else ms."""
        unit, scale = ("µs", 1e6 / each) if each else ("ms", 1e3)
        wall, cpu = [one.wall * scale for one in taken], [one.cpu * scale for one in taken]
        return cls(nodes=subject.node_count, what=what, unit=unit, wall=wall, cpu=cpu)


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

    def timed_feed(self, some: Sequence[Event]) -> Taken:
        """Hand over events; return what that took."""
        handle = self.core.handle
        wall, cpu = time.perf_counter(), time.thread_time()
        for event in some:
            handle(event)
        return Taken(time.perf_counter() - wall, time.thread_time() - cpu)

    def timed_cycle(self) -> tuple[Taken, Decision | None]:
        """Decide once; return what that took, and what was decided."""
        wall, cpu = time.perf_counter(), time.thread_time()
        decision = self.core.cycle(self.now)
        return Taken(time.perf_counter() - wall, time.thread_time() - cpu), decision


def gang(name: str, size: int, cpu: str = "1") -> tuple[Event, list[Event], list[Event]]:
    """Return the events of a gang: its group, its pods, and what takes all of it away again."""
    body = _living(objects.pod_group(name, size))
    group = PodGroup.model_validate(body)
    pods = [_pod(objects.pod(f"{name}-{i}", scheduler="phalanx", group=name, cpu=cpu)) for i in range(size)]
    gone: list[Event] = [PodGone(pod.metadata.uid) for pod in pods]
    return GroupSet(group), [PodSet(pod) for pod in pods], [*gone, GroupGone(GroupKey(_NAMESPACE, name))]


def handle_pods(subject: Subject, size: int, repetitions: int) -> list[Taken]:
    """Return what all pods of a gang take in `handle`."""
    taken = []
    for number in range(repetitions):
        group, pods, gone = gang(f"handled-{number}", size)
        subject.core.handle(group)
        taken.append(subject.timed_feed(pods))
        subject.feed(gone)
        subject.drain()
    return taken


def place(subject: Subject, size: int, repetitions: int) -> list[Taken]:
    """Return what the cycle takes that places a gang."""
    taken = []
    for number in range(repetitions):
        group, pods, gone = gang(f"placed-{size}-{number}", size)
        subject.feed([group, *pods])
        took, decision = subject.timed_cycle()
        _expect(decision, "scheduled", size)
        taken.append(took)
        subject.feed(gone)
        subject.drain()
    return taken


def refuse(subject: Subject, size: int, repetitions: int) -> list[Taken]:
    """Return what the cycle takes that finds one pod of a gang too many.

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
        took, decision = subject.timed_cycle()
        _expect(decision, "unschedulable", 0)
        taken.append(took)
        subject.feed(gone)
        subject.drain()
    subject.feed(PodGone(pod.metadata.uid) for pod in taken_nodes)
    subject.drain()
    return taken


def among_waiting(subject: Subject, waiting: int, repetitions: int) -> tuple[list[Taken], list[Taken]]:
    """Return what a cycle takes that has nothing to do, and one that places a gang of 10, while many groups wait.

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
        took, decision = subject.timed_cycle()
        if decision is not None:
            raise WrongError(f"there was to be nothing to decide, and it decided {decision.entity}")
        idle.append(took)
    placed = []
    for number in range(repetitions):
        group, pods, gone = gang(f"passing-{number}", 10)
        subject.feed([group, *pods])
        took, decision = subject.timed_cycle()
        _expect(decision, "scheduled", 10)
        placed.append(took)
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
            for figure in _figures(subject, repetitions):
                report.figures.append(figure)
                progress.update(task, advance=1, description=f"{count:,} nodes: {figure.what}")
            del subject
            gc.collect()
    results.save(FILE, report)
    return report


def _figures(subject: Subject, repetitions: int) -> Iterator[Figure]:
    sizes = [size for size in SIZES if size <= NODE_CPU * subject.node_count]
    yield Figure.of(subject, "handle, a pod", handle_pods(subject, sizes[-1], repetitions), each=sizes[-1])
    for size in sizes:
        yield Figure.of(subject, f"cycle, {size:,} pods", place(subject, size, repetitions))
    size = min(NOFIT, subject.node_count)
    yield Figure.of(subject, f"cycle, {size:,} pods do not fit", refuse(subject, size, repetitions))
    idle, passing = among_waiting(subject, WAITING, repetitions)
    yield Figure.of(subject, f"cycle, nothing to do, {WAITING:,} groups wait", idle)
    yield Figure.of(subject, f"cycle, 10 pods, {WAITING:,} groups wait", passing)


def show(console: Console, report: Decisions) -> None:
    """Print a table: a line for each thing, a column for each number of nodes."""
    counts = list(dict.fromkeys(figure.nodes for figure in report.figures))
    machine = report.machine
    table = Table(
        title="Decisions of the core alone: median (min–max) by the clock, median of CPU time",
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
    head = [
        "| median (min–max) by the clock, median of CPU time | "
        + " | ".join(f"{count:,} nodes" for count in counts)
        + " |"
    ]
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
        wall, cpu = Spread.of(figure.wall), Spread.of(figure.cpu)
        cell = f"{wall.median:.3g} ({wall.low:.3g}–{wall.high:.3g}), {cpu.median:.3g}"
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
