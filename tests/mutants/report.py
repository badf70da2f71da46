"""What a run found, as a page for readers and as reasons to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .run import SUITES, Verdict

#: Of the mutants of each module, at least this share is killed.
LEAST = 0.9

_HEAD = """\
# Mutants

Written by `make mutants`. It plants one small fault at a time in the reconcile framework (`tests/mutants/mutate.py`
says which faults) and runs the tests that concern the module. A mutant that no test notices is listed below with the
reason why it changes no behaviour; the run fails when one is not listed, or when less than 90 % are killed.
"""


def shortcomings(
    verdicts: Mapping[str, Sequence[Verdict]], reviewed: Mapping[str, str], *, whole: bool = True
) -> list[str]:
    """Why the run fails; nothing if it does not.

    :param whole: all mutants of the modules were judged
    """
    found = []
    for module, judged in verdicts.items():
        survivors = {str(verdict.mutant) for verdict in judged if not verdict.killed}
        listed = {name for name in reviewed if name.startswith(f"{module}:")}
        found += [f"survives and is not listed: {name}" for name in sorted(survivors - listed)]
        if not whole:
            continue
        found += [f"listed and does not survive: {name}" for name in sorted(listed - survivors)]
        if len(survivors) > (1 - LEAST) * len(judged):
            found.append(f"{module}: {len(survivors)} of {len(judged)} survive")
    return found


def page(verdicts: Mapping[str, Sequence[Verdict]], reviewed: Mapping[str, str]) -> str:
    """docs/mutants.md."""
    lines = [
        _HEAD,
        "| module | mutants | killed | survive | killed by its state machine alone |",
        "|---|--:|--:|--:|--:|",
    ]
    for module, judged in verdicts.items():
        killed = sum(bool(verdict.killed) for verdict in judged)
        alone = sum("machine" in verdict.killed for verdict in judged)
        share = f"{killed / len(judged):.1%}"
        numbers = f"{len(judged)} | {killed} ({share}) | {len(judged) - killed} | {alone}: `{SUITES[module].machine}`"
        lines.append(f"| `runtime/{module}.py` | {numbers} |")
    for module, judged in verdicts.items():
        survivors = [verdict.mutant for verdict in judged if not verdict.killed]
        if survivors:
            lines += ["", f"## `runtime/{module}.py`", ""]
        for mutant in survivors:
            lines.append(f"- `{mutant.function}`: `{mutant.what}`. {reviewed[str(mutant)]}")
    return "\n".join(lines) + "\n"
