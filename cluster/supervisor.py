"""The one process that all processes of a cluster hang on: ``python -m cluster.supervisor FOLDER OWNER_PID``.

Why: a cluster must leave nothing behind, however its user goes away. So its owner (command line, demo, test)
starts no component itself: it asks this process to, which lives in a session of its own. Each child is killed
by the kernel when the supervisor ends (PR_SET_PDEATHSIG), so no way of ending the supervisor leaves one. And
the supervisor ends, taking the cluster's folder with it, when its owner does: when its standard input closes,
or the owner's pidfd fires (a fork of the owner may hold the pipe open). After ``detach`` it lives until
SIGTERM.

Protocol: one JSON object a line. Commands on standard input carry an ``id``; each is answered once, in order,
by ``{"reply": id, "ok": true, ...}`` or ``{"reply": id, "error": text}``:

- ``{"facts": {...}}``: set fields of ``cluster.json``
- ``{"run": {"name", "argv", "env", "cwd", "grace"}}``: start a process; ``env`` is the whole environment
- ``{"stop": name}``: SIGTERM, SIGKILL after ``grace`` seconds
- ``{"adopt": {"name", "pid", "log"}}``: tell when this process ends, which is not ours to end
- ``{"cleanup": {"argv", "env"}}``: run this at the very end, whatever the reason (for clusters that are not
  processes); what is left to run is in ``cluster.json``, for whoever finds this process dead
- ``{"detach": true}``, ``{"down": {"keep_logs": bool}}``

Events on standard output: ``{"event": "died", "name", "how", "tail", "log"}`` for a process that ended by
itself.

Standard library only: it must start at once. :class:`Supervisor` alone writes ``cluster.json``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from cluster.leash import leashed
from cluster.paths import Layout
from cluster.procs import Identity, describe_exit, tail
from cluster.state import Process, State

#: A file of this name in the cluster's folder asks for its logs to be kept.
KEEP_LOGS = "keep-logs"

#: How long one cleanup may take.
CLEANUP_SECONDS = 120.0

_LINE_LIMIT = 16 * 1024 * 1024
#: Seconds between two looks at whether the cluster's folder is still there.
_LOOK = 5.0


@dataclass(slots=True)
class _Child:
    name: str
    process: asyncio.subprocess.Process
    grace: float
    entry: Process
    log: Path
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """One cluster's processes and its ``cluster.json``."""

    def __init__(self, layout: Layout, owner: Identity, output: TextIO) -> None:
        self.layout = layout
        self.output: TextIO | None = output
        self.state = State(
            name=layout.name,
            supervisor=Identity.of(os.getpid()),
            owner=owner,
            logs=str(layout.logs),
        )
        self.children: dict[str, _Child] = {}
        self.detached = False
        self.finished = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()
        self._adopted: set[asyncio.Task[None]] = set()

    # --- what goes out ----------------------------------------------------------------------------------

    def tell(self, **message: Any) -> None:
        """Write one line to the owner, if there still is one."""
        if self.output is None:
            return
        try:
            self.output.write(json.dumps(message) + "\n")
            self.output.flush()
        except (OSError, ValueError):
            self.output = None

    def note(self, text: str) -> None:
        """Write one line to the supervisor's own log."""
        # Once everything is torn down, the folder is gone.
        with contextlib.suppress(OSError), self.layout.log("supervisor").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")

    def save(self) -> None:
        """Write ``cluster.json``."""
        self.state.write(self.layout.state_file)

    # --- commands ---------------------------------------------------------------------------------------

    async def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command and return what its reply says."""
        handlers: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
            "facts": self._facts,
            "run": self._run,
            "stop": self._stop,
            "adopt": self._adopt,
            "cleanup": self._cleanup,
            "detach": self._detach,
            "down": self._down,
        }
        for verb, handler in handlers.items():
            if verb in command:
                return await handler(command[verb])
        raise ValueError(f"unknown command: {sorted(command)}")

    async def _facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        for name, value in facts.items():
            setattr(self.state, name, value)
        self.save()
        return {}

    async def _run(self, what: dict[str, Any]) -> dict[str, Any]:
        name = what["name"]
        old = self.children.get(name)
        if name == "supervisor" or (old is not None and not old.ended.is_set()):
            raise ValueError(f"{name} runs already")
        if shutil.which(what["argv"][0], path=what["env"].get("PATH")) is None:
            raise ValueError(f"cannot start {name}: there is no program {what['argv'][0]}")
        log = self.layout.log(name)
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *leashed(what["argv"]),
                env=what["env"],
                cwd=what.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # A group of its own, so that what it starts can be ended with it.
                start_new_session=True,
            )
        identity = Identity.of(process.pid)
        entry = Process(pid=process.pid, start_time=identity.start_time, log=str(log))
        child = _Child(name, process, float(what.get("grace", 5)), entry, log)
        self.children[name] = child
        self.state.processes[name] = entry
        self.save()
        self.note(f"{name} started, pid {process.pid}")
        watcher = asyncio.create_task(self._watch(child))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return {"pid": process.pid, "log": str(log)}

    async def _stop(self, name: str) -> dict[str, Any]:
        child = self.children.get(name)
        if child is None:
            raise ValueError(f"there is no {name} in this cluster")
        await self._end(child)
        return {}

    async def _adopt(self, what: dict[str, Any]) -> dict[str, Any]:
        identity = Identity.of(what["pid"])
        entry = Process(pid=identity.pid, start_time=identity.start_time, log=what["log"])
        self.state.processes[what["name"]] = entry
        self.save()
        watcher = asyncio.create_task(self._watch_adopted(what["name"], identity, entry))
        self._adopted.add(watcher)
        watcher.add_done_callback(self._adopted.discard)
        return {}

    async def _cleanup(self, what: dict[str, Any]) -> dict[str, Any]:
        self.state.cleanups.append(what)
        self.save()
        return {}

    async def _detach(self, _value: Any) -> dict[str, Any]:
        self.detached = True
        self.state.owner = None
        self.save()
        self.note("detached")
        return {}

    async def _down(self, how: dict[str, Any]) -> dict[str, Any]:
        if how.get("keep_logs"):
            (self.layout.root / KEEP_LOGS).touch()
        await self.tear_down()
        return {}

    # --- processes --------------------------------------------------------------------------------------

    async def _watch(self, child: _Child) -> None:
        code = await child.process.wait()
        child.ended.set()
        how = describe_exit(code)
        child.entry.ended = how
        self.note(f"{child.name} {how}" + (" (asked to)" if child.entry.asked else ""))
        with contextlib.suppress(OSError):
            # What it had started in its group has no one left.
            os.killpg(child.process.pid, signal.SIGKILL)
        if self.finished.is_set():
            return
        with contextlib.suppress(OSError):
            self.save()
        if not child.entry.asked:
            self.tell(event="died", name=child.name, how=how, tail=tail(child.log), log=str(child.log))

    async def _watch_adopted(self, name: str, identity: Identity, entry: Process) -> None:
        while identity.alive:  # noqa: ASYNC110 - it is no child, and no event tells
            await asyncio.sleep(_LOOK)
        entry.ended = "has ended"
        self.note(f"{name} has ended")
        with contextlib.suppress(OSError):
            self.save()
        self.tell(event="died", name=name, how=entry.ended, tail=tail(Path(entry.log)), log=entry.log)

    async def _end(self, child: _Child) -> None:
        if child.ended.is_set():
            return
        child.entry.asked = True
        if child.grace > 0:
            self._signal(child, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.ended.wait(), child.grace)
        if not child.ended.is_set():
            self._signal(child, signal.SIGKILL)
            await child.ended.wait()

    @staticmethod
    def _signal(child: _Child, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(child.process.pid, number)

    async def tear_down(self) -> None:
        """End everything, last started first, and remove the cluster's folder. Safe to call twice."""
        if self.finished.is_set():
            return
        self.finished.set()
        self.note("tearing down")
        for watcher in self._adopted:
            watcher.cancel()
        running = [c for c in self.children.values() if not c.ended.is_set()]
        # Those that have something to say goodbye to (a Lease to give back) go while the API server is still
        # there.
        await asyncio.gather(*(self._end(c) for c in running if c.grace > 0))
        for child in reversed(running):
            child.grace = 0
            await self._end(child)
        await asyncio.gather(*self._watchers)
        for cleanup in self.state.cleanups:
            await self._run_cleanup(cleanup)
        if self._owner_of_folder() not in (None, self.state.supervisor):
            return  # the folder was removed, and a later cluster has the name
        if (self.layout.root / KEEP_LOGS).exists():
            keep_logs(self.layout)
        shutil.rmtree(self.layout.root, ignore_errors=True)

    async def _run_cleanup(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), self.layout.log("cleanup").open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *what["argv"], env=what["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), CLEANUP_SECONDS)

    async def watch_folder(self) -> None:
        """End the cluster when somebody has removed its folder: nobody could find it by its name any more."""
        while self._owner_of_folder() == self.state.supervisor:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.finished.wait(), _LOOK)
                return
        await self.tear_down()

    def _owner_of_folder(self) -> Identity | None:
        try:
            return State.read(self.layout.state_file).supervisor
        except (OSError, ValueError):
            return None

    # --- the loop ---------------------------------------------------------------------------------------

    async def serve(self, commands: asyncio.StreamReader) -> None:
        """Carry out commands until the cluster is down."""
        ended = asyncio.create_task(self.finished.wait())
        while not self.finished.is_set():
            line_task = asyncio.create_task(commands.readline())
            await asyncio.wait((line_task, ended), return_when=asyncio.FIRST_COMPLETED)
            if not line_task.done():
                line_task.cancel()
                break
            line = line_task.result()
            if not line:
                break
            await self._answer(line)
        if self.detached:
            await ended
        elif not self.finished.is_set():
            self.note("the owner is gone")
            await self.tear_down()
        ended.cancel()

    async def _answer(self, line: bytes) -> None:
        number: Any = None
        try:
            command = json.loads(line)
            number = command.pop("id", None)
            self.tell(reply=number, ok=True, **await self.handle(command))
        except (ValueError, KeyError, TypeError, OSError) as error:
            self.note(f"command failed: {error!r}")
            self.tell(reply=number, error=str(error))


