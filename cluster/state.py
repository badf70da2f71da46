"""``cluster.json``: what is known of a cluster by anyone who has only its name.

Written by the cluster's supervisor alone, each time as a whole (a reader never sees half a file). Whether the
cluster is alive is not in the file: it is read from the processes named there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cluster.errors import ClusterNotFoundError
from cluster.paths import Layout, clusters_dir
from cluster.procs import Identity

Status = Literal["starting", "ready", "degraded", "dead"]


@dataclass(slots=True)
class Process:
    """A process of the cluster; ``ended`` says how it ended, ``asked`` whether that was our wish."""

    pid: int
    start_time: int
    log: str
    ended: str = ""
    asked: bool = False


@dataclass(slots=True)
class State:
    """The contents of ``cluster.json``. All paths are absolute."""

    name: str
    supervisor: Identity
    owner: Identity | None
    kubernetes: str = ""
    profile: str = ""
    provider: str = ""
    scheduler: bool = False
    nodes: int = 0
    ready: bool = False
    kubeconfig: str = ""
    kubectl: str = ""
    audit_log: str = ""
    logs: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    fake_nodes: bool = True
    #: Whether kwok keeps the fake nodes alive.
    kwok: bool = True
    #: What must be run when the cluster is gone, should its supervisor not have lived to do it: argv and env.
    cleanups: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """``dead`` when the supervisor is gone, ``degraded`` when something ended that should run."""
        if not self.supervisor.alive:
            return "dead"
        if any(p.ended and not p.asked for p in self.processes.values()):
            return "degraded"
        return "ready" if self.ready else "starting"

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name, the supervisor among them."""
        if not self.supervisor.alive:
            return {}
        return {"supervisor": self.supervisor.pid} | {n: p.pid for n, p in self.processes.items() if not p.ended}

    @property
    def died(self) -> dict[str, str]:
        """What ended by itself, and how."""
        return {n: p.ended for n, p in self.processes.items() if p.ended and not p.asked}

    def write(self, path: Path) -> None:
        """Replace the file at ``path``, readable by its owner only."""
        text = json.dumps(dataclasses.asdict(self), indent=2) + "\n"
        write_private(path, text)

    @classmethod
    def read(cls, path: Path) -> State:
        """Read what :meth:`write` wrote.

        :raises OSError: if there is no such file
        :raises ValueError: if it is not ours
        """
        raw: dict[str, Any] = json.loads(path.read_text())
        try:
            raw["supervisor"] = Identity(**raw["supervisor"])
            raw["owner"] = Identity(**raw["owner"]) if raw["owner"] else None
            raw["processes"] = {name: Process(**process) for name, process in raw["processes"].items()}
            return cls(**raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} was not written by this version of Phalanx: {error}") from error


def write_private(path: Path, text: str) -> None:
    """Write a file as a whole, mode 0600 from the first byte."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def load(name: str) -> State:
    """Return the state of the cluster called ``name``, alive or dead.

    :raises ClusterNotFoundError: if there is none
    """
    try:
        return State.read(Layout.of(name).state_file)
    except (OSError, ValueError):
        names = ", ".join(s.name for s in load_all()) or "none"
        raise ClusterNotFoundError(f"there is no cluster {name!r} (there is: {names})") from None


def load_all() -> list[State]:
    """Return the states of all clusters, by name; a folder without a readable state is not one."""
    states = []
    for path in sorted(clusters_dir().glob("*/cluster.json")):
        try:
            states.append(State.read(path))
        except (OSError, ValueError):
            continue
    return states
