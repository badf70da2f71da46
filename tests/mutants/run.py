"""Run the tests against each mutant and say which survive.

Each mutant is a fork of a process that has loaded everything but the code under test: it imports the mutated module and
runs the tests that concern it, examples and state machine apart. A mutant is killed when a test fails, when the event
loop waits with nothing left to happen, or when it takes many times the processor time of the true code.
"""

from __future__ import annotations

import ast
import faulthandler
import gc
import importlib.machinery
import importlib.util
import os
import resource
import selectors
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import anyio.pytest_plugin
import blockbuster
import hypothesis.stateful
import pytest
import structlog.testing
from hypothesis import HealthCheck, Phase, settings

from .mutate import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
UNIT = "tests/unit/runtime"
#: Loaded before the forks: nothing of it may import a module under test.
_PRELOADED = (anyio.pytest_plugin, blockbuster, hypothesis.stateful, structlog.testing)
_HANGS = 99


@dataclass(frozen=True, slots=True)
class Suite:
    """What tests one module: ``examples`` and, apart, its state machines."""

    examples: tuple[str, ...]
    machines: tuple[str, ...]


QUEUE, READING = "test_workqueue_machine.py", "test_informer_machine.py"
RECONCILE, LEADING = "test_reconcile_machine.py", "test_election_machine.py"
SUITES = {
    "workqueue": Suite(("test_workqueue.py", "test_controller.py"), (QUEUE,)),
    "informer": Suite(("test_informer.py",), (READING,)),
    "store": Suite(("test_store.py", "test_informer.py"), (READING,)),
    "reflector": Suite(("test_informer.py",), (READING,)),
    "writes": Suite(("test_writes.py",), (RECONCILE,)),
    "election": Suite(("test_election.py",), (LEADING,)),
}


@dataclass(slots=True)
class Verdict:
    """How one mutant fared. ``killed`` by: "examples", "machines"."""

    mutant: Mutant
    killed: set[str] = field(default_factory=set)


class _Planted(importlib.machinery.SourceFileLoader):
    """Imports the module from a tree instead of from its file; also the finder of it."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        super().__init__(f"runtime.{module}", str(path_of(module)))
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(ast.fix_missing_locations(self._tree), self.path, "exec")

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def path_of(module: str) -> Path:
    return ROOT / "runtime" / f"{module}.py"


def parse(module: str) -> tuple[ast.Module, list[Mutant]]:
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    return tree, mutants_of(module, tree)


def preload() -> None:
    """Everything the tests need and no mutant changes, and settings under which Hypothesis repeats itself."""
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    sys.dont_write_bytecode, sys.pycache_prefix = False, tempfile.mkdtemp()  # compiled once, and not into the project
    importlib.import_module("tests.unit.fakes.apiserver")
    early = [module for module in SUITES if f"runtime.{module}" in sys.modules]
    assert not early, f"loaded before the fork: {early}"
    gc.freeze()


def _test(tests: Iterable[str], module: str, tree: ast.Module, mutant: Mutant | None, *, quiet: bool) -> int:
    """In the fork: pytest's exit code on the mutant."""
    if quiet:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
    if mutant is not None:
        mutant.plant()
    sys.meta_path.insert(0, _Planted(module, tree))  # type: ignore[arg-type]
    select = selectors.DefaultSelector.select

    def never_for_ever(self: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            os._exit(_HANGS)  # no timer, no socket, no thread: nothing can happen any more
        return select(self, timeout)

    selectors.DefaultSelector.select = never_for_ever  # type: ignore[method-assign]
    faulthandler.dump_traceback_later(120, exit=True)
    options = ["-x", "-q", "--no-header", "--assert=plain", "--tb=short"]
    options += [part for plugin in ("randomly", "cacheprovider", "faulthandler") for part in ("-p", f"no:{plugin}")]
    return pytest.main([*options, *(f"{UNIT}/{test}" for test in tests)])


def fork(
    tests: Iterable[str], module: str, tree: ast.Module, mutant: Mutant | None, cpu: float, *, quiet: bool = True
) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu)))
        os._exit(int(_test(tests, module, tree, mutant, quiet=quiet)))
    except BaseException:
        if not quiet:
            traceback.print_exc()
        os._exit(1)


def true_seconds(module: str, tests: Iterable[str]) -> float:
    """Processor seconds of the tests on the true code, which must pass."""
    tree, _ = parse(module)
    _, status, usage = os.wait4(fork(tests, module, tree, None, 300), 0)
    if status:
        raise SystemExit(f"{module}: {' '.join(tests)} fail on the true code")
    return usage.ru_utime + usage.ru_stime


def judge(module: str, chosen: str, *, jobs: int, quick: bool) -> list[Verdict]:
    """Every mutant of ``module`` whose name contains ``chosen``; ``quick``: no machine for what the examples kill."""
    tree, mutants = parse(module)
    verdicts = [Verdict(mutant) for mutant in mutants if chosen in str(mutant)]
    suite = SUITES[module]
    tests = {kind: names for kind, names in (("machines", suite.machines), ("examples", suite.examples)) if names}
    limits = {kind: 5 + 4 * true_seconds(module, names) for kind, names in tests.items()}
    waiting = [(verdict, kind) for verdict in reversed(verdicts) for kind in tests]
    running: dict[int, tuple[Verdict, str]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            verdict, kind = waiting.pop()
            if not (quick and verdict.killed):
                running[fork(tests[kind], module, tree, verdict.mutant, limits[kind])] = verdict, kind
        if running:
            pid, status = os.wait()
            verdict, kind = running.pop(pid)
            if status:
                verdict.killed.add(kind)
            if os.environ.get("TRACE"):
                print(kind, status, verdict.mutant, flush=True)
    return verdicts
