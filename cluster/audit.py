"""Who asked the API server for what, and when, from its audit log.

The log is the one witness that serves every client alike and costs the server nothing that it does not do anyway: each
line has the times at which a request came and was answered, by the server's own clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Audited:
    """One request, as the API server logged it when it had answered."""

    user: str
    agent: str
    verb: str
    #: With the subresource: ``pods/binding``.
    resource: str
    namespace: str
    #: Empty where the server chose the name.
    name: str
    code: int
    #: Seconds since the epoch: when it came, and when it was answered.
    received: float
    answered: float

    @property
    def account(self) -> str:
        """The last part of the user's name: ``phalanx-scheduler``, ``kube-scheduler``."""
        return self.user.rpartition(":")[2]

    @property
    def is_write(self) -> bool:
        """Whether it was to change something."""
        return self.verb not in ("get", "list", "watch")

    @property
    def succeeded(self) -> bool:
        """Whether it was answered with success."""
        return 200 <= self.code < 300


class AuditLog:
    """Reads an API server's audit log while it is written."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def mark(self) -> int:
        """Return the position after everything that is there now, for :meth:`since` and :meth:`read`."""
        return self._file.stat().st_size

    def since(self, mark: int = 0, user: str = "") -> list[Audited]:
        """Return all requests answered since, of users whose name begins so."""
        return [event for event in self.read(mark, user)[0] if event.user.startswith(user)]

    def read(self, mark: int = 0, *signs: str) -> tuple[list[Audited], int]:
        """Return the requests whose line has any of these texts in it, and where to go on next time.

        Most lines are of no interest to whoever asks: those are not even decoded.
        """
        with self._file.open("rb") as file:
            file.seek(mark)
            *lines, rest = file.read().split(b"\n")
            end = file.tell() - len(rest)
        wanted = [sign.encode() for sign in signs]
        return [audited(json.loads(line)) for line in lines if not wanted or any(sign in line for sign in wanted)], end


def audited(event: Mapping[str, Any]) -> Audited:
    """Read one line of the log."""
    ref = event.get("objectRef") or {}
    resource = "/".join(part for part in (ref.get("resource", ""), ref.get("subresource", "")) if part)
    return Audited(
        user=event["user"]["username"],
        agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource=resource,
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        received=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        answered=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )
