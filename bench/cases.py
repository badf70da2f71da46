"""What can be measured, and how it is written: ``300x10``, ``3x100+20000``, ``stream:50x4@30``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gangs", "singles", "stream", "nofit", "jobs"]

#: What a node of the bench has: cores, bytes, pods.
NODE_CPU, NODE_MEMORY, NODE_PODS = 8, "32Gi", 110

#: What is measured unless something else is asked for.
DEFAULT = (
    "3x100 300x10 1x1000 3x1000 1x5000 "
    "3x100+20000 300x10+20000 1x1000+20000 3x1000+20000 1x5000+20000 "
    "singles:3000 stream:50x4@30 nofit:1000 jobs:3x100"
)

ALLOWED = """\
    GxS             G gangs of S pods each, created at once
    singles:N       N pods without a group
    stream:RxS@T    R gangs of S pods a second, for T seconds
    nofit:S         one gang of S pods, of which one too few fit: until somebody says so
    jobs:GxS        G Jobs of S pods each
    …+B             any of these, with B pods bound already: 3x100+20000"""

_NUMBER = r"[1-9][0-9]{0,5}"
_SYNTAX = re.compile(
    rf"(?:(?P<kind>gangs|jobs):)?(?P<groups>{_NUMBER})x(?P<size>{_NUMBER})(?:\+(?P<bound>{_NUMBER}))?"
    rf"|singles:(?P<singles>{_NUMBER})(?:\+(?P<bound2>{_NUMBER}))?"
    rf"|nofit:(?P<nofit>{_NUMBER})(?:\+(?P<bound3>{_NUMBER}))?"
    rf"|stream:(?P<rate>{_NUMBER})x(?P<members>{_NUMBER})@(?P<seconds>{_NUMBER})(?:\+(?P<bound4>{_NUMBER}))?"
)


class CaseError(ValueError):
    """A case that cannot be measured; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure.

    :param groups: how many gangs or Jobs; of single pods, one "group" each
    :param size: pods in each
    :param bound: pods that are bound already when it begins
    :param rate: gangs a second, of a stream; 0: all at once
    """

    kind: Kind
    groups: int
    size: int
    bound: int = 0
    rate: int = 0

    def __str__(self) -> str:
        what = {
            "gangs": f"{self.groups}x{self.size}",
            "jobs": f"jobs:{self.groups}x{self.size}",
            "singles": f"singles:{self.groups}",
            "nofit": f"nofit:{self.size}",
            "stream": f"stream:{self.rate}x{self.size}@{self.groups // self.rate if self.rate else 0}",
        }[self.kind]
        return what + (f"+{self.bound}" if self.bound else "")

    @property
    def pods(self) -> int:
        """How many pods are to be scheduled."""
        return self.groups * self.size

    @property
    def fits(self) -> bool:
        """Whether the pods are to be bound, rather than refused."""
        return self.kind != "nofit"

    def check(self, nodes: int) -> None:
        """See that the case can end on this many nodes; one core a pod, and one node is left free.

        :raises CaseError: if it cannot
        """
        wanted, room = self.bound + (self.pods if self.fits else 0), NODE_CPU * (nodes - 1)
        if wanted > room:
            fewest = -(-wanted // NODE_CPU) + 1
            raise CaseError(f"case {self} has {wanted:,} pods of one core; {nodes:,} nodes do not do: NODES={fewest}")
        if not self.fits and self.size < 2:
            raise CaseError(f"case {self}: a gang of which some fit and some do not has 2 pods or more")
        if not self.fits and self.bound:
            raise CaseError(f"case {self}: how many pods are bound already follows from the number of nodes here")


def parse(text: str) -> Case:
    """Read one case.

    :raises CaseError: if it is not one
    """
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise CaseError(f"{text!r} is no case; allowed are (numbers from 1 to 999999):\n{ALLOWED}")
    bound = next((int(match[name]) for name in ("bound", "bound2", "bound3", "bound4") if match[name]), 0)
    if match["singles"]:
        return Case("singles", int(match["singles"]), 1, bound)
    if match["nofit"]:
        return Case("nofit", 1, int(match["nofit"]), bound)
    if match["rate"]:
        rate = int(match["rate"])
        return Case("stream", rate * int(match["seconds"]), int(match["members"]), bound, rate)
    return Case("jobs" if match["kind"] == "jobs" else "gangs", int(match["groups"]), int(match["size"]), bound)


def parse_all(texts: Iterable[str], nodes: int) -> list[Case]:
    """Read cases separated by spaces or commas, each once, in their order.

    :raises CaseError: at the first that is none, or that cannot be on so many nodes
    """
    cases = dict.fromkeys(parse(word) for text in texts for word in text.replace(",", " ").split())
    for case in cases:
        case.check(nodes)
    if not cases:
        raise CaseError(f"no case was given; allowed are:\n{ALLOWED}")
    return list(cases)
