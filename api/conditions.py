"""Condition types and reasons, and how to read conditions.

PodGroups have no ``metadata.generation``, so no ``observedGeneration`` is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from api.wire import Condition

#: True once a group's minimum was bound for the first time; True is terminal.
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
POD_SCHEDULED = "PodScheduled"

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
SCHEDULED = "Scheduled"

#: The API server refuses longer messages.
MAX_MESSAGE_BYTES = 32768


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, if present."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition of that type is present and True."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def truncate(text: str, limit: int) -> str:
    """Cut a text to at most ``limit`` bytes of UTF-8, never inside a character."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[:limit].decode(errors="ignore")
