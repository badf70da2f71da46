"""Cancellation that was asked of us, told from one that only reached us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_cancellation_only() -> Iterator[None]:
    """Let a cancellation of this task through, and make an ordinary error of any other.

    Something that is awaited may have been cancelled by somebody else (a task, a future). Its CancelledError would end
    a task group's child as silently as a stop does.

    :raises RuntimeError: from the CancelledError
    """
    try:
        yield
    except asyncio.CancelledError as error:
        # A cancellation that is asked of this task, by an anyio scope too, is counted until it has been dealt with.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("something that it waited for was cancelled") from error
