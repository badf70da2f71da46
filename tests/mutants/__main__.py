"""``python -m tests.mutants``: see :mod:`tests.mutants.run`."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path

from .report import page, shortcomings
from .run import ROOT, SUITES, Judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", choices=SUITES, action="append", help="a module; may be repeated")
    parser.add_argument("--like", default="", help="only mutants whose name contains this")
    parser.add_argument("--quick", action="store_true", help="leave out what only tells how good the machines are")
    parser.add_argument("--verbose", action="store_true", help="tell each outcome as it is known")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.chdir(ROOT)
    reviewed: dict[str, str] = tomllib.loads((Path(__file__).parent / "reviewed.toml").read_text(encoding="utf-8"))
    judge = Judge(options.only or list(SUITES), options.like, options.quick, options.verbose, options.jobs)
    judge.run()
    found = shortcomings(judge.verdicts, reviewed, whole=not options.like)
    print(*found, sep="\n")
    if not (found or options.only or options.like or options.quick):
        (ROOT / "docs" / "mutants.md").write_text(page(judge.verdicts, reviewed), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
