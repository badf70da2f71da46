"""What can go wrong with a throwaway cluster.

Every error's text is written for the person at the terminal: what happened, the last lines that explain it,
and what to do next. The command line prints it as it is, never a traceback; nothing here is retried by the
caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ClusterError(Exception):
    """Base of all errors of this package; ``str(error)`` is the message for people."""


class SpecError(ClusterError):
    """The cluster that was asked for cannot exist: a bad name, an unknown version, profile or component."""


class UnavailableError(ClusterError):
    """Such a cluster cannot be had by this user on this machine: something is missing that we may not install."""


class GoToolchainError(ClusterError):
    """No Go toolchain that is new enough, and none could be installed."""


class BuildError(ClusterError):
    """A component could not be built."""


class ClusterExistsError(ClusterError):
    """A live cluster already has the name."""


class ClusterNotFoundError(ClusterError):
    """No cluster has the name."""


class NotReadyError(ClusterError):
    """The cluster did not reach a state in time."""


class NotOwnerError(ClusterError):
    """The operation needs the process that started the cluster."""


class ServiceAccountMissingError(ClusterError):
    """The ServiceAccount to act as does not exist (yet)."""


class CommandError(ClusterError):
    """A kubectl command failed."""


class ApiError(ClusterError):
    """The API server refused a request; ``status`` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status


class ComponentDiedError(ClusterError):
    """A component ended by itself; carries its last log lines and where the whole log is."""

    def __init__(self, name: str, how: str, tail: Sequence[str], log: Path) -> None:
        lines = "".join(f"\n    {line}" for line in tail) or "\n    (its log is empty)"
        self.last_words = f"{name} {how}; its last log lines:{lines}"
        super().__init__(f"{self.last_words}\n  the whole log: {log}")
        self.name = name
        self.how = how
        self.tail = tuple(tail)
        self.log = log
