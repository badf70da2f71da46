"""What a process has used, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds (user and system) and the most memory it ever had, in MiB."""

    cpu: float
    peak_mib: float

    def since(self, before: Usage) -> Usage:
        """Return what was used after ``before``; a peak is one of the whole life."""
        return Usage(self.cpu - before.cpu, self.peak_mib)


def usage(pid: int, proc: Path = Path("/proc")) -> Usage:
    """Read what a process has used, all its threads included.

    :raises OSError: if it is gone
    """
    # The second field is the command in parentheses and may contain anything, so count from the last one.
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    status = (proc / str(pid) / "status").read_text()
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, peak / 1024)
