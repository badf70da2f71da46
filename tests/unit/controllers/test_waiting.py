"""Jobs that wait for a cluster that is not ready for us are told so."""

from __future__ import annotations

import anyio
import pytest

from api import names
from controllers.waiting import tell_jobs
from runtime.clock import FakeClock
from runtime.resources import EVENTS, JOBS
from runtime.usable import Waiting
from tests.unit.fakes.apiserver import FakeApiServer

pytestmark = pytest.mark.anyio

LACKS = "cannot read podgroups: this API server does not serve scheduling.k8s.io/v1beta1; turn on the gate"


async def test_each_job_of_ours_is_told_once_for_each_thing_that_is_lacking(
    server: FakeApiServer, clock: FakeClock
) -> None:
    for name, labels in (("ours", {names.GANG_LABEL: "job"}), ("plain", {})):
        template = {"metadata": {"labels": labels}, "spec": {"schedulerName": "default-scheduler"}}
        server.put(JOBS, {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": template}})

    def told() -> list[tuple[str, str]]:
        return [(event["regarding"]["name"], event["note"]) for event in server.objects.get(EVENTS.path(), {}).values()]

    waiting = Waiting()
    async with anyio.create_task_group() as group:
        group.start_soon(tell_jobs, server.client(clock), clock, waiting, "us", [names.SCHEDULER_NAME])
        await clock.advance(60)
        assert told() == [], "what mends itself is nobody's business"
        waiting.lacks = LACKS
        await clock.advance(300)
        assert told() == [("ours", f"Phalanx waits, and this Job's pods with it: {LACKS}")]
        waiting.lacks = "lacks the RBAC verb 'list'"
        await clock.advance(60)
        assert [name for name, _ in told()] == ["ours", "ours"]
        group.cancel_scope.cancel()
