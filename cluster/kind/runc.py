"""An OCI runtime in front of runc: ``python runc.py RUNC ARGUMENT...``.

A privileged container asks for every capability there is; on a machine that is itself confined the kernel refuses
those that the machine does not have, and the container does not start. Here they are taken out of the request: the
container gets all that can be had. Standard library only, and run as a file: it starts for each container and exec.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Capabilities by their number in the kernel's masks.
_NAMES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)


def granted(status: str) -> set[str]:
    """Return the capabilities of a process' bounding set, from its ``/proc/PID/status``."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            mask = int(line.split()[1], 16)
            return {f"CAP_{name}" for number, name in enumerate(_NAMES) if mask >> number & 1}
    return set()


def withheld(status: str) -> set[str]:
    """Return the capabilities that this machine does not have."""
    return {f"CAP_{name}" for name in _NAMES} - granted(status)


def reduce(process: dict[str, Any], having: set[str]) -> None:
    """Leave in an OCI process only the capabilities there are."""
    for names in process.get("capabilities", {}).values():
        names[:] = [name for name in names if name in having]


def request_of(argv: Sequence[str]) -> tuple[Path, bool] | None:
    """Return the file that says what process is asked for, and whether it is a whole container's; None if none is."""
    options = {"--bundle": "", "-b": "", "--process": "", "-p": ""}
    verb = ""
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in options:
            options[name] = value if equals else argv[index + 1] if index + 1 < len(argv) else ""
        elif not verb and argument in ("create", "run", "exec"):
            verb = argument
    if verb in ("create", "run"):
        return Path(options["--bundle"] or options["-b"] or ".", "config.json"), True
    process = options["--process"] or options["-p"]
    return (Path(process), False) if verb == "exec" and process else None


def main() -> None:
    """Take out what cannot be had, and become runc."""
    argv = sys.argv[1:]
    request = request_of(argv)
    if request is not None:
        path, whole = request
        document = json.loads(path.read_text())
        reduce(document["process"] if whole else document, granted(Path("/proc/self/status").read_text()))
        path.write_text(json.dumps(document))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
