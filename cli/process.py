"""How a long-running process is run in the foreground."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal, NoReturn

import anyio

from api import names
from runtime.errors import ConfigError
from runtime.process import Program, run

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

LogFormat = Literal["auto", "json", "text"]


def scheduler_names(given: list[str] | None) -> frozenset[str]:
    """Return the names from the command line; one that no pod can have is one line and status 2."""
    for name in given or ():
        if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
            print(f'error: --scheduler-name "{name}" is no DNS subdomain, so no pod can name it', file=sys.stderr)
            raise SystemExit(2)
    return frozenset(given or [names.SCHEDULER_NAME])


def foreground(program: Program, kubeconfig: Path | None, context: str | None, log_format: LogFormat) -> NoReturn:
    """Run to the end and exit with its status; unusable settings are one line and status 2."""
    json_logs = {"auto": None, "json": True, "text": False}[log_format]

    async def main() -> int:
        return await run(program, kubeconfig, context, json_logs=json_logs)

    try:
        status = anyio.run(main)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    raise SystemExit(status)
