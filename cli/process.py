"""How a long-running process is run in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, NoReturn

import anyio

from runtime.errors import ConfigError
from runtime.process import Program, run

LogFormat = Literal["auto", "json", "text"]


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
