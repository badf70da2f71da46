"""How a long-running process is run in the foreground: the options all have, and what comes of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import Parameter

from api import names
from runtime.errors import ConfigError
from runtime.process import Program, Settings, main

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

LogFormat = Literal["auto", "json", "text"]
_JSON_LOGS: dict[LogFormat, bool | None] = {"auto": None, "json": True, "text": False}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every long-running process.

    Parameters
    ----------
    kubeconfig
        Kubeconfig file; default: $KUBECONFIG, ~/.kube/config, then the pod's ServiceAccount.
    context
        Context in the kubeconfig; default: the current one.
    scheduler_name
        spec.schedulerName of the pods that are ours, and of their Jobs; may be repeated. Default: phalanx.
    leader_elect
        Work only while holding the Lease in phalanx-system; without, only where no other replica can be.
    metrics_address
        HOST:PORT on which to answer /livez, /readyz and /metrics; :PORT for all addresses. Default: none.
    log_format
        json: one object a line; text: for people; auto: text on a terminal.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    scheduler_name: Annotated[list[str] | None, Parameter(negative="")] = None
    leader_elect: bool = True
    metrics_address: str | None = None
    log_format: LogFormat = "auto"


def foreground(program: Callable[[frozenset[str]], Program], options: Options) -> NoReturn:
    """Run the program of these scheduler names to the end and exit with its status.

    What cannot be used is one line and status 2.
    """
    made = program(_scheduler_names(options.scheduler_name))
    settings = Settings(
        kubeconfig=options.kubeconfig,
        context=options.context,
        leader_elect=options.leader_elect,
        metrics_address=_address(options.metrics_address),
        json_logs=_JSON_LOGS[options.log_format],
    )
    try:
        status = main(made, settings)
    except ConfigError as error:
        _refuse(str(error))
    raise SystemExit(status)


def _scheduler_names(given: list[str] | None) -> frozenset[str]:
    for name in given or ():
        if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
            _refuse(f'--scheduler-name "{name}" is no DNS subdomain, so no pod can name it')
    return frozenset(given or [names.SCHEDULER_NAME])


def _address(given: str | None) -> tuple[str, int] | None:
    """Read ``HOST:PORT`` or ``:PORT``."""
    if given is None:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        _refuse(f'--metrics-address "{given}": write HOST:PORT, or :PORT for all addresses')
    return host.strip("[]"), int(port)


def _refuse(problem: str) -> NoReturn:
    print(f"error: {problem}", file=sys.stderr)
    raise SystemExit(2)
