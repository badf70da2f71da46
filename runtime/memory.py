"""The garbage collector against large, still caches.

With twenty thousand pods in memory, CPython's default thresholds walk all of them for nothing several times
a second. The hot kinds are untracked structs; what remains is told apart here: raised thresholds, and after
the first sync everything loaded moves out of the collector's sight.
"""

from __future__ import annotations

import gc

THRESHOLDS = (200_000, 50, 1000)


def tune_gc() -> None:
    """Raise the thresholds; at the start of a long-running process."""
    gc.set_threshold(*THRESHOLDS)


def freeze_gc() -> None:
    """Collect once (about 0.1 s with 20,000 pods) and set aside all that is left; after the first sync."""
    gc.collect()
    gc.freeze()


def thaw_gc() -> None:
    """Let the collector see everything again, and collect; when what was loaded before is thrown away."""
    gc.unfreeze()
    gc.collect()
