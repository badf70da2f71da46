"""``phalanx controllers``: the reconcilers in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.process import LogFormat, foreground, scheduler_names


def controllers(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    scheduler_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    log_format: LogFormat = "auto",
) -> None:
    """Make the Workloads and PodGroups of Jobs, until Ctrl-C.

    Parameters
    ----------
    kubeconfig
        Kubeconfig file; default: $KUBECONFIG, ~/.kube/config, then the pod's ServiceAccount.
    context
        Context in the kubeconfig; default: the current one.
    scheduler_name
        spec.schedulerName of the pods whose Jobs are ours; may be repeated. Default: phalanx.
    log_format
        json: one object a line; text: for people; auto: text on a terminal.
    """
    from controllers.app import program

    foreground(program(scheduler_names(scheduler_name)), kubeconfig, context, log_format)
