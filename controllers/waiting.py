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

#: Seconds for which a start may wait before any Job is told, and between two looks for further Jobs.
PATIENCE = 5.0
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
        delay = PATIENCE
        while True:
            await clock.sleep(delay)
            if not waiting.lacks:
                continue
            delay = EVERY
            try:
                jobs = await client.list_all(JOBS, type=Job)
            except ApiError:
                continue  # who waits says what cannot be read
            mine = {job.metadata.uid: job for job in jobs if claimed(job, names) and not job.finished}
            for uid, job in mine.items():
                if (uid, waiting.lacks) not in told:
                    note = f"Phalanx waits, and this Job's pods with it: {waiting.lacks}"
                    recorder.event(job_reference(job), "Warning", "WaitingForCluster", note, action="Wait")
            told = {(uid, waiting.lacks) for uid in mine}
