"""What a cluster tells while it is made and while it lives.

One small record for all of it, so that a caller (command line, demo, test) decides how to show it. Reports
may come from a background thread: a callback must be quick and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["progress", "note", "started", "died", "stopped", "ready"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    ``progress``: ``name`` is the piece of work, ``done`` of ``total`` units are finished (``total`` 0: not
    known yet). ``started``, ``stopped``, ``died``: ``name`` is the component; ``died`` carries ``tail`` (its
    last log lines) and ``log``. ``note``, ``ready``: only ``text``. ``text`` is always a sentence for people.
    """

    kind: Kind
    text: str
    name: str = ""
    done: int = 0
    total: int = 0
    tail: tuple[str, ...] = ()
    log: Path | None = None


Report = Callable[[Event], None]


def quiet(_event: Event) -> None:
    """Show nothing."""
