"""``phalanx controllers``: the reconcilers in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from api import names
from cli.process import foreground


def controllers(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    scheduler_name: list[str] | None = None,
    log_format: Literal["auto", "json", "text"] = "auto",
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
    from controllers.app import run

    scheduler_names = scheduler_name or [names.SCHEDULER_NAME]
    foreground(lambda json_logs: run(kubeconfig, context, scheduler_names, json_logs=json_logs), log_format)
