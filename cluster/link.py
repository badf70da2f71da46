"""The owner's end of the line to a cluster's supervisor.

One thread reads what the supervisor says: answers go to whoever asked, events to the report and to
:attr:`Link.deaths`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ComponentDiedError, NotReadyError
from cluster.events import Event, Report
from cluster.paths import Layout
from cluster.procs import tail


class Link:
    """Starts a supervisor and talks to it. Thread-safe."""

    def __init__(self, layout: Layout, report: Report) -> None:
        self.layout = layout
        self.report = report
        #: Components that ended by themselves, in that order.
        self.deaths: list[ComponentDiedError] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._closed = False
        self._hello: Future[dict[str, Any]] = Future()
        self._pending[0] = self._hello
        layout.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with layout.log("supervisor").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cluster.supervisor", str(layout.root), str(os.getpid())],
                env=os.environ | {"PYTHONPATH": python_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Neither Ctrl-C nor a closed terminal is for it to handle; it watches us instead.
                start_new_session=True,
                cwd="/",
            )
        self._reader = threading.Thread(target=self._read, name=f"cluster-{layout.name}", daemon=True)
        self._reader.start()
        try:
            self._wait(self._hello, 30)
        except BaseException:
            self._close()
            self._end_process()
            raise

    @property
    def open(self) -> bool:
        """Whether commands can be sent."""
        return not self._closed

    def request(self, timeout: float = 60, **command: Any) -> dict[str, Any]:
        """Send one command and return its answer.

        :raises ClusterError: if the supervisor refuses, or is gone
        """
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._closed:
                raise ClusterError(f"cluster {self.layout.name!r} is down: its supervisor has ended")
            number = next(self._numbers)
            self._pending[number] = future
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # the reader will find the supervisor gone, and fail the future
                self._process.stdin.write(json.dumps(command | {"id": number}).encode() + b"\n")
                self._process.stdin.flush()
        return self._wait(future, timeout)

    def run(self, name: str, argv: list[str], env: dict[str, str], *, grace: float, cwd: Path | None = None) -> int:
        """Start a process in the cluster and return its pid."""
        what = {"name": name, "argv": argv, "env": env, "grace": grace, "cwd": str(cwd) if cwd else None}
        answer = self.request(run=what)
        self.report(Event("started", f"{name} started", name, log=Path(answer["log"])))
        return int(answer["pid"])

    def adopt(self, name: str, pid: int, log: Path) -> None:
        """Have a process watched that is part of the cluster, but is started and ended by others."""
        self.request(adopt={"name": name, "pid": pid, "log": str(log)})

    def wait_for(self, what: str, check: Callable[[], bool], timeout: float) -> None:
        """Poll ``check`` until it holds.

        :raises ComponentDiedError: as soon as a component has died
        :raises NotReadyError: after ``timeout`` seconds
        """

        def alive_and_holds() -> bool:
            if check():
                return True
            if self.deaths:
                raise self.deaths[0]
            if not self.open:
                raise ClusterError(f"the supervisor of cluster {self.layout.name!r} has ended")
            return False

        wait_for(f"cluster {self.layout.name!r}: {what}", alive_and_holds, timeout, f"; logs: {self.layout.logs}")

    def detach(self) -> None:
        """Let the cluster live on without us."""
        self.request(detach=True)
        self._close()

    def down(self, *, keep_logs: bool = False) -> None:
        """Tear everything down and wait until it is."""
        with contextlib.suppress(ClusterError):
            # It may have to take apart what is not a process.
            self.request(timeout=300, down={"keep_logs": keep_logs})
        self._close()
        self._end_process()

    def _end_process(self) -> None:
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _wait(self, future: Future[dict[str, Any]], timeout: float) -> dict[str, Any]:
        try:
            answer = future.result(timeout)
        except TimeoutError:
            raise NotReadyError(
                f"the supervisor of cluster {self.layout.name!r} did not answer within {timeout:.0f} s"
            ) from None
        if "error" in answer:
            raise ClusterError(f"cluster {self.layout.name!r}: {answer['error']}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._take(json.loads(line))
        lines = "".join(f"\n    {line}" for line in tail(self.layout.log("supervisor"), 10))
        with self._lock:
            self._closed = True
            left = list(self._pending.values())
            self._pending.clear()
        for future in left:
            future.set_result({"error": f"the supervisor has ended{lines}"})
        # Reap it, so that it is no zombie while we live on.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("event") == "hello":
            message = {"reply": 0}
        if "reply" in message:
            with self._lock:
                future = self._pending.pop(message["reply"], None)
            if future is not None:
                future.set_result(message)
            return
        death = ComponentDiedError(message["name"], message["how"], message["tail"], Path(message["log"]))
        self.deaths.append(death)
        self.report(Event("died", death.last_words, death.name, tail=death.tail, log=death.log))


def wait_for(what: str, check: Callable[[], bool], timeout: float, hint: str = "") -> None:
    """Poll ``check`` until it holds.

    :raises NotReadyError: after ``timeout`` seconds
    """
    deadline = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        if check():
            return
        now = time.monotonic()
        if now > deadline:
            raise NotReadyError(f"{what}: not within {timeout:.0f} s{hint}")
        # A check that costs the server much (all nodes of thousands) leaves it most of the time for its work.
        time.sleep(max(0.05, 4 * (now - begun)))


def python_path() -> str:
    """Return a PYTHONPATH by which another Python finds this very package, installed or not."""
    here = str(Path(__file__).parent.parent)
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