def keep_logs(layout: Layout) -> Path:
    """Move a cluster's logs to where they outlive it, in place of those kept earlier; return that folder."""
    shutil.rmtree(layout.kept_logs, ignore_errors=True)
    layout.kept_logs.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        layout.logs.rename(layout.kept_logs)
    return layout.kept_logs


async def _main(root: Path, owner_pid: int) -> None:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(Layout(root), Identity.of(owner_pid), sys.stdout)
    supervisor.save()
    supervisor.note(f"supervisor started, pid {os.getpid()}, owner {owner_pid}")
    tasks: set[asyncio.Task[None]] = set()

    def tear_down() -> None:
        tasks.add(asyncio.create_task(supervisor.tear_down()))

    def owner_gone(fd: int) -> None:
        loop.remove_reader(fd)
        if not supervisor.detached:
            tear_down()

    tasks.add(asyncio.create_task(supervisor.watch_folder()))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, tear_down)
    with contextlib.suppress(OSError):  # it is gone already: then standard input says so
        fd = os.pidfd_open(owner_pid)
        loop.add_reader(fd, owner_gone, fd)
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    supervisor.tell(event="hello")
    await supervisor.serve(reader)
    await asyncio.gather(*tasks)


def main() -> None:
    """Run the supervisor of the cluster whose folder and owner's pid are the two arguments."""
    root, owner = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    asyncio.run(_main(root, owner))


if __name__ == "__main__":
    main()
