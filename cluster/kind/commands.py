"""Runs a program that takes its time: tied to us, its output in a log, all that it started ended with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.leash import leashed
from cluster.procs import tail


def run(
    argv: Sequence[str | os.PathLike[str]],
    log: Path,
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run a program to its end.

    :param log: its output is appended there
    :param on_line: called with each line of its output as it comes
    :raises ClusterError: if it fails or takes longer than ``timeout`` seconds; the message has its last lines
    """
    name = Path(argv[0]).name
    log.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        leashed([os.fspath(word) for word in argv]),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = threading.Timer(timeout, _kill, (process.pid,))
    late.start()
    try:
        assert process.stdout is not None
        with process.stdout as lines, log.open("a") as out:
            for line in lines:
                out.write(line)
                out.flush()
                on_line(line.rstrip("\n"))
        code = process.wait()
    except BaseException:
        _kill(process.pid)
        process.wait()
        raise
    finally:
        in_time = late.is_alive()
        late.cancel()
    if code != 0:
        how = f"exited with {code}" if in_time else f"did not end within {timeout:.0f} s"
        last = "".join(f"\n    {line}" for line in tail(log, 12))
        raise ClusterError(f"{name} {how}:{last}\n  the whole log: {log}")


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
