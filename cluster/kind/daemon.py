"""A Docker daemon of our own, where none runs: one for all kind clusters of the machine.

Each cluster is entered as a user of it, by its supervisor; the last one to leave ends the daemon and puts the machine
back (:mod:`cluster.kind.host`). A user whose supervisor is gone counts no more, and its containers are removed. What
the daemon has stored goes with it: the node image is kept as an archive, not in there.

Root only. All of it happens under one lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from cluster.errors import ClusterError, UnavailableError
from cluster.events import Event, Report, quiet
from cluster.kind import debian, runc
from cluster.kind.docker import Docker
from cluster.kind.host import Snapshot, get_sysctl, set_sysctl
from cluster.paths import cache_dir, machine_dir
from cluster.procs import Identity, tail
from cluster.state import write_private

#: Label that kind gives its containers: the cluster's name.
LABEL = "io.x-k8s.kind.cluster"

#: Each node's systemd takes some; Linux' default of 128 is too few for three nodes.
_INOTIFY = ("fs.inotify.max_user_instances", "1024")

_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of the daemon: its process, where it stores, and the machine before it."""

    process: Identity
    storage: Path
    before: Snapshot

    def write(self) -> None:
        raw = {
            "process": dataclasses.asdict(self.process),
            "storage": str(self.storage),
            "before": self.before.to_json(),
        }
        write_private(_folder() / "daemon.json", json.dumps(raw))

    @classmethod
    def read(cls) -> _Record | None:
        try:
            raw = json.loads((_folder() / "daemon.json").read_text())
            return cls(Identity(**raw["process"]), Path(raw["storage"]), Snapshot.from_json(raw["before"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def ours() -> Docker:
    """Return how our daemon is reached, whether or not it runs."""
    return Docker(f"unix://{_folder() / 'docker.sock'}")


def needed() -> bool:
    """Tell whether clusters go into our daemon: no other answers (``DOCKER_HOST`` may name ours)."""
    if not Docker().answers():
        return True
    own = ours().identity
    return bool(own) and own == Docker().identity


def in_use() -> Docker:
    """Return the daemon that kind clusters are in: ours if it runs, the user's if not."""
    own = ours()
    return own if own.answers() else Docker()


def log() -> Path:
    """Return our daemon's log."""
    return _folder() / "dockerd.log"


def acquire(user: str, supervisor: Identity, report: Report = quiet) -> tuple[Docker, int]:
    """Enter a user, start the daemon if it does not run, and return how to reach it and its process id.

    :param user: the kind cluster's name
    :raises ClusterError: if a cluster of that name is in it
    :raises UnavailableError: if a Docker daemon cannot run here; the caller releases the user
    """
    with _locked():
        other = _supervisor(user)
        if other is not None and other != supervisor and other.alive:
            raise ClusterError(f"there is a live kind cluster {user} already, made by process {other.pid}")
        if other is not None and ours().answers():
            _remove_containers(f"label={LABEL}={user}")
        (_users() / user).write_text(json.dumps(dataclasses.asdict(supervisor)))
        record = _Record.read()
        if record is None or not record.process.alive or not ours().answers():
            if record is not None:
                _stop(record)
            record = _start(report)
        _sweep()
        return ours(), record.process.pid


def is_user(user: str, supervisor: Identity) -> bool:
    """Tell whether a cluster's user is the one with this supervisor."""
    return _supervisor(user) == supervisor


def release(user: str, supervisor: Identity) -> None:
    """Take out a user; with the last one the daemon ends and the machine is put back."""
    if not is_user(user, supervisor):
        return
    with _locked():
        (_users() / user).unlink(missing_ok=True)
        record = _Record.read()
        if record is None:
            return
        _sweep()
        if not any(_users().iterdir()):
            _stop(record)


def _folder() -> Path:
    return machine_dir() / "docker"


def _users() -> Path:
    return _folder() / "users"


def _supervisor(user: str) -> Identity | None:
    try:
        return Identity(**json.loads((_users() / user).read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    _users().mkdir(parents=True, exist_ok=True, mode=0o700)
    with filelock.FileLock(machine_dir() / "docker.lock"):
        yield


def _sweep() -> None:
    """Forget the users whose supervisor is gone, and remove what they left in the daemon."""
    for path in list(_users().iterdir()):
        supervisor = _supervisor(path.name)
        if supervisor is None or not supervisor.alive:
            _remove_containers(f"label={LABEL}={path.name}")
            path.unlink(missing_ok=True)


def _remove_containers(*filters: str) -> None:
    options = [word for value in filters for word in ("--filter", value)]
    with contextlib.suppress(ClusterError):
        if found := ours().run("ps", "-aq", *options).split():
            ours().run("rm", "-f", "-v", *found, timeout=60)


def _start(report: Report) -> _Record:
    report(Event("note", "no Docker daemon runs: starting one"))
    before = Snapshot.take()
    storage = cache_dir() / "kind" / "docker"
    shutil.rmtree(storage, ignore_errors=True)
    storage.mkdir(parents=True, mode=0o710)
    if int(get_sysctl(_INOTIFY[0]) or 0) < int(_INOTIFY[1]):
        set_sysctl(*_INOTIFY)
    argv = [
        "dockerd",
        f"--data-root={storage}",
        f"--exec-root={_folder() / 'exec'}",
        f"--pidfile={_folder() / 'docker.pid'}",
        f"--host={ours().host}",
        "--log-opt=max-size=10m",
        *_runtime(),
    ]
    record = _Record(Identity.of(_spawn(argv)), storage, before)
    record.write()
    deadline = time.monotonic() + _START_SECONDS
    while not ours().answers():
        if not record.process.alive or time.monotonic() > deadline:
            last = "".join(f"\n    {line}" for line in tail(log(), 8))
            _stop(record)
            raise UnavailableError(f"a Docker daemon cannot run on this machine:{last}")
        time.sleep(0.2)
    return record


def _spawn(argv: list[str]) -> int:
    """Start a program that is nobody's child and outlives us, since other clusters may use it; return its pid."""
    done = subprocess.run(
        ["sh", "-c", 'log=$1; shift; "$@" >"$log" 2>&1 </dev/null & echo $!', "sh", str(log()), *argv],
        env=os.environ | {"PATH": debian.search_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        check=True,
        start_new_session=True,
    )
    return int(done.stdout)


def _runtime() -> list[str]:
    """Return dockerd's options for our runtime, where privileged containers would not start without it."""
    if not runc.withheld(Path("/proc/self/status").read_text()):
        return []
    script = _folder() / "runc"
    real = shutil.which("runc", path=debian.search_path()) or "runc"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {runc.__file__} {real} "$@"\n')
    script.chmod(0o700)
    return [f"--add-runtime=confined={script}", "--default-runtime=confined"]


def _stop(record: _Record) -> None:
    if record.process.alive:
        _remove_containers()
        record.process.end(grace=30)
    _unmount(_folder(), record.storage)
    record.before.restore()
    shutil.rmtree(record.storage, ignore_errors=True)
    # The users stay: they may be those of a daemon that is about to be started in place of a dead one.
    for path in _folder().iterdir():
        if path != _users():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _unmount(*folders: Path) -> None:
    """Take down what a daemon left mounted, innermost first."""
    with contextlib.suppress(OSError):
        mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in sorted((p for p in mounted if any(p.is_relative_to(f) for f in folders)), reverse=True):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
