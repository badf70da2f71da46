"""Builds the components from the Go module proxy, once per version, into the cache.

No image and no release file is downloaded: a small Go module per component family (``gomod/``, with resolved
go.mod and go.sum) names the upstream module, and ``go build`` does the rest. A folder under ``<cache>/bin``
is there only when everything in it was built and printed the right version: it is built beside it, under a
lock, and renamed.

The folders under ``gomod/`` are copied to the cache first, since ``-mod=mod`` may write to them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import filelock

from cluster import golang
from cluster.errors import BuildError
from cluster.events import Event, Report
from cluster.leash import leashed
from cluster.paths import cache_dir
from cluster.procs import tail
from cluster.recipes import Recipe

_GOMOD = Path(__file__).parent / "gomod"


def ensure(recipes: Iterable[Recipe], report: Report) -> dict[str, Path]:
    """Return the path of every program of some recipes, building what is not in the cache yet.

    :raises GoToolchainError: if something must be built and there is no Go
    :raises BuildError: if a build fails; the message has the last lines of its log
    """
    go: golang.Go | None = None
    programs: dict[str, Path] = {}
    for recipe in recipes:
        if not recipe.folder.is_dir():
            go = go or golang.find(report)
            _build_once(recipe, go, report)
        programs |= {name: recipe.folder / name for name in recipe.programs}
    return programs


def _build_once(recipe: Recipe, go: golang.Go, report: Report) -> None:
    recipe.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(recipe.folder.with_name(f".{recipe.folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(Event("note", f"another process is building {recipe.name} {recipe.version}; waiting for it"))
        lock.acquire()
    with lock:
        if not recipe.folder.is_dir():
            build(recipe, go, report)


def build(recipe: Recipe, go: golang.Go, report: Report) -> None:
    """Build one recipe into its folder, whether or not it is there; the caller holds its lock."""
    logs = cache_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"build-{recipe.name}-{recipe.version}.log"
    source = cache_dir() / "src" / recipe.gomod
    part = recipe.folder.with_name(f".{recipe.folder.name}.part")
    for folder in (source, part):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_GOMOD / recipe.gomod, source)
    part.mkdir(parents=True)
    with log.open("w") as out:
        _GoRun(recipe, go, source, log, out, report).build(part)
    verify(recipe, part, log)
    shutil.rmtree(recipe.folder, ignore_errors=True)
    part.rename(recipe.folder)
    shutil.rmtree(source, ignore_errors=True)


def module_folder(recipe: Recipe, module: str, report: Report) -> Path:
    """Return the read-only folder of a module's sources, downloading them if they are not in Go's cache.

    :raises GoToolchainError: if there is no Go
    :raises BuildError: if the module cannot be had
    """
    go = golang.find(report)
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(_GOMOD / recipe.gomod, Path(folder) / recipe.gomod)
        done = subprocess.run(
            [go.path, "mod", "download", "-json", module],
            env=go.env(),
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise BuildError(f"downloading the Go module {module} failed:\n{(done.stderr or done.stdout).strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def verify(recipe: Recipe, folder: Path, log: Path) -> None:
    """Run every program of a recipe and compare the version it prints.

    :raises BuildError: if one does not run or says another version
    """
    for name, arguments in recipe.programs.items():
        try:
            done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, timeout=60, check=False)
            said = (done.stdout + done.stderr).strip()
        except (OSError, subprocess.SubprocessError) as error:
            said = str(error)
        if not re.search(rf"(?<![\d.]){re.escape(recipe.version)}(?![\d.])", said):
            raise BuildError(
                f"{name} was built, but does not say it is version {recipe.version}:\n    {said[:500]}\n"
                f"  build log: {log}"
            )


class _GoRun:
    """The two go commands of a build, their log, and the progress told from what they print."""

    def __init__(self, recipe: Recipe, go: golang.Go, source: Path, log: Path, out: IO[str], report: Report) -> None:
        self.recipe = recipe
        self.go = go
        self.source = source
        self.log = log
        self.out = out
        self.report = report

    def build(self, target: Path) -> None:
        what = f"{self.recipe.name} {self.recipe.version}"
        modules = self._modules_to_download()
        downloaded = 0

        def downloading(line: str) -> None:
            nonlocal downloaded
            downloaded += line.startswith("go: downloading ")

        def download_progress() -> Event:
            done = min(downloaded, modules)
            return Event("progress", f"{what}: downloading Go modules", f"download {what}", done, modules)

        listed = self._run(["list", "-deps", *self.recipe.packages], downloading, download_progress)
        self.report(Event("progress", f"{what}: Go modules are here", f"download {what}", modules, modules))

        packages = {line for line in listed if line != "unsafe"}
        compiled: set[str] = set()

        def compiling(line: str) -> None:
            if line in packages:
                compiled.add(line)

        def build_progress() -> Event:
            # The main packages come last; what follows the last of them is linking, which prints nothing.
            linking = compiled.issuperset(self.recipe.packages)
            verb = "linking" if linking else "compiling"
            return Event("progress", f"{what}: {verb}", f"build {what}", len(compiled), len(packages))

        self._run(
            [
                "build",
                "-v",
                "-trimpath",
                *(["-tags", ",".join(self.recipe.tags)] if self.recipe.tags else []),
                "-ldflags",
                self.recipe.ldflags,
                "-o",
                f"{target}/",
                *self.recipe.packages,
            ],
            compiling,
            build_progress,
        )
        self.report(Event("progress", f"{what}: built", f"build {what}", len(packages), len(packages)))

    def _modules_to_download(self) -> int:
        """Count the modules of go.mod that are not in the module cache."""
        cache = Path(self._go_env("GOMODCACHE"))
        required = re.findall(r"^(?:require )?\s*(\S+\.\S+) (v\S+)(?: // indirect)?$", _text(self.source), re.MULTILINE)
        replaced = dict(re.findall(r"^\s*(\S+) => \S+ (v\S+)$", _text(self.source), re.MULTILINE))
        missing = 0
        for module, version in required:
            # The module cache writes an upper-case letter as "!" and the lower-case one.
            escaped = re.sub(r"[A-Z]", lambda m: "!" + m[0].lower(), module)
            missing += not (cache / "cache/download" / escaped / "@v" / f"{replaced.get(module, version)}.zip").exists()
        return missing

    def _go_env(self, name: str) -> str:
        return subprocess.run(
            [self.go.path, "env", name],
            env=self.go.env(),
            cwd=self.source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def _run(self, arguments: list[str], on_line: Callable[[str], None], progress: Callable[[], Event]) -> list[str]:
        """Run go, report progress at least once a second, and return the lines of its standard output."""
        self.out.write(f"$ go {' '.join(arguments)}\n")
        self.out.flush()
        stdout: list[str] = []
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._started(arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            readers = [
                threading.Thread(target=_forward, args=(process.stdout, stdout.append), daemon=True),
                threading.Thread(target=_forward, args=(process.stderr, lines.put), daemon=True),
            ]
            for reader in readers:
                reader.start()
            next_report = 0.0
            while any(reader.is_alive() for reader in readers) or not lines.empty():
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=0.2)
                    if line is not None:
                        self.out.write(line + "\n")
                        on_line(line)
                if time.monotonic() >= next_report:
                    self.report(progress())
                    next_report = time.monotonic() + 0.5
            code = process.wait()
        self.out.flush()
        if code != 0:
            last = "".join(f"\n    {line}" for line in tail(self.log, 15))
            raise BuildError(
                f"building {self.recipe.name} {self.recipe.version} failed "
                f"(go {arguments[0]} exited with {code}):{last}\n  the whole log: {self.log}"
            )
        return stdout

    @contextlib.contextmanager
    def _started(self, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            leashed([str(self.go.path), *arguments]),
            cwd=self.source,
            env=self.go.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            # Ctrl-C: the compilers go's children run are in its session, and would go on without it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _forward(stream: IO[str], sink: Callable[[str], None]) -> None:
    with contextlib.suppress(ValueError):  # closed under us by an interrupted build
        for line in stream:
            sink(line.rstrip("\n"))


def _text(source: Path) -> str:
    return (source / "go.mod").read_text()
