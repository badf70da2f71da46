"""Who asked the API server for what, from its audit log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.kind.kube import Obj

OUR_USERS = "system:serviceaccount:phalanx-system:"

#: All that our ServiceAccounts have any business writing: (account, verb, resource).
ALLOWED_WRITES = {
    ("phalanx-scheduler", "create", "pods/binding"),
    ("phalanx-scheduler", "patch", "pods/status"),
    ("phalanx-scheduler", "patch", "podgroups/status"),
    ("phalanx-scheduler", "create", "events"),
    ("phalanx-scheduler", "patch", "events"),
    ("phalanx-controllers", "create", "workloads"),
    ("phalanx-controllers", "patch", "workloads"),
    ("phalanx-controllers", "create", "podgroups"),
    ("phalanx-controllers", "patch", "podgroups"),
    ("phalanx-controllers", "delete", "podgroups"),
    ("phalanx-controllers", "create", "events"),
    ("phalanx-controllers", "patch", "events"),
    ("phalanx-scheduler", "update", "leases"),
    ("phalanx-controllers", "update", "leases"),
    ("phalanx-controllers", "create", "jobs"),
    ("phalanx-controllers", "delete", "jobs"),
}


@dataclass(frozen=True, slots=True)
class Audited:
    """One request, as the API server logged it when it had answered."""

    user: str
    agent: str
    verb: str
    #: With the subresource: ``pods/binding``.
    resource: str
    namespace: str
    name: str
    code: int
    #: Seconds since the epoch: when it came, and when it was answered.
    received: float
    answered: float

    @property
    def account(self) -> str:
        return self.user.removeprefix(OUR_USERS)

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch")


class AuditLog:
    """Reads an API server's audit log."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def mark(self) -> int:
        """A position, for :meth:`since`: now."""
        return self._file.stat().st_size

    def since(self, mark: int = 0, user: str = "") -> list[Audited]:
        """All requests answered since, of users whose name begins so."""
        with self._file.open("rb") as file:
            file.seek(mark)
            lines = file.read().split(b"\n")[:-1]
        # Most lines are other people's: they are not even decoded.
        sign = user.encode()
        found = [_audited(json.loads(line)) for line in lines if sign in line]
        return [event for event in found if event.user.startswith(user)]

    def ours(self, mark: int = 0) -> list[Audited]:
        """All requests of our ServiceAccounts."""
        return self.since(mark, OUR_USERS)

    def our_writes(self, mark: int = 0) -> list[Audited]:
        """All writes of our ServiceAccounts but those of their Leases, which never pause."""
        return [event for event in self.ours(mark) if event.is_write and event.resource != "leases"]

    def binds(self, namespace: str, mark: int = 0) -> list[Audited]:
        """Accepted binds of our scheduler in a namespace, by time."""
        found = [e for e in self.our_writes(mark) if e.resource == "pods/binding" and e.code == 201]
        return sorted((e for e in found if e.namespace == namespace), key=lambda e: e.answered)

    def not_ours_to_write(self, mark: int = 0) -> list[Audited]:
        """Writes of our ServiceAccounts to anything else than what they are for."""
        return [
            e
            for e in self.ours(mark)
            if e.is_write
            and (
                (e.account, e.verb, e.resource) not in ALLOWED_WRITES
                or (e.resource in ("jobs", "leases") and e.namespace != "phalanx-system")
                or (e.resource == "leases" and e.name not in ("", e.account))
            )
        ]


def _audited(event: Obj) -> Audited:
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
