"""Tells Jobs that are for us why nothing comes of them while the cluster lacks what we need."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from api.eligibility import claimed
from api.wire import Job
from controllers.resources import job_reference
from runtime.client import Client
from runtime.clock import Clock
from runtime.errors import ApiError
from runtime.events import EventRecorder
from runtime.resources import JOBS
from runtime.usable import Waiting

#: Seconds between two looks for further Jobs.
EVERY = 30.0


async def tell_jobs(
    client: Client, clock: Clock, waiting: Waiting, component: str, scheduler_names: Iterable[str]
) -> None:
    """Write an Event on each unfinished Job that waits for us, once for each thing that is lacking; never returns.

    :param component: who says so
    """
    names = frozenset(scheduler_names)
    recorder = EventRecorder(client, component, clock)
    told: set[tuple[str, str]] = set()
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        while True:
            told = await _tell(client, recorder, waiting.lacks, names, told)
            await clock.sleep(EVERY)


async def _tell(
    client: Client, recorder: EventRecorder, lacks: str, names: frozenset[str], told: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Tell those who do not know yet; return who knows what."""
    try:
        jobs = await client.list_all(JOBS, type=Job) if lacks else []
    except ApiError:
        return told  # who waits says what cannot be read
    mine = {job.metadata.uid: job for job in jobs if claimed(job, names) and not job.finished}
    for uid, job in mine.items():
        if (uid, lacks) not in told:
            note = f"Phalanx waits, and this Job's pods with it: {lacks}"
            recorder.event(job_reference(job), "Warning", "WaitingForCluster", note, action="Wait")
    return {(uid, lacks) for uid in mine}
