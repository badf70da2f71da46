"""Processes, named so that a reused pid is never taken for the old one.

A pid alone is not an identity: the kernel gives it to the next process. With the start time (clock ticks
since boot) and the boot id it is. Signals go through a pidfd that was opened before the start time was
compared: from then on it can only mean that one process. Linux only, as are the fake clusters themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.identity import boot_id, process_stat


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for good."""

    pid: int
    start_time: int
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of the process that has ``pid`` now; start time 0 if it is already gone."""
        stat = process_stat(pid)
        return cls(pid, stat[1] if stat else 0, boot_id())

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie has ended."""
        stat = process_stat(self.pid)
        return stat is not None and stat[0] not in "ZX" and stat[1] == self.start_time and self.boot in ("", boot_id())

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process and to no other; False if it is gone."""
        with self._pidfd() as fd:
            if fd is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
                return True
            return False

    def wait(self, timeout: float) -> bool:
        """Wait until it has ended, our child or not; False if it still runs after ``timeout`` seconds."""
        with self._pidfd() as fd:
            if fd is None:
                return True
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(timeout * 1000))

    def end(self, grace: float) -> None:
        """Ask it to end, and make it end if it has not after ``grace`` seconds."""
        if self.signal(signal.SIGTERM) and not self.wait(grace):
            self.signal(signal.SIGKILL)
            self.wait(5)

    @contextlib.contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        # Opened first, compared second: between the two the process can end, but the descriptor cannot move
        # on.
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            yield None
            return
        try:
            yield fd if self.alive else None
        finally:
            os.close(fd)


def describe_exit(code: int) -> str:
    """Put an exit code as :mod:`subprocess` gives it into words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def tail(path: Path, lines: int = 30, limit: int = 64 * 1024) -> list[str]:
    """Return the last ``lines`` lines of a text file, reading at most ``limit`` bytes of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
