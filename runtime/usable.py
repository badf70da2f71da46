"""Waits for a cluster that is not ready for us, and says what it lacks, one line at a time."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from runtime.backoff import Backoff, Repeats
from runtime.client import Client
from runtime.clock import Clock
from runtime.errors import ApiError, Forbidden, NotFound, explain
from runtime.resources import Resource

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Waiting:
    """What a process waits for now. ``lacks``: what only a person can mend, in one line; "" for all else."""

    lacks: str = ""


async def until_usable(
    client: Client,
    clock: Clock,
    resources: Sequence[Resource],
    remedies: Mapping[str, str],
    waiting: Waiting | None = None,
    *,
    namespace: str | None = None,
) -> None:
    """Return once all resources can be read; retry with back-off, in their order, so that one thing is told at a time.

    :param remedies: by apiVersion, what to do where the API server does not serve it
    :param waiting: kept up to date
    :param namespace: where namespaced resources are read; None for everywhere
    """
    waiting = waiting if waiting is not None else Waiting()
    backoff, repeats = Backoff(clock, random.Random(), base=1.0), Repeats(clock)
    for resource in resources:
        while True:
            try:
                # A real request: discovery may list what is not served.
                await client.list_page(resource, namespace=namespace, limit=1)
            except ApiError as error:
                delay = backoff.next()
                line = explain(error)
                if isinstance(error, NotFound) and resource.api_version in remedies:
                    remedy = remedies[resource.api_version]
                    line = f"cannot read {resource}: this API server does not serve {resource.api_version}; {remedy}"
                if repeats.allows(line):
                    log.warning(f"waiting for the cluster: {line}")  # noqa: G004 - the line is the message
                waiting.lacks = line if isinstance(error, NotFound | Forbidden) else ""
                await clock.sleep(delay)
            else:
                waiting.lacks = ""
                break
    if repeats.recovered():
        log.info("the cluster is ready for us")


async def usable_before_signal(
    client: Client,
    clock: Clock,
    resources: Sequence[Resource],
    remedies: Mapping[str, str],
    meanwhile: Callable[[Waiting], Coroutine[Any, Any, Any]] | None = None,
    *,
    namespace: str | None = None,
) -> bool:
    """Wait as `until_usable`; false when told to stop (SIGTERM, SIGINT) first.

    :param meanwhile: runs beside, until the wait is over
    """
    usable, waiting = False, Waiting()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            nonlocal usable
            await until_usable(client, clock, resources, remedies, waiting, namespace=namespace)
            usable = True
            group.cancel_scope.cancel()

        group.start_soon(wait)
        if meanwhile is not None:
            group.start_soon(meanwhile, waiting)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for signum in signals:
                log.info("stopping", reason=signum.name)
                group.cancel_scope.cancel()
    return usable
