"""Run the tests against each mutant and say which survive.

Pytest collects the tests once, on the true code; each mutant is a fork of that process in which the code of every
function and the constants of the module are exchanged for the mutant's. A mutant is killed when a test fails, when the
event loop waits with nothing left to happen, or when it takes a second and three times the true code's processor time.
"""

from __future__ import annotations

import ast
import faulthandler
import gc
import importlib
import itertools
import math
import os
import resource
import selectors
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from .mutate import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
UNIT = "tests/unit/runtime"
#: Seconds after which a test that waits for something outside counts as failed.
_PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Suite:
    """What tests one module: ``examples`` and, apart, its state machine."""

    examples: tuple[str, ...]
    machine: str


_READING = "test_informer_machine.py"
SUITES = {
    "workqueue": Suite(("test_workqueue.py", "test_controller.py"), "test_workqueue_machine.py"),
    "informer": Suite(("test_informer.py", "test_reflector.py"), _READING),
    "store": Suite(("test_store.py", "test_informer.py", "test_reflector.py"), _READING),
    "reflector": Suite(("test_reflector.py", "test_informer.py"), _READING),
    "writes": Suite(("test_writes.py",), "test_reconcile_machine.py"),
    "election": Suite(("test_election.py",), "test_election_machine.py"),
}


@dataclass(slots=True)
class Verdict:
    """How one mutant fared. ``killed`` by: "examples", "machine"."""

    mutant: Mutant
    killed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Judge:
    """A pytest plugin: judges mutants instead of running the tests.

    :param like: only mutants whose name contains this
    :param quick: the machine runs only for what the examples do not kill
    :param verbose: tell each outcome; 0 is a mutant that lives
    """

    modules: list[str]
    like: str
    quick: bool
    verbose: bool
    jobs: int
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)

    def run(self) -> None:
        """Fill :attr:`verdicts`."""
        # Hypothesis repeats itself and looks for no smaller example.
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
        suites = [SUITES[module] for module in self.modules]
        files = {name for suite in suites for name in (*suite.examples, suite.machine)}
        options = ["-x", "-qq", "-s", "--no-header", "--assert=plain"]
        options += [part for plugin in ("randomly", "cacheprovider", "faulthandler") for part in ("-p", f"no:{plugin}")]
        if pytest.main([*options, *(f"{UNIT}/{name}" for name in sorted(files))], plugins=[self]):
            raise SystemExit(1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Pytest's hook, once all tests are collected."""
        gc.freeze()
        for module in self.modules:
            suite = SUITES[module]
            named = {"machine": (suite.machine,), "examples": suite.examples}
            tests = {kind: [i for i in session.items if i.path.name in names] for kind, names in named.items()}
            assert all(tests.values())
            self.verdicts[module] = self._judge(module, tests)
            print(f"{module}: {len(self.verdicts[module])} mutants", flush=True)
        return True

    def _judge(self, module: str, tests: dict[str, list[pytest.Item]]) -> list[Verdict]:
        tree = ast.parse((ROOT / "runtime" / f"{module}.py").read_text(encoding="utf-8"))
        verdicts = [Verdict(mutant) for mutant in mutants_of(module, tree) if self.like in str(mutant)]
        limits = {kind: 1 + 3 * _true_seconds(tree, module, items) for kind, items in tests.items()}
        waiting = [(verdict, kind) for verdict in reversed(verdicts) for kind in tests]
        running: dict[int, tuple[Verdict, str]] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                verdict, kind = waiting.pop()
                if not (self.quick and verdict.killed):
                    running[_fork(tree, module, tests[kind], verdict.mutant, limits[kind])] = verdict, kind
            if running:
                pid, status = os.wait()
                verdict, kind = running.pop(pid)
                if status:
                    verdict.killed.add(kind)
                if self.verbose:
                    print(kind, status, verdict.mutant, flush=True)
        return verdicts


def _true_seconds(tree: ast.Module, module: str, tests: list[pytest.Item]) -> float:
    """Processor seconds of the tests on the true code, which must pass."""
    _, status, usage = os.wait4(_fork(tree, module, tests, None, 300), 0)
    if status:
        raise SystemExit(f"{module}: tests fail on the true code")
    return usage.ru_utime + usage.ru_stime


def _fork(tree: ast.Module, module: str, tests: list[pytest.Item], mutant: Mutant | None, seconds: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
        if mutant is not None:
            mutant.plant()
        _exchange(importlib.import_module(f"runtime.{module}"), tree)
        _run(tests)
    except BaseException:  # the fork must not go on as its parent
        os._exit(1)
    os._exit(0)


def _run(tests: list[pytest.Item]) -> None:
    """As pytest would."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    select = selectors.DefaultSelector.select

    def never_for_ever(self: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            os._exit(1)  # no timer, no socket, no thread: nothing can happen any more
        return select(self, timeout)

    selectors.DefaultSelector.select = never_for_ever  # type: ignore[method-assign]
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    for test, following in itertools.zip_longest(tests, tests[1:]):
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if test.session.testsfailed:
            os._exit(1)


def _exchange(module: ModuleType, tree: ast.Module) -> None:
    """Make ``module`` what ``tree`` says, for all who hold functions and classes of it."""
    new = ModuleType(module.__name__)
    exec(compile(ast.fix_missing_locations(tree), str(module.__file__), "exec"), new.__dict__)
    for name, value in vars(new).items():
        if isinstance(value, int | float | tuple):
            for holder in [m for key, m in sys.modules.items() if key.startswith(("runtime.", "tests.unit."))]:
                if vars(holder).get(name) is vars(module)[name]:
                    setattr(holder, name, value)
        elif getattr(value, "__module__", None) == module.__name__:
            _graft(vars(module)[name], value)


def _graft(old: Any, new: Any) -> None:
    if isinstance(new, FunctionType):
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
    elif isinstance(new, property):
        _graft(old.fget, new.fget)
    elif isinstance(new, type):
        for name, value in vars(new).items():
            if isinstance(value, FunctionType | property) and name in vars(old):
                _graft(vars(old)[name], value)
