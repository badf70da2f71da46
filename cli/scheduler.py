"""``phalanx scheduler``: the gang scheduler in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from api import names
from cli.process import foreground


def scheduler(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    scheduler_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    log_format: Literal["auto", "json", "text"] = "auto",
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
    from scheduler.app import run

    scheduler_names = frozenset(scheduler_name or [names.SCHEDULER_NAME])
    foreground(lambda json_logs: run(kubeconfig, context, scheduler_names, json_logs=json_logs), log_format)
