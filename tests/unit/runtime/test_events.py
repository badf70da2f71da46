from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import FakeClock, settle
from runtime.events import BURST, MAX_SERIES, REFILL, SERIES_EVERY, EventRecorder, cut
from runtime.resources import EVENTS
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import running

pytestmark = pytest.mark.anyio

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "namespace": "ns", "uid": "u1"}


def say(recorder: EventRecorder, note: str = "12 of 16 placed", regarding: dict[str, Any] = JOB) -> None:
    recorder.event(regarding, "Warning", "Unschedulable", note, "Scheduling")


def written(server: FakeApiServer) -> list[dict[str, Any]]:
    return list(server.objects.get(EVENTS.path(), {}).values())


@pytest.fixture
def recorder(server: FakeApiServer, clock: FakeClock) -> EventRecorder:
    return EventRecorder(server.client(clock), "phalanx.dev/scheduler", clock, instance="pod-1")


async def test_an_event(server: FakeApiServer, recorder: EventRecorder, clock: FakeClock) -> None:
    async with running(recorder.run):
        recorder.event(JOB, "Normal", "Bound", "all 4 pods", "Binding", related={"kind": "Node", "name": "n"})
        await settle()
    (event,) = written(server)
    name = event["metadata"].pop("name")
    assert name.startswith("train.")
    assert event["metadata"]["namespace"] == "ns"
    assert {k: v for k, v in event.items() if k != "metadata"} == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2030-01-01T00:00:00.000000Z",
        "type": "Normal",
        "reason": "Bound",
        "note": "all 4 pods",
        "action": "Binding",
        "regarding": JOB,
        "related": {"kind": "Node", "name": "n"},
        "reportingController": "phalanx.dev/scheduler",
        "reportingInstance": "pod-1",
    }


async def test_cluster_scoped_objects_have_theirs_in_default(server: FakeApiServer, recorder: EventRecorder) -> None:
    async with running(recorder.run):
        say(recorder, regarding={"kind": "Node", "name": "n1", "uid": "n"})
        await settle()
    assert [event["metadata"]["namespace"] for event in written(server)] == ["default"]


async def test_repeats_become_a_series(server: FakeApiServer, recorder: EventRecorder, clock: FakeClock) -> None:
    async with running(recorder.run):
        for _ in range(60):
            say(recorder)
            await clock.advance(10)
        assert len(written(server)) == 1
        assert len(server.seen("PATCH")) <= 600 / SERIES_EVERY
        await clock.advance(SERIES_EVERY)
        (event,) = written(server)
        assert event["series"] == {"count": 60, "lastObservedTime": "2030-01-01T00:09:50.000000Z"}
        quiet = len(server.requests)
        await clock.advance(3600)
        assert len(server.requests) == quiet, "a quiet cluster sees no writes"
        assert clock.next_timer is None, "and no wake-ups"
        say(recorder)
        await settle()
        assert len(written(server)) == 2, "after the series is closed it is news again"


async def test_what_differs_is_another_event(server: FakeApiServer, recorder: EventRecorder) -> None:
    async with running(recorder.run):
        say(recorder)
        say(recorder, note="13 of 16 placed")
        say(recorder, regarding={**JOB, "uid": "u2"})
        recorder.event(JOB, "Normal", "Unschedulable", "12 of 16 placed", "Scheduling")
        await settle()
    assert len(written(server)) == 4


async def test_ever_new_words_about_one_object_are_limited(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
) -> None:
    async with running(recorder.run):
        for n in range(200):
            say(recorder, note=f"{n} of 999 placed")
            await clock.advance(1)
        say(recorder, regarding={**JOB, "uid": "another"})
        recorder.event(JOB, "Normal", "Bound", "all", "Binding")
        await settle()
    assert len(written(server)) == BURST + 200 // int(REFILL) + 2
    assert recorder.statistics.suppressed == 200 - BURST - 200 // int(REFILL)


async def test_it_never_blocks_and_counts_what_it_drops(server: FakeApiServer, clock: FakeClock) -> None:
    recorder = EventRecorder(server.client(clock), "c", clock, capacity=3)
    for n in range(10):  # nobody sends
        say(recorder, note=str(n))
    assert recorder.statistics.dropped == 7
    say(recorder, note="0")
    assert recorder.statistics.aggregated == 1
    async with running(recorder.run):
        assert len(written(server)) == 3
        assert recorder.statistics.sent == 3


async def test_failures_are_retried_a_little_and_then_counted(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
) -> None:
    server.fail("refuse", verb="POST", times=2)
    async with running(recorder.run):
        say(recorder)
        await clock.advance(10)
        assert recorder.statistics.sent == 1
        server.fail(status(503, "ServiceUnavailable"), verb="POST", times=1000)
        say(recorder, note="lost")
        await clock.advance(60)
        assert recorder.statistics.failed == 1
        server.faults.clear()
        say(recorder, note="lost")
        await settle()
        assert recorder.statistics.sent == 2, "what could not be written is not part of a series"


