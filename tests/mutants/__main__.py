"""``python -m tests.mutants``: see :mod:`tests.mutants.run`."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path

from .report import page, shortcomings
from .run import ROOT, SUITES, fork, judge, parse, preload

REVIEWED = Path(__file__).parent / "reviewed.toml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", choices=SUITES, action="append", help="a module; may be repeated")
    parser.add_argument("--like", default="", help="only mutants whose name contains this")
    parser.add_argument(
        "--quick", action="store_true", help="leave out what only tells how good the state machines are"
    )
    parser.add_argument("--show", action="store_true", help="show how the tests fare on each chosen mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.chdir(ROOT)
    preload()
    if options.show:
        for module in options.only or SUITES:
            tree, mutants = parse(module)
            for mutant in (mutant for mutant in mutants if options.like in str(mutant)):
                print(f"\n{mutant}", flush=True)
                tests = SUITES[module].examples + SUITES[module].machines
                os.waitpid(fork(tests, module, tree, mutant, 120, quiet=False), 0)
        return 0
    reviewed: dict[str, str] = tomllib.loads(REVIEWED.read_text(encoding="utf-8"))
    verdicts = {}
    for module in options.only or SUITES:
        verdicts[module] = judge(module, options.like, jobs=options.jobs, quick=options.quick)
        survivors = [verdict.mutant for verdict in verdicts[module] if not verdict.killed]
        print(f"{module}: {len(verdicts[module])} mutants, {len(survivors)} survive", flush=True)
        for mutant in survivors:
            print(f"  {'reviewed ' if str(mutant) in reviewed else 'SURVIVES '}{mutant}", flush=True)
    if options.like:
        return 0
    found = shortcomings(verdicts, reviewed)
    print(*found, sep="\n")
    if not found and not options.only and not options.quick:
        (ROOT / "docs" / "mutants.md").write_text(page(verdicts, reviewed), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
