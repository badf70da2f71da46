"""``phalanx scheduler``: the gang scheduler in the foreground."""

from __future__ import annotations

from cli.process import Options, foreground


def scheduler(*, options: Options | None = None) -> None:
    """Run the gang scheduler until Ctrl-C."""
    from scheduler.app import program

    foreground(program, options or Options())
