"""The docker command line, as far as a kind cluster needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.kind import debian

#: Tells whether images can be pulled at all, before minutes are spent on trying.
_REGISTRY = "https://registry-1.docker.io/v2/"
_PULL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Docker:
    """One Docker daemon: the user's (whatever their environment and context say), or the one at ``host``."""

    host: str = ""

    def env(self) -> dict[str, str]:
        """Return the environment in which docker, and kind through it, use this daemon."""
        own = {"PATH": debian.search_path(), "KIND_EXPERIMENTAL_PROVIDER": "docker"}
        return {**os.environ, **own, **({"DOCKER_HOST": self.host} if self.host else {})}

    def answers(self) -> bool:
        """Tell whether the daemon runs and lets us in."""
        try:
            return bool(self.run("version", "--format", "{{.Server.Version}}", timeout=15))
        except ClusterError:
            return False

    @property
    def identity(self) -> str:
        """What tells the daemon from all others, however it is reached; empty if it does not answer."""
        try:
            return self.run("info", "--format", "{{.ID}}", timeout=15)
        except ClusterError:
            return ""

    def run(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:  # noqa: A002
        """Run a docker command and return what it prints.

        :raises ClusterError: if it fails; the message has what it said
        """
        called = " ".join(["docker", *arguments[:3]])
        try:
            done = subprocess.run(
                ["docker", *arguments],
                env=self.env(),
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{called} did not end within {timeout:.0f} s") from None
        except OSError as error:
            raise ClusterError(f"{called}: {error.strerror}") from error
        if done.returncode != 0:
            raise ClusterError(f"{called} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Tell whether the daemon has an image."""
        try:
            return bool(self.run("image", "inspect", "--format", "{{.Id}}", image))
        except ClusterError:
            return False

    def pull(self, image: str) -> bool:
        """Pull an image; False if that does not work here."""
        if not _registry_answers():
            return False
        try:
            self.run("pull", "--quiet", image, timeout=_PULL_SECONDS)
        except ClusterError:
            return False
        return True

    def load(self, archive: Path, image: str, changes: Sequence[str]) -> None:
        """Make an image of a root file system that is a tar archive packed with zstd.

        :param changes: Dockerfile instructions for its configuration
        :raises ClusterError: if that fails
        """
        options = [word for change in changes for word in ("--change", change)]
        with subprocess.Popen(
            ["zstd", "-q", "-d", "-c", str(archive)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as unpack:
            done = subprocess.run(
                ["docker", "import", *options, "-", image],
                env=self.env(),
                stdin=unpack.stdout,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        if done.returncode != 0 or unpack.returncode != 0:
            raise ClusterError(f"loading {archive} into docker failed: {done.stderr.strip()}")

    def pid(self, container: str) -> int:
        """Return the process id, on this machine, of a container's first process."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", container))


def _registry_answers() -> bool:
    try:
        with urllib.request.urlopen(_REGISTRY, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # "who are you?" is an answer
    except OSError:
        return False


def obstacle() -> str:
    """Say why this machine, or this user, can have no Docker daemon; empty if it has one or can."""
    if not sys.platform.startswith("linux"):
        return "" if Docker().answers() else "no Docker daemon answers; start Docker"
    if shutil.which("docker") and Docker().answers():
        return ""
    if os.geteuid() != 0:
        return "no Docker daemon answers, and only root can start one: start Docker, or run this as root"
    if debian.missing(["dockerd"]) and not debian.can_install():
        return "no Docker daemon answers, and there is neither dockerd nor an apt-get to install it: install Docker"
    return ""
