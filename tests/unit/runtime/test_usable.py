"""Waiting for a cluster that is not ready for us: one line at a time, and no hot loop."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from api import v1beta1
from runtime.clock import FakeClock, settle
from runtime.resources import JOBS, PODS, Resource
from runtime.usable import Waiting, until_usable
from tests.unit.fakes.apiserver import FakeApiServer, status

pytestmark = pytest.mark.anyio

READ = (Resource(v1beta1.GROUP, v1beta1.VERSION, "podgroups", "PodGroup"), JOBS, PODS)
RBAC = (
    'jobs.batch is forbidden: User "system:serviceaccount:phalanx-system:phalanx-controllers" cannot list resource '
    '"jobs" in API group "batch" at the cluster scope'
)


async def test_a_ready_cluster_is_asked_once_for_each_kind(server: FakeApiServer, clock: FakeClock) -> None:
    with capture_logs() as logs:
        await until_usable(server.client(clock), clock, READ, v1beta1.REMEDIES)
    assert logs == []
    assert len(server.requests) == len(READ)


@pytest.mark.parametrize(
    ("outcome", "path", "words", "lasts"),
    [
        (status(404, "NotFound"), "/podgroups", "GenericWorkload", True),
        (status(403, "Forbidden", RBAC), "/jobs", "lacks the RBAC verb 'list' on jobs.batch at cluster scope", True),
        (status(401, "Unauthorized"), "", "credentials", False),
        ("refuse", "", "did not answer", False),
    ],
)
async def test_one_line_until_it_is(
    server: FakeApiServer, clock: FakeClock, outcome: object, path: str, words: str, lasts: bool
) -> None:
    fault = server.fail(outcome, path=path, times=10_000)  # type: ignore[arg-type]
    usable, waiting = anyio.Event(), Waiting()

    async def wait() -> None:
        await until_usable(server.client(clock), clock, READ, v1beta1.REMEDIES, waiting)
        usable.set()

    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await clock.advance(59)
            told = [log for log in logs if log["log_level"] == "warning"]
            assert len([log for log in told if "waiting for the cluster" in log["event"]]) == 1
            assert words in next(log["event"] for log in told if "waiting" in log["event"])
            assert fault.hits < 60
            assert (words in waiting.lacks) is lasts
            server.faults.clear()
            await clock.advance(31)
            await settle()
            assert usable.is_set()
            assert waiting.lacks == ""
    assert logs[-1]["event"] == "the cluster is ready for us"
