"""The faults that `make mutants` plants: named by what they change, one at a time, each another program."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.mutants.mutate import mutants_of
from tests.mutants.run import ROOT, SUITES

SOURCE = '''
Alias = Callable[[int | None], None]
LIMIT = 3

class Queue:
    """Text."""
    def take(self, key: int | None = None) -> int:
        assert key != 1
        if not self.closed and key <= LIMIT:
            return
        for item in self.items:
            if item is key:
                break
        self.taken = True
        self.counts[key] += 1
        try:
            log(key, level=-key)
        except KeyError:
            raise ValueError(key)
        finally:
            self.stop()
            self.closed = False
        return key + 1 if self.open else None
'''


def test_what_is_planted() -> None:
    found = [str(mutant).removeprefix("m:") for mutant in mutants_of("m", ast.parse(SOURCE))]
    take = [what.removeprefix("Queue.take:") for what in found if what.startswith("Queue.take:")]
    assert [what for what in found if not what.startswith("Queue.take:")] == [
        "<module>:LIMIT = 3 → LIMIT = 4",
        "<module>:LIMIT = 3 → LIMIT = 2",
    ]
    assert sorted(take) == sorted(
        [
            "condition not self.closed and key <= LIMIT → not",
            "not self.closed and key <= LIMIT → not self.closed or key <= LIMIT",
            "not self.closed → not not self.closed",
            "key <= LIMIT → key < LIMIT",
            "key <= LIMIT → key > LIMIT",
            "− return",
            "item is key → item is not key",
            "break → continue",
            "− self.taken = True",
            "self.taken = True → self.taken = False",
            "− self.counts[key] += 1",
            "self.counts[key] += 1 → self.counts[key] -= 1",
            "self.counts[key] += 1 → self.counts[key] += 2",
            "self.counts[key] += 1 → self.counts[key] += 0",
            "− log(key, level=-key)",
            "− level= of log(key, level=-key)",
            "-key → +key",
            "− except KeyError",
            "− raise ValueError(key)",
            "− finally",
            "− self.stop()",
            "− self.closed = False",
            "self.closed = False → self.closed = True",
            "return key + 1 if self.open else None → return",
            "condition self.open → not",
            "key + 1 → key - 1",
            "key + 1 → key + 2",
            "key + 1 → key + 0",
        ]
    )


def test_each_is_one_change_and_another_program() -> None:
    tree = ast.parse(SOURCE)
    original = ast.unparse(tree)
    programs = set()
    for n in range(len(mutants_of("m", tree))):
        fresh = ast.parse(SOURCE)
        mutant = mutants_of("m", fresh)[n]
        assert ast.unparse(fresh) == original, "naming them changes nothing"
        mutant.plant()
        programs.add(ast.unparse(ast.fix_missing_locations(fresh)))
    assert len(programs) == len(mutants_of("m", tree))
    assert original not in programs


def test_what_is_reviewed_exists() -> None:
    reviewed = tomllib.loads((ROOT / "tests" / "mutants" / "reviewed.toml").read_text(encoding="utf-8"))
    names = set()
    for module in SUITES:
        path: Path = ROOT / "runtime" / f"{module}.py"
        names |= {str(mutant) for mutant in mutants_of(module, ast.parse(path.read_text(encoding="utf-8")))}
    assert set(reviewed) <= names
    assert all(reason.endswith(".") for reason in reviewed.values())
