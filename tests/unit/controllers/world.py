"""The controllers on a fake API server: everything in process, on a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from api import names
from api.wire import Job, Pod
from controllers.app import Controllers
from controllers.resources import PODGROUPS, WORKLOADS
from runtime.clock import FakeClock, settle
from runtime.manager import Manager
from runtime.resources import EVENTS, JOBS, PODS
from tests.unit.fakes.apiserver import FakeApiServer

Obj = dict[str, Any]
NAMESPACE = "default"


def wire(obj: Job | Pod, api_version: str, kind: str) -> Obj:
    body: Obj = msgspec.to_builtins(obj)
    body["metadata"].pop("resourceVersion", None)
    return {"apiVersion": api_version, "kind": kind, **body}


class World:
    """A server, and the controllers on it."""

    def __init__(self, server: FakeApiServer, clock: FakeClock, native: bool | None = False) -> None:
        self.server = server
        self.clock = clock
        self.controllers = Controllers(server.client(clock), clock)
        if native is not None:
            self.controllers.job.set_native(native)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All but the probe, which has tests of its own."""
        manager = Manager(self.clock)
        self.controllers.add_to(manager)
        manager._leader_tasks.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: manager.run(handle_signals=False))
            await settle()
            yield
            manager.stop("the test is over")

    # -- what is there --------------------------------------------------------------------------------------------

    def workloads(self) -> list[Obj]:
        return list(self.server.objects.get(WORKLOADS.path(), {}).values())

    def groups(self) -> list[Obj]:
        return list(self.server.objects.get(PODGROUPS.path(), {}).values())

    def group(self) -> Obj:
        (found,) = self.groups()
        return found

    def notes(self, reason: str) -> list[str]:
        return [e["note"] for e in self.server.objects.get(EVENTS.path(), {}).values() if e["reason"] == reason]

    def writes(self) -> list[str]:
        return [
            f"{request.verb} {request.path.rpartition('/')[2]}"
            for request in self.server.requests
            if request.verb != "GET" and "/events" not in request.path
        ]

    # -- what happens ---------------------------------------------------------------------------------------------

    def put_job(self, job: Job) -> Job:
        """Create or change a Job, and return it as stored."""
        before = self.server.get(JOBS, job.metadata.name, NAMESPACE)
        body = wire(job, "batch/v1", "Job")
        body["metadata"]["uid"] = before["metadata"]["uid"] if before else job.metadata.uid
        return msgspec.convert(self.server.put(JOBS, body), Job)

    def put_pod(self, pod: Pod) -> None:
        self.server.put(PODS, wire(pod, "v1", "Pod"))

    def protect(self) -> None:
        """What admission does on a real server."""
        for group in self.groups():
            if names.PROTECTION_FINALIZER not in group["metadata"].get("finalizers", []):
                metadata = {**group["metadata"], "finalizers": [names.PROTECTION_FINALIZER]}
                self.server.put(PODGROUPS, {**group, "metadata": metadata})
