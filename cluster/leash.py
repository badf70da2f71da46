"""Runs a program that cannot outlive the process that started it: ``leash.py PARENT_PID PROGRAM ARGUMENT...``.

The kernel kills it when the thread that started it ends, whatever the reason. It is a program in front of the
program since doing this between fork and exec (``preexec_fn``) is not safe where there are threads. Standard
library only, and run as a file: it must start at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def leashed(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs ``argv`` as a child of this process, and for no longer than it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def main() -> None:
    """Tie this process to its parent and become the program."""
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The parent may have died before that: then no signal will ever come.
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
