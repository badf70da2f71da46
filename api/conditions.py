"""Conditions as pure functions: find one, and decide whether and how it must be written anew.

A condition is a plain dict of the wire form (``type``, ``status``, ``reason``, ``message``,
``lastTransitionTime``). PodGroups have no ``metadata.generation``, so no ``observedGeneration`` is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

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


def rfc3339(moment: datetime) -> str:
    """Format a UTC time as the API server does, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def renew(
    current: Condition | None, *, type_: str, status: str, reason: str, message: str, now: datetime
) -> dict[str, str] | None:
    """Return the condition to write, or None when the current one already says it.

    ``lastTransitionTime`` moves only when the status does. The message is cut to what the server accepts.
    """
    message = truncate(message, MAX_MESSAGE_BYTES)
    if current is not None and (current.status, current.reason, current.message) == (status, reason, message):
        return None
    unchanged = current is not None and current.status == status
    since = current.last_transition_time if current is not None and unchanged else None
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or rfc3339(now),
    }


def truncate(text: str, limit: int) -> str:
    """Cut a text to at most ``limit`` bytes of UTF-8, never inside a character."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[:limit].decode(errors="ignore")
