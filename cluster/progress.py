"""Shows events of a cluster: on a terminal bars that move while something long goes on, else plain lines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from cluster.events import Event, Report

#: Seconds between two plain lines about the same work.
PLAIN_INTERVAL = 15.0

#: Seconds that work must take to be worth a plain line at all.
PLAIN_DELAY = 2.0


@contextlib.contextmanager
def console_report(console: Console) -> Iterator[Report]:
    """Give a report that shows events on ``console`` for the length of a ``with`` block."""
    if console.is_terminal:
        with _bars(console) as progress:
            yield _Bars(progress).report
    else:
        yield Lines(console).report


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _show(console: Console, event: Event) -> None:
    match event.kind:
        case "died":
            console.print(f"[bold red]{escape(event.text)}[/]", highlight=False)
        case "ready":
            console.print(f"[bold green]✓[/] {escape(event.text)}", highlight=False)
        case "note":
            console.print(f"[yellow]{escape(event.text)}[/]", highlight=False)
        case "started" | "stopped":
            console.print(f"[dim]{escape(event.text)}[/]", highlight=False)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}
        self.lock = threading.Lock()

    def report(self, event: Event) -> None:
        if event.kind != "progress":
            _show(self.progress.console, event)
            return
        with self.lock:
            if event.name not in self.tasks:
                if not event.total:
                    return
                self.tasks[event.name] = self.progress.add_task(event.text, total=event.total)
            task = self.tasks[event.name]
        self.progress.update(task, description=event.text, completed=event.done, total=event.total)


class Lines:
    """A plain line soon after a piece of work began, every :data:`PLAIN_INTERVAL` seconds, and at its end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun: dict[str, float] = {}
        self.shown: dict[str, float] = {}
        self.finished: set[str] = set()

    def report(self, event: Event) -> None:
        """Show one event."""
        if event.kind != "progress":
            _show(self.console, event)
            return
        if not event.total or event.name in self.finished:
            return
        now = time.monotonic()
        begun = self.begun.setdefault(event.name, now)
        end = event.done >= event.total
        quick = event.name not in self.shown
        if now - begun < PLAIN_DELAY if quick else not end and now - self.shown[event.name] < PLAIN_INTERVAL:
            return
        self.shown[event.name] = now
        if end:
            self.finished.add(event.name)
        self.console.print(
            f"{event.text}: {event.done}/{event.total}, {now - begun:.0f} s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
