"""The few numbers that a handful of runs comes down to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of some measurements, all in one unit."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up measurements.

        :raises ValueError: if there are none
        """
        if not values:
            raise ValueError("nothing was measured")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __truediv__(self, other: Spread) -> float:
        """Return the ratio of the medians."""
        return self.median / other.median


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed (nearest rank).

    :raises ValueError: if there are none
    """
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    rank = -(-len(ordered) * round(share * 1000) // 1000)
    return ordered[max(0, rank - 1)]
