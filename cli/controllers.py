"""``phalanx controllers``: the reconcilers in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.process import JSON_LOGS, LogFormat, address, foreground, scheduler_names
from runtime.process import Settings


def controllers(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    scheduler_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    leader_elect: bool = True,
    metrics_address: str | None = None,
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
    leader_elect
        Work only while holding the Lease in phalanx-system; without, only where no other replica can be.
    metrics_address
        HOST:PORT on which to answer /livez, /readyz and /metrics; :PORT for all addresses. Default: none.
    log_format
        json: one object a line; text: for people; auto: text on a terminal.
    """
    from controllers.app import program

    settings = Settings(
        kubeconfig=kubeconfig,
        context=context,
        leader_elect=leader_elect,
        metrics_address=address(metrics_address),
        json_logs=JSON_LOGS[log_format],
    )
    foreground(program(scheduler_names(scheduler_name)), settings)
