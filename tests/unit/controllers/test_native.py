"""The probe: how it is measured whether kube-controller-manager makes the groups of Jobs itself."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from api import names
from controllers.native import PROBE, PROBE_LABEL, RETRY, measure
from controllers.resources import WORKLOADS
from runtime.clock import FakeClock, settle
from runtime.resources import JOBS
from tests.builders import owned_by_job
from tests.unit.fakes.apiserver import FakeApiServer, status

pytestmark = pytest.mark.anyio

NAMESPACE = names.SYSTEM_NAMESPACE


def probe(server: FakeApiServer) -> dict[str, Any] | None:
    return server.get(JOBS, PROBE, NAMESPACE)


def deal_with(server: FakeApiServer, *, native: bool) -> None:
    """What kube-controller-manager does with the probe, in its order."""
    job = probe(server)
    assert job is not None
    assert job["spec"]["suspend"] is True
    if native:
        metadata = {"name": "w", "namespace": NAMESPACE, "ownerReferences": owned_by_job(PROBE, job["metadata"]["uid"])}
        server.put(WORKLOADS, {"metadata": metadata})
    server.put(JOBS, {**job, "status": {"conditions": [{"type": "Suspended", "status": "True"}]}})


@pytest.mark.parametrize("native", [True, False])
async def test_measured_and_cleaned_up(server: FakeApiServer, clock: FakeClock, native: bool) -> None:
    found: list[bool] = []
    async with anyio.create_task_group() as group:
        group.start_soon(measure, server.client(clock), clock, found.append)
        await settle()
        assert found == [], "not known before kube-controller-manager has dealt with it"
        deal_with(server, native=native)
        await clock.advance(2)
        assert found == [native]
    assert probe(server) is None


async def test_one_left_behind_says_nothing_and_is_replaced(server: FakeApiServer, clock: FakeClock) -> None:
    left = {"metadata": {"name": PROBE, "namespace": NAMESPACE, "labels": {PROBE_LABEL: "native-jobs"}}}
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    old = server.put(JOBS, {**left, "spec": {"suspend": True}, "status": suspended})["metadata"]["uid"]
    found: list[bool] = []
    async with anyio.create_task_group() as group:
        group.start_soon(measure, server.client(clock), clock, found.append)
        await clock.advance(3)
        assert found == []
        now = probe(server)
        assert now is not None
        assert now["metadata"]["uid"] != old
        deal_with(server, native=True)
        await clock.advance(2)
        assert found == [True]


async def test_a_strangers_job_of_that_name_is_left_alone(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(JOBS, {"metadata": {"name": PROBE, "namespace": NAMESPACE}})
    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(measure, server.client(clock), clock, lambda _: None)
            await clock.advance(RETRY * 5)
            group.cancel_scope.cancel()
    assert probe(server) is not None
    assert len(logs) == 1
    assert "is not ours; delete or rename it" in logs[0]["event"]


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [(403, "Forbidden", "refused by policy"), (404, "NotFound", "namespace phalanx-system does not exist")],
)
async def test_a_refusal_is_told_and_tried_again(
    server: FakeApiServer, clock: FakeClock, code: int, reason: str, words: str
) -> None:
    found: list[bool] = []
    server.fail(status(code, reason, "no"), verb="POST", times=3)
    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(measure, server.client(clock), clock, found.append)
            await clock.advance(RETRY * 3 + 1)
            deal_with(server, native=False)
            await clock.advance(2)
    assert found == [False]
    assert [words in log["event"] for log in logs] == [True, False]


async def test_silence_is_told_and_nothing_is_assumed(server: FakeApiServer, clock: FakeClock) -> None:
    found: list[bool] = []
    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(measure, server.client(clock), clock, found.append)
            await clock.advance(300)
            assert found == []
            group.cancel_scope.cancel()
    assert [log["log_level"] for log in logs] == ["warning"]
    assert probe(server) is None, "cleaned up when stopped as well"


async def test_a_clean_up_that_hangs_does_not_hold_up_our_end(server: FakeApiServer, clock: FakeClock) -> None:
    async def hanging(request: Any, call_next: Any) -> Any:
        if request.verb == "DELETE":
            await anyio.sleep_forever()
        return await call_next(request)

    ended = anyio.Event()

    async def run() -> None:
        try:
            await measure(server.client(clock, interceptors=[hanging]), clock, lambda _: None)
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await settle()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await clock.advance(5)
            assert ended.is_set()