@pytest.mark.parametrize("refused", [status(403, "Forbidden", "namespace is being terminated"), status(422, "Invalid")])
async def test_refusals_are_not_retried(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock, refused: Any
) -> None:
    server.fail(refused, verb="POST", times=100)
    async with running(recorder.run):
        say(recorder)
        await clock.advance(60)
        assert len(server.seen("POST")) == 1
        assert recorder.statistics.failed == 1


async def test_a_lost_answer_is_not_written_twice(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
) -> None:
    server.fail("reset", verb="POST", after=True)
    async with running(recorder.run):
        say(recorder)
        await clock.advance(10)
    assert len(written(server)) == 1
    assert recorder.statistics.sent == 1


async def test_a_bug_in_the_way_harms_nobody(server: FakeApiServer, clock: FakeClock) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    recorder = EventRecorder(server.client(clock, interceptors=[broken]), "c", clock)
    async with running(recorder.run):
        say(recorder)
        await settle()
        assert recorder.statistics.failed == 1


async def test_a_series_whose_event_expired_starts_again(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
) -> None:
    async with running(recorder.run):
        say(recorder)
        await settle()
        server.remove(EVENTS, written(server)[0]["metadata"]["name"], "ns")
        say(recorder)
        await clock.advance(SERIES_EVERY + 1)
        assert len(server.seen("PATCH")) == 1
        say(recorder)
        await settle()
        assert len(written(server)) == 1


async def test_a_patch_that_fails_is_tried_again_later(
    server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
) -> None:
    server.fail("refuse", verb="PATCH", times=1)
    async with running(recorder.run):
        say(recorder)
        say(recorder)
        await clock.advance(SERIES_EVERY + 1)
        assert "series" not in written(server)[0]
        await clock.advance(SERIES_EVERY + 1)
        assert written(server)[0]["series"]["count"] == 2


async def test_the_end_drains(server: FakeApiServer, recorder: EventRecorder, clock: FakeClock) -> None:
    async with running(recorder.run):
        say(recorder)
        await settle()
        say(recorder)
        server.fail("refuse", verb="POST", times=1)
        say(recorder, note="interrupted")
        await settle()  # waits for its second attempt
        say(recorder, note="queued")
    assert sorted(event["note"] for event in written(server)) == ["12 of 16 placed", "interrupted", "queued"]
    assert [event.get("series", {}).get("count") for event in written(server)].count(2) == 1


async def test_the_end_is_bounded(server: FakeApiServer, clock: FakeClock) -> None:
    async def hang(*_: Any) -> Any:
        await anyio.sleep_forever()

    recorder = EventRecorder(server.client(clock, interceptors=[hang]), "c", clock)
    say(recorder)
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        await settle()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await clock.advance(5)


async def test_memory_is_bounded(server: FakeApiServer, clock: FakeClock) -> None:
    recorder = EventRecorder(server.client(clock), "c", clock, capacity=10**6)
    for n in range(MAX_SERIES + 500):
        say(recorder, regarding={**JOB, "uid": str(n)})
    assert len(recorder._series) == MAX_SERIES
    assert len(recorder._allowance) == MAX_SERIES
    await clock.advance(BURST * REFILL)
    say(recorder, "all before is forgotten")
    assert (len(recorder._series), len(recorder._allowance)) == (1, 1)


async def test_limits_of_the_api(server: FakeApiServer, recorder: EventRecorder) -> None:
    long = {**JOB, "name": "n" * 199 + "." + "x" * 53}
    async with running(recorder.run):
        recorder.event(long, "Normal", "R" * 500, "é" * 2000, "A" * 500)
        await settle()
    (event,) = written(server)
    assert len(event["metadata"]["name"]) <= 253
    assert ".." not in event["metadata"]["name"]
    assert len(event["note"].encode()) <= 1024
    assert len(event["reason"].encode()) <= 128
    assert len(event["action"].encode()) <= 128
    assert json.dumps(event)


@pytest.mark.parametrize("name", ["system:node-proxier", "Upper_Case", "-.odd.-", "a..b", "a.-b", ":", ""])
async def test_a_name_that_no_event_may_have(server: FakeApiServer, recorder: EventRecorder, name: str) -> None:
    """A ClusterRole may be called what an Event may not."""
    regarding = {"kind": "ClusterRole", "name": name, "uid": "u"}
    async with running(recorder.run):
        say(recorder, regarding=regarding)
        await settle()
    (event,) = written(server)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event["metadata"]["name"])
    assert event["regarding"] == regarding


@given(st.text(max_size=60), st.integers(3, 40))
def test_cut(text: str, limit: int) -> None:
    result = cut(text, limit)
    assert len(result.encode()) <= limit
    if len(text.encode("utf-8", "replace")) <= limit:
        assert result == text
    else:
        assert result.endswith("…")
        assert text.startswith(result[:-1])
