"""Who a process is: a name for its Lease and its User-Agent, by which others can tell that it has ended.

A pid alone is no identity: the kernel gives it to the next process. With the start time (clock ticks since boot), the
pid namespace and the boot id it is one for good.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

_IDENTITY = re.compile(r".*_(?P<pid>[0-9]{1,9})-(?P<start>[0-9]{1,18})-(?P<place>[0-9]+-[0-9a-f]+)")


def process_stat(pid: int) -> tuple[str, int] | None:
    """Return the state letter and the start time of a process, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the command in parentheses and may contain anything, so count from the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def boot_id() -> str:
    """Return what changes with every boot of this machine; "" where there is no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def own_identity() -> str:
    """Return ``HOST_PID-START-PIDNAMESPACE-BOOT`` of this process: unique, and legal in an HTTP header."""
    stat = process_stat(os.getpid())
    return f"{socket.gethostname()}_{os.getpid()}-{stat[1] if stat else 0}-{_place()}"


def has_ended(identity: str) -> bool:
    """Tell whether the process of that identity has certainly ended.

    False where that cannot be known: for a process of another machine or pid namespace, and for any other text.
    """
    match = _IDENTITY.fullmatch(identity)
    if match is None or match["place"] != _place():
        return False
    pid, start = int(match["pid"]), int(match["start"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    stat = process_stat(pid)
    return stat is not None and (stat[0] in "ZX" or stat[1] != start)


def _place() -> str:
    """Where pids mean what they mean here; "" where that cannot be told."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
        # A /proc of another pid namespace shows other processes than those that kill() reaches.
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return ""
    except OSError:
        return ""
    boot = boot_id().replace("-", "")
    return f"{namespace.strip('pid:[]')}-{boot[:12]}" if boot else ""
