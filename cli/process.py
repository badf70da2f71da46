"""How a long-running process is run in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn

import anyio

from runtime.errors import ConfigError

LogFormat = Literal["auto", "json", "text"]


def foreground(run: Callable[[bool | None], Awaitable[int]], log_format: LogFormat) -> NoReturn:
    """Run to the end and exit with its status; unusable settings are one line and status 2.

    :param run: gets whether logs are JSON; None lets it decide by the terminal
    """
    json_logs = {"auto": None, "json": True, "text": False}[log_format]

    async def main() -> int:
        return await run(json_logs)

    try:
        status = anyio.run(main)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    raise SystemExit(status)
