"""``phalanx scheduler``: the gang scheduler in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.process import LogFormat, foreground, scheduler_names


def scheduler(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    scheduler_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    log_format: LogFormat = "auto",
) -> None:
    """Run the gang scheduler until Ctrl-C.

    Parameters
    ----------
    kubeconfig
        Kubeconfig file; default: $KUBECONFIG, ~/.kube/config, then the pod's ServiceAccount.
    context
        Context in the kubeconfig; default: the current one.
    scheduler_name
        spec.schedulerName of the pods to schedule; may be repeated. Default: phalanx.
    log_format
        json: one object a line; text: for people; auto: text on a terminal.
    """
    from scheduler.app import program

    foreground(program(scheduler_names(scheduler_name)), kubeconfig, context, log_format)
