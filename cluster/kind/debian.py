"""Programs that come as Debian packages: found, or installed by root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from cluster.errors import ClusterError, UnavailableError
from cluster.events import Event, Report
from cluster.paths import cache_dir
from cluster.procs import tail

#: The package of each program we may need.
PACKAGES: Mapping[str, str] = {
    "debootstrap": "debootstrap",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "iptables-save": "iptables",
    "zstd": "zstd",
}

#: Not in every user's PATH.
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def search_path() -> str:
    """Return the PATH that programs of the administrator are found in, too."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), _SBIN)))


def missing(programs: Iterable[str]) -> list[str]:
    """Return the programs that this machine does not have."""
    return [program for program in programs if shutil.which(program, path=search_path()) is None]


def can_install() -> bool:
    """Tell whether we may install packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def ensure(programs: Iterable[str], purpose: str, report: Report) -> None:
    """Install what is missing of some programs.

    :param purpose: what they are for: the subject of the message when they cannot be had
    :raises UnavailableError: if something is missing and we may not install it
    :raises ClusterError: if installing failed
    """
    absent = missing(programs)
    if not absent:
        return
    packages = sorted({PACKAGES[program] for program in absent})
    if not can_install():
        raise UnavailableError(
            f"{purpose} needs {', '.join(absent)}, which is not here and only root can install, on Debian with "
            f"apt-get install {' '.join(packages)}"
        )
    report(Event("note", f"{purpose} needs {', '.join(absent)}: installing Debian's {', '.join(packages)}"))
    log = cache_dir() / "logs" / "apt.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=False,
            )
    if done.returncode != 0 or missing(absent):
        last = "".join(f"\n    {line}" for line in tail(log, 8))
        raise ClusterError(f"installing {', '.join(packages)} failed:{last}\n  the whole log: {log}")
