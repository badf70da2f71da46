from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.clock import FakeClock
from runtime.errors import Conflict, Invalid, NotFound, ServerError, TerminalError, Unreachable
from runtime.exchange import Request, Response
from runtime.objects import controlled_by, reference
from runtime.writes import (
    Created,
    Exists,
    Foreign,
    Outcome,
    Terminating,
    apply_condition,
    controller_uid,
    create_owned,
    same_condition,
)
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, local, thing

pytestmark = pytest.mark.anyio

OWNER = "11111111-1111-4111-8111-111111111111"
STRANGER = "22222222-2222-4222-8222-222222222222"


def owned(name: str, uid: str | None = OWNER, **meta: Any) -> dict[str, Any]:
    obj = thing(name)
    if uid:
        obj["metadata"]["ownerReferences"] = [
            {"uid": STRANGER, "kind": "Other", "name": "o", "apiVersion": "v1"},
            {"uid": uid, "kind": "Job", "name": "j", "apiVersion": "batch/v1", "controller": True},
        ]
    obj["metadata"] |= meta
    return obj


async def create(server: FakeApiServer, clock: FakeClock) -> Outcome:
    return await create_owned(server.client(clock), THINGS, owned("a"), owner_uid=OWNER, namespace="ns")


async def test_created(server: FakeApiServer, clock: FakeClock) -> None:
    outcome = await create(server, clock)
    assert isinstance(outcome, Created)
    assert outcome.obj["metadata"]["resourceVersion"] == str(server.version)


async def test_ours_already(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, owned("a", labels={"made": "before"}))
    outcome = await create(server, clock)
    assert isinstance(outcome, Exists)
    assert outcome.obj["metadata"]["labels"] == {"made": "before"}
    assert [request.verb for request in server.requests] == ["POST", "GET"]


@pytest.mark.parametrize("uid", [STRANGER, None])
async def test_a_stranger_is_left_alone(server: FakeApiServer, clock: FakeClock, uid: str | None) -> None:
    before = server.put(THINGS, owned("a", uid))
    outcome = await create(server, clock)
    assert isinstance(outcome, Foreign)
    assert server.get(THINGS, "a", "ns") == before


@pytest.mark.parametrize(("uid", "ours"), [(OWNER, True), (STRANGER, False)])
async def test_terminating(server: FakeApiServer, clock: FakeClock, uid: str, ours: bool) -> None:
    server.put(THINGS, owned("a", uid, deletionTimestamp="2030-01-01T00:00:00Z", finalizers=["x/y"]))
    outcome = await create(server, clock)
    assert isinstance(outcome, Terminating)
    assert outcome.ours is ours


@pytest.mark.parametrize("lost", ["reset", status(504, "Timeout"), status(500, "InternalError")])
async def test_a_lost_answer_is_read_back(server: FakeApiServer, clock: FakeClock, lost: Any) -> None:
    server.fail(lost, verb="POST", after=True)
    outcome = await create(server, clock)
    assert isinstance(outcome, Exists)
    assert len(server.seen("POST")) == 1, "no second create"


@pytest.mark.parametrize(("lost", "kind"), [("reset", Unreachable), (status(504, "Timeout"), ServerError)])
async def test_a_lost_request_is_not_sent_again_here(
    server: FakeApiServer, clock: FakeClock, lost: Any, kind: type[Exception]
) -> None:
    server.fail(lost, verb="POST")
    with pytest.raises(kind):
        await create(server, clock)
    assert len(server.seen("POST")) == 1


