"""``phalanx controllers``: the reconcilers in the foreground."""

from __future__ import annotations

from cli.process import Options, foreground


def controllers(*, options: Options | None = None) -> None:
    """Make the Workloads and PodGroups of Jobs, until Ctrl-C."""
    from controllers.app import program

    foreground(program, options or Options())
