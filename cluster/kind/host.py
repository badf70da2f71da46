"""What a Docker daemon and kubelets change on the machine as a whole, and putting it back.

Only what was not so before and bears Docker's names is touched: other programs may have changed rules meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cluster.kind.debian import search_path

#: Set by dockerd (the first two), by kubelets (all of ``vm`` and ``kernel``) and by us (the last).
SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
    "fs.inotify.max_user_instances",
)

_FIREWALLS = ("iptables", "ip6tables")
_DOCKERS = re.compile(r"\bDOCKER|\bdocker0\b|\bbr-[0-9a-f]{12}\b")
_BRIDGE = re.compile(r"docker0|br-[0-9a-f]{12}")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine before: values, ``iptables-save`` texts by program, network interfaces, cgroups called docker."""

    sysctls: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()

    @classmethod
    def take(cls) -> Snapshot:
        """Look at this machine now."""
        return cls(
            sysctls={name: value for name in SYSCTLS if (value := get_sysctl(name)) is not None},
            rules={program: _saved(program) for program in _FIREWALLS},
            links=tuple(_links()),
            cgroups=tuple(str(path) for path in _docker_cgroups()),
        )

    def restore(self) -> None:
        """Put this machine back to what it was; what cannot be is left."""
        for name, value in self.sysctls.items():
            if get_sysctl(name) != value:
                set_sysctl(name, value)
        for program, before in self.rules.items():
            for arguments in undo_rules(before, _saved(program)):
                _quietly(program, "-w", *arguments)
        for link in _links():
            if link not in self.links and _BRIDGE.fullmatch(link):
                _quietly("ip", "link", "delete", link)
        for path in _docker_cgroups():
            if str(path) not in self.cgroups:
                _remove_cgroups(path)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Snapshot:
        """Return what :meth:`to_json` was called on."""
        return cls(raw["sysctls"], raw["rules"], tuple(raw["links"]), tuple(raw["cgroups"]))


def undo_rules(before: str, after: str) -> list[list[str]]:
    """Return the arguments of the iptables calls that take out Docker's rules, chains and policies.

    :param before, after: what ``iptables-save`` printed
    """
    old, new = _tables(before), _tables(after)
    calls: list[list[str]] = []
    for table, lines in new.items():
        was = Counter(_plain(line) for line in old.get(table, []))
        added = [line for line in map(_plain, lines) if not was[line]]
        rules = [rule for rule in added if rule.startswith("-A ") and _DOCKERS.search(rule)]
        calls += [["-t", table, "-D", *shlex.split(rule)[1:]] for rule in rules]
        chains = [line[1:].split()[0] for line in added if line.startswith(":DOCKER")]
        calls += [["-t", table, "-F", chain] for chain in chains]
        calls += [["-t", table, "-X", chain] for chain in chains]
        if ":FORWARD DROP" in added and table == "filter":
            calls.append(["-t", table, "-P", "FORWARD", "ACCEPT"])
    return calls


def _tables(saved: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            lines = tables.setdefault(line[1:].strip(), [])
        elif line.startswith((":", "-A ")):
            lines.append(line)
    return tables


def _plain(line: str) -> str:
    """Return a line of iptables-save without its packet counters."""
    return re.sub(r" \[\d+:\d+\]$", "", line)


def get_sysctl(name: str) -> str | None:
    """Return a kernel setting, None where the kernel has none of the name."""
    try:
        return _sysctl(name).read_text().strip()
    except OSError:
        return None


def set_sysctl(name: str, value: str) -> None:
    """Change a kernel setting if we may."""
    with contextlib.suppress(OSError):
        _sysctl(name).write_text(value)


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def _links() -> list[str]:
    try:
        return sorted(path.name for path in Path("/sys/class/net").iterdir())
    except OSError:
        return []


def _docker_cgroups() -> Iterator[Path]:
    # The hierarchy itself with cgroup v2, one folder a controller with v1.
    for path in (_CGROUPS / "docker", *_CGROUPS.glob("*/docker")):
        if path.is_dir():
            yield path


def _remove_cgroups(path: Path) -> None:
    """Remove a cgroup and those in it; the kernel may need a moment to see that the last process is gone."""
    for _ in range(20):
        for folder, _folders, _files in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        if not path.exists():
            return
        time.sleep(0.1)


def _saved(program: str) -> str:
    found = shutil.which(f"{program}-save", path=search_path())
    if found is None:
        return ""
    return subprocess.run([found], capture_output=True, text=True, timeout=30, check=False).stdout


def _quietly(program: str, *arguments: str) -> None:
    found = shutil.which(program, path=search_path())
    if found is not None:
        subprocess.run([found, *arguments], capture_output=True, timeout=30, check=False)