async def test_not_sent_at_all_is_no_question(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("refuse", verb="POST")
    with pytest.raises(Unreachable):
        await create(server, clock)
    assert server.seen("GET") == []


async def test_refusals_pass_through_in_one_attempt(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(status(422, "Invalid"), verb="POST")
    with pytest.raises(Invalid):
        await create(server, clock)
    assert [request.verb for request in server.requests] == ["POST"]


async def test_gone_between_the_two_requests(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, owned("a", STRANGER))

    def vanish(_request: Request) -> Response:
        server.remove(THINGS, "a", "ns")
        return status(409, "AlreadyExists")

    server.fail(vanish, verb="POST")
    assert isinstance(await create(server, clock), Created)
    assert [request.verb for request in server.requests] == ["POST", "GET", "POST"]


async def test_a_name_that_flickers_is_given_up(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(status(409, "AlreadyExists"), verb="POST", times=9)
    with pytest.raises(Conflict):
        await create(server, clock)
    assert len(server.seen("POST")) == 2


async def test_a_name_is_needed(server: FakeApiServer, clock: FakeClock) -> None:
    with pytest.raises(TerminalError, match=r"metadata\.name"):
        await create_owned(server.client(clock), THINGS, {"metadata": {}}, owner_uid=OWNER, namespace="ns")


async def test_a_controller_is_needed(server: FakeApiServer, clock: FakeClock) -> None:
    with pytest.raises(TerminalError, match=r"metadata\.ownerReferences"):
        await create_owned(server.client(clock), THINGS, owned("a", None))
    assert server.requests == []


async def test_owner_and_namespace_are_those_of_the_body(server: FakeApiServer, clock: FakeClock) -> None:
    body = owned("a")
    assert isinstance(await create_owned(server.client(clock), THINGS, body), Created)
    assert server.get(THINGS, "a", "ns")
    assert isinstance(await create_owned(server.client(clock), THINGS, body), Exists)
    assert isinstance(await create_owned(server.client(clock), THINGS, owned("a", STRANGER)), Foreign)


def test_the_two_ways_to_name_an_object() -> None:
    obj = local("a", uid=OWNER)
    identity = {"apiVersion": "test.dev/v1", "kind": "Thing", "name": "a", "uid": OWNER}
    assert reference(THINGS, obj) == identity | {"namespace": "ns"}
    assert controlled_by(THINGS, obj) == identity | {"controller": True}
    assert controller_uid({"metadata": {"ownerReferences": [controlled_by(THINGS, obj)]}}) == OWNER


def test_controller_uid() -> None:
    assert controller_uid(owned("a")) == OWNER
    assert controller_uid(owned("a", None)) is None
    assert controller_uid({}) is None


READY = {"type": "Ready", "status": "True", "reason": "AllUp", "message": "2 of 2"}


async def apply(server: FakeApiServer, clock: FakeClock, condition: dict[str, Any], **options: Any) -> bool:
    client = server.client(clock)
    return await apply_condition(client, THINGS, "a", "ns", condition, options.pop("manager", "test-ready"), **options)


def conditions(server: FakeApiServer) -> dict[str, dict[str, Any]]:
    obj = server.get(THINGS, "a", "ns")
    assert obj is not None
    return {item["type"]: item for item in obj["status"]["conditions"]}


async def test_a_condition_is_applied_by_its_own_manager(server: FakeApiServer, clock: FakeClock) -> None:
    uid = server.put(THINGS, thing("a"))["metadata"]["uid"]
    assert await apply(server, clock, READY, uid=uid)
    assert await apply(server, clock, {**READY, "type": "Other"}, manager="test-other")
    assert conditions(server)["Ready"] == {**READY, "lastTransitionTime": "2030-01-01T00:00:00Z"}
    assert set(conditions(server)) == {"Ready", "Other"}, "neither removes the other's"
    request = server.requests[0]
    assert request.path.endswith("/things/a/status")
    assert request.params == {"fieldManager": "test-ready"}
    body = json.loads(request.body or b"")
    assert set(body) == {"apiVersion", "kind", "metadata", "status"}
    assert body["metadata"] == {"name": "a", "namespace": "ns", "uid": uid}
    with pytest.raises(Conflict):
        await apply(server, clock, {**READY, "status": "False"}, manager="third")
    with pytest.raises(Invalid):
        await apply(server, clock, READY, uid="another")
    with pytest.raises(NotFound):
        await apply_condition(server.client(clock), THINGS, "b", "ns", READY, "m")


async def test_a_condition_of_another_manager_is_taken_over_by_force_only(
    server: FakeApiServer, clock: FakeClock
) -> None:
    server.put(THINGS, thing("a"))
    await apply(server, clock, READY)
    with pytest.raises(Conflict):
        await apply(server, clock, {**READY, "status": "False"}, manager="third")
    assert await apply(server, clock, {**READY, "status": "False"}, manager="third", force=True)
    assert conditions(server)["Ready"]["status"] == "False"


async def test_a_condition_is_set_on_the_version_that_was_read(server: FakeApiServer, clock: FakeClock) -> None:
    read = server.put(THINGS, thing("a"))["metadata"]["resourceVersion"]
    assert await apply(server, clock, READY, resource_version=read)
    with pytest.raises(Conflict):
        await apply(server, clock, {**READY, "status": "False"}, resource_version=read)
    assert conditions(server)["Ready"]["status"] == "True"


async def test_nothing_is_written_when_nothing_changed(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    await apply(server, clock, READY)
    current = conditions(server)["Ready"]
    clock.tick(60)
    assert not await apply(server, clock, READY, current=current)
    assert not await apply(server, clock, {**READY, "lastTransitionTime": "other"}, current=current)
    assert len(server.requests) == 1


async def test_the_transition_time_moves_with_the_status_only(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    await apply(server, clock, READY)
    clock.tick(60)
    await apply(server, clock, {**READY, "message": "2 of 3"}, current=conditions(server)["Ready"])
    assert conditions(server)["Ready"]["lastTransitionTime"] == "2030-01-01T00:00:00Z"
    await apply(server, clock, {**READY, "status": "False"}, current=conditions(server)["Ready"])
    assert conditions(server)["Ready"]["lastTransitionTime"] == "2030-01-01T00:01:00Z"


def test_same_condition() -> None:
    assert same_condition(READY, {**READY, "lastTransitionTime": "x"})
    assert same_condition({**READY, "message": ""}, {k: v for k, v in READY.items() if k != "message"})
    for field in ("type", "status", "reason", "message", "observedGeneration"):
        assert not same_condition(READY, {**READY, field: "different"})
