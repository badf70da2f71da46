"""What our ServiceAccounts asked the API server for, and what they have any business to."""

from __future__ import annotations

from cluster import audit
from cluster.audit import Audited

__all__ = ["ALLOWED_WRITES", "OUR_USERS", "AuditLog", "Audited"]

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


class AuditLog(audit.AuditLog):
    """The audit log, and which part of it is ours."""

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
