"""How a long-running process is run in the foreground."""

from __future__ import annotations

import re
import sys
from typing import Literal, NoReturn

from api import names
from runtime.errors import ConfigError
from runtime.process import Program, Settings, main

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

LogFormat = Literal["auto", "json", "text"]
JSON_LOGS: dict[LogFormat, bool | None] = {"auto": None, "json": True, "text": False}


def scheduler_names(given: list[str] | None) -> frozenset[str]:
    """Return the names from the command line; one that no pod can have is one line and status 2."""
    for name in given or ():
        if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
            print(f'error: --scheduler-name "{name}" is no DNS subdomain, so no pod can name it', file=sys.stderr)
            raise SystemExit(2)
    return frozenset(given or [names.SCHEDULER_NAME])


def address(given: str | None) -> tuple[str, int] | None:
    """Read ``HOST:PORT`` or ``:PORT``; anything else is one line and status 2."""
    if given is None:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        print(f'error: --metrics-address "{given}": write HOST:PORT, or :PORT for all addresses', file=sys.stderr)
        raise SystemExit(2)
    return host.strip("[]"), int(port)


def foreground(program: Program, settings: Settings) -> NoReturn:
    """Run to the end and exit with its status; unusable settings are one line and status 2."""
    try:
        status = main(program, settings)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    raise SystemExit(status)
