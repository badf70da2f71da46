"""The shell's two writers against the fake API server: binds that fail, and conditions that are written once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from api import conditions, v1beta1
from api.membership import GroupKey
from api.wire import Pod
from runtime.clock import FakeClock, settle
from runtime.errors import Unreachable
from runtime.informer import Informer
from runtime.resources import PODS
from scheduler.binder import Binder
from scheduler.core import events
from scheduler.core.instructions import Bind, SetGroupCondition, SetPodCondition
from scheduler.status import BINDS_FIRST, POD_MESSAGE_EVERY, PODGROUPS, StatusWriter
from tests.unit.fakes.apiserver import FakeApiServer, status

pytestmark = pytest.mark.anyio


def put_pod(server: FakeApiServer, name: str = "p", **extra: Any) -> str:
    made = server.put(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": {}, **extra})
    return str(made["metadata"]["uid"])


def put_group(server: FakeApiServer) -> str:
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    made = server.put(PODGROUPS, {"metadata": {"name": "g", "namespace": "default"}, "spec": spec})
    return str(made["metadata"]["uid"])


async def bind(server: FakeApiServer, clock: FakeClock, uid: str, seconds: float = 0) -> list[events.Event]:
    outcomes: list[events.Event] = []
    binder = Binder(server.client(clock), clock, outcomes.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(binder.run)
        binder.submit(Bind("default", "p", uid, "n0"))
        await settle()
        if seconds:
            await clock.advance(seconds)
            await settle()
        tasks.cancel_scope.cancel()
    return outcomes


async def test_a_bind_is_reported(server, clock):
    uid = put_pod(server)
    assert await bind(server, clock, uid) == [events.BindDone(uid)]
    assert server.get(PODS, "p", "default")["spec"]["nodeName"] == "n0"


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (429, "TooManyRequests"), (422, "Invalid")])
async def test_a_refused_bind_is_not_read_back(server, clock, code, reason):
    uid = put_pod(server)
    server.fail(status(code, reason), path="/binding", times=1)
    (outcome,) = await bind(server, clock, uid)
    assert isinstance(outcome, events.BindFailed)
    assert server.seen("GET") == []


@pytest.mark.parametrize(("code", "reason"), [(500, "InternalError"), (504, "Timeout"), (409, "Conflict")])
async def test_a_bind_whose_answer_says_nothing_is_read_back(server, clock, code, reason):
    """5xx and 409 (any failed write of a binding) may have been carried out: here it was not."""
    uid = put_pod(server)
    server.fail(status(code, reason), path="/binding", times=1)
    (outcome,) = await bind(server, clock, uid)
    assert isinstance(outcome, events.BindFailed)
    assert len(server.seen("GET")) == 1


@pytest.mark.parametrize("seconds", [5, 12, 40])
async def test_an_api_server_that_hangs_is_waited_for(server, clock, seconds):
    """Stopped for a while in the middle of a gang: the binds end late, or are told apart by a look."""
    uid = put_pod(server)

    async def hang(request, call_next):
        await clock.sleep(seconds)
        if seconds == 40 and request.verb == "POST":
            raise Unreachable("timed out", request.verb, request.path, ambiguous=True)
        return await call_next(request)

    outcomes: list[events.Event] = []
    binder = Binder(server.client(clock, interceptors=[hang]), clock, outcomes.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(binder.run)
        binder.submit(Bind("default", "p", uid, "n0"))
        for _ in range(4):
            await clock.advance(40)
            await settle()
        tasks.cancel_scope.cancel()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], events.BindFailed if seconds == 40 else events.BindDone)


async def test_nothing_is_said_of_a_pod_bound_elsewhere(server, clock):
    uid = put_pod(server, spec={"nodeName": "other"})
    server.fail(status(409, "Conflict"), path="/binding", times=1)
    assert await bind(server, clock, uid) == []


@pytest.mark.parametrize("steps", range(1, 40, 3))
async def test_a_stop_leaves_no_gang_half_bound(server, clock, steps):
    outcomes: list[events.Event] = []
    binder = Binder(server.client(clock), clock, outcomes.append)
    uids = [put_pod(server, f"p{i}") for i in range(100)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(binder.run)
        for i, uid in enumerate(uids):
            binder.submit(Bind("default", f"p{i}", uid, "n0"))
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    done = sum(1 for i in range(100) if server.get(PODS, f"p{i}", "default")["spec"].get("nodeName"))
    assert done == len(outcomes) == 100


async def test_a_lost_answer_of_a_bind_that_was_carried_out_counts_as_done(server, clock):
    uid = put_pod(server, spec={"nodeName": "n0"})
    server.fail(status(504, "Timeout"), path="/binding", times=1)
    assert await bind(server, clock, uid) == [events.BindDone(uid)]


async def test_an_unanswered_look_is_repeated(server, clock):
    uid = put_pod(server)
    server.fail(status(500, "InternalError"), path="/binding", times=1)
    server.fail(status(503, "ServiceUnavailable"), path="/pods/p", times=1)
    assert await bind(server, clock, uid) == []
    server.faults.clear()
    server.fail(status(500, "InternalError"), path="/binding", times=1)
    (outcome,) = await bind(server, clock, uid, seconds=5)
    assert isinstance(outcome, events.BindFailed)


async def test_nothing_is_said_of_a_pod_made_again_under_the_name(server, clock):
    put_pod(server)
    assert await bind(server, clock, "another-uid") == []
    assert "nodeName" not in server.get(PODS, "p", "default")["spec"]


@asynccontextmanager
async def writing(
    server: FakeApiServer, clock: FakeClock, binding: Callable[[], bool] = lambda: False
) -> AsyncIterator[StatusWriter]:
    client = server.client(clock)
    pods = Informer(client, PODS, Pod, clock=clock)
    groups = Informer(client, PODGROUPS, clock=clock, decode=v1beta1.pod_group)
    writer = StatusWriter(client, clock, pods, groups, binding)
    async with anyio.create_task_group() as tasks:
        for run in (pods.run, groups.run, writer.controller.run):
            tasks.start_soon(run)
        await pods.synced.wait()
        await groups.synced.wait()
        yield writer
        tasks.cancel_scope.cancel()


def patches(server: FakeApiServer) -> int:
    return len(server.seen("PATCH"))


def told(server: FakeApiServer, read: Callable[[FakeApiServer], Any]) -> list[tuple[str, str]]:
    return [(c["status"], c["message"]) for c in read(server).get("status", {}).get("conditions", [])]


async def test_a_groups_condition_is_written_once_and_true_is_terminal(server, clock):
    uid = put_group(server)
    key = GroupKey("default", "g")

    async with writing(server, clock) as writer:

        async def say(status_: Any, message: str) -> int:
            writer.set_group(SetGroupCondition(key, uid, status_, conditions.UNSCHEDULABLE, message))
            await settle()
            return patches(server)

        assert await say("False", "no room") == 1
        assert await say("False", "no room") == 1
        assert await say("False", "less room") == 2
        assert await say("True", "bound") == 3
        assert await say("False", "no room") == 3
    assert told(server, lambda s: s.get(PODGROUPS, "g", "default")) == [("True", "bound")]


async def test_binds_go_first_for_a_while(server, clock):
    uid, key = put_group(server), GroupKey("default", "g")
    binding = True
    async with writing(server, clock, lambda: binding) as writer:
        for second in range(int(BINDS_FIRST)):
            writer.set_group(SetGroupCondition(key, uid, "False", conditions.UNSCHEDULABLE, f"{second}"))
            await clock.advance(0.9)
            assert patches(server) == 0
        await clock.advance(0.3)
        assert patches(server) == 1, "a bind is always under way, but not always first"
        writer.set_group(SetGroupCondition(key, uid, "True", conditions.SCHEDULED, "bound"))
        await clock.advance(0.1)
        assert patches(server) == 1
        binding = False
        await clock.advance(0.3)
        assert patches(server) == 2
    assert told(server, lambda s: s.get(PODGROUPS, "g", "default")) == [("True", "bound")]


async def test_a_pods_message_changes_now_and_then(server, clock):
    uid = put_pod(server)
    async with writing(server, clock) as writer:
        for count in range(5):
            writer.set_pod(SetPodCondition("default", "p", uid, conditions.UNSCHEDULABLE, f"{count} of 9 fit"))
            await settle()
        assert patches(server) == 1
        writer.set_pod(SetPodCondition("default", "p", uid, conditions.SCHEDULER_ERROR, "they disagree"))
        await settle()
        assert patches(server) == 2, "another reason is news"
        writer.set_pod(SetPodCondition("default", "p", uid, conditions.SCHEDULER_ERROR, "they disagree on priority"))
        await clock.advance(POD_MESSAGE_EVERY + 1)
        await settle()
    assert told(server, lambda s: s.get(PODS, "p", "default")) == [("False", "they disagree on priority")]


async def test_conditions_of_what_is_gone_or_bound_are_dropped(server, clock):
    """B4."""
    put_pod(server, "bound", spec={"nodeName": "n0"})
    bound_uid = str(server.get(PODS, "bound", "default")["metadata"]["uid"])
    async with writing(server, clock) as writer:
        writer.set_pod(SetPodCondition("default", "gone", "uid", conditions.UNSCHEDULABLE, "x"))
        writer.set_pod(SetPodCondition("default", "bound", bound_uid, conditions.UNSCHEDULABLE, "x"))
        writer.set_group(SetGroupCondition(GroupKey("default", "gone"), "uid", "True", "Scheduled", "x"))
        await clock.advance(60)
        await settle()
    assert patches(server) == 0


async def test_a_condition_never_overwrites_a_bind(server, clock):
    """Our bind is accepted before the watch shows it; the condition that was wanted before says False."""
    uid = put_pod(server)
    async with writing(server, clock) as writer:
        writer.set_pod(SetPodCondition("default", "p", uid, conditions.UNSCHEDULABLE, "no room"))
        writer.drop_pod(Bind("default", "p", uid, "n0"))
        await settle()
    assert patches(server) == 0


async def test_a_refused_write_is_tried_again(server, clock):
    uid = put_group(server)
    server.fail(status(500, "InternalError"), path="/status", times=2)
    async with writing(server, clock) as writer:
        writer.set_group(SetGroupCondition(GroupKey("default", "g"), uid, "True", "Scheduled", "bound"))
        await settle()
        await clock.advance(5)
        await settle()
    assert told(server, lambda s: s.get(PODGROUPS, "g", "default")) == [("True", "bound")]
