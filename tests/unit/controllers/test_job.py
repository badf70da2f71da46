"""The Job controller on a fake API server: writes, refusals, races and Events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api import names
from api.wire import Job
from controllers.resources import PODGROUPS, WORKLOADS
from runtime.clock import FakeClock, settle
from runtime.resources import JOBS
from tests import builders
from tests.unit.fakes.apiserver import FakeApiServer, status

from .world import NAMESPACE, World

pytestmark = pytest.mark.anyio


def name_of(job: Job) -> str:
    return names.group_name(job.metadata.name, job.metadata.uid)


def pod_group(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": PODGROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }


async def test_two_writes_and_never_a_third(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        job = world.put_job(builders.job("train", parallelism=4))
        await settle()
        assert world.writes() == ["POST workloads", "POST podgroups"]
        assert world.group()["metadata"]["name"] == name_of(job)
        assert world.notes("WorkloadCreated") == [f"Created Workload {name_of(job)} for Job train"]
        # The Job's own events, a resync and an hour change nothing.
        for generation in range(3):
            world.put_job(builders.job("train", parallelism=4, labels={"n": str(generation)}))
            await settle()
        world.controllers.job.controller.queue.add((NAMESPACE, "train"))
        await clock.advance(3600)
        assert world.writes() == ["POST workloads", "POST podgroups"]


async def test_a_restart_writes_nothing(server: FakeApiServer, clock: FakeClock) -> None:
    first = World(server, clock)
    async with first.running():
        first.put_job(builders.job())
        await settle()
    server.requests.clear()
    second = World(server, clock)
    async with second.running():
        await clock.advance(60)
    assert second.writes() == []


async def test_its_own_writes_are_seen_before_the_watch_tells_of_them(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        for watch in server.watches:
            watch.stalled = watch.collection in (WORKLOADS.path(), PODGROUPS.path())
        world.put_job(builders.job("train", parallelism=2))
        await settle()
        for _ in range(3):
            world.controllers.job.controller.queue.add((NAMESPACE, "train"))
            await settle()
        assert world.writes() == ["POST workloads", "POST podgroups"]
        world.put_job(builders.job("train", parallelism=2, suspend=True))
        await settle()
        world.controllers.job.controller.queue.add((NAMESPACE, "train"))
        await settle()
        assert world.writes()[2:] == [f"DELETE {world_name(world)}"]


def world_name(world: World) -> str:
    return str(world.workloads()[0]["metadata"]["name"])


async def test_a17_refusals_are_told_once_and_tried_again_ever_more_slowly(
    server: FakeApiServer, clock: FakeClock
) -> None:
    world = World(server, clock)
    quota = status(403, "Forbidden", "exceeded quota: count/podgroups.scheduling.k8s.io")
    refused = server.fail(quota, verb="POST", path="/podgroups", times=1000)
    async with world.running():
        job = world.put_job(builders.job())
        await settle()
        await clock.advance(120)
        assert 5 <= refused.hits <= 14, "not a hot loop"
        assert len(world.workloads()) == 1
        (note,) = world.notes("FailedPodGroupCreate")
        assert "exceeded quota" in note
        server.faults.clear()
        await clock.advance(61)
        assert world.group()["metadata"]["name"] == name_of(job)
        assert len(world.notes("PodGroupCreated")) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a17_lost_answers(server: FakeApiServer, clock: FakeClock, after: bool) -> None:
    world = World(server, clock)
    server.fail(status(503, "ServiceUnavailable"), verb="POST", path="/podgroups", times=2, after=after)
    server.fail("reset", verb="POST", path="/workloads", after=after)
    async with world.running():
        world.put_job(builders.job())
        await clock.advance(10)
        assert len(world.groups()) == len(world.workloads()) == 1
        assert world.group()["metadata"]["ownerReferences"][1]["uid"] == world.workloads()[0]["metadata"]["uid"]


async def test_a_namespace_in_deletion_is_left_in_peace(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    cause = {"reason": "NamespaceTerminating", "message": "namespace default is being terminated"}
    refused = server.fail(status(403, "Forbidden", causes=[cause]), verb="POST", path="/workloads", times=9)
    async with world.running():
        world.put_job(builders.job())
        await clock.advance(60)
    assert refused.hits == 1
    assert world.notes("FailedWorkloadCreate") == []


@pytest.mark.parametrize("seen", [True, False], ids=["in the cache", "not in the cache"])
async def test_f2_a_strangers_object_is_reported_and_left_alone(
    server: FakeApiServer, clock: FakeClock, seen: bool
) -> None:
    world = World(server, clock)
    job = builders.job()
    theirs = pod_group(name_of(job), ownerReferences=builders.owned_by_job("other", "other-uid"))
    if seen:
        server.put(PODGROUPS, theirs)
    async with world.running():
        if not seen:
            for watch in server.watches:
                watch.stalled = watch.collection == PODGROUPS.path()
            server.put(PODGROUPS, theirs)
        world.put_job(job)
        await settle()
        (note,) = world.notes("UnsupportedWorkloadStructure")
        assert "controlled by Job other, not by this Job" in note
        before = len(world.writes())
        world.put_job(builders.job(job.metadata.name, labels={"changed": "yes"}))
        await settle()
        assert len(world.writes()) == before + (0 if seen else 1)
        assert world.group()["metadata"]["ownerReferences"][0]["uid"] == "other-uid"


async def test_f2_its_name_is_taken_when_the_stranger_goes(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    job = builders.job()
    server.put(PODGROUPS, pod_group(name_of(job)))
    async with world.running():
        world.put_job(job)
        await settle()
        server.remove(PODGROUPS, name_of(job), NAMESPACE)
        await settle()
        assert world.group()["metadata"]["ownerReferences"][0]["uid"] == job.metadata.uid


async def test_suspended_and_resumed(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.put_job(builders.job("train"))
        await settle()
        world.protect()
        await settle()
        first = world.group()
        world.put_job(builders.job("train", suspend=True))
        await settle()
        assert world.group()["metadata"]["deletionTimestamp"]
        world.put_job(builders.job("train"))
        await clock.advance(5)
        assert world.writes()[2:] == [f"DELETE {first['metadata']['name']}"], "the name is not free yet"
        gone = {**world.group(), "metadata": {**world.group()["metadata"], "finalizers": []}}
        server.remove(PODGROUPS, gone["metadata"]["name"], NAMESPACE)
        await settle()
        assert world.group()["metadata"]["uid"] != first["metadata"]["uid"]
        assert len(world.workloads()) == 1


async def test_an_elastic_job_is_patched_over_what_was_seen(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.put_job(builders.job("train", parallelism=3))
        await settle()
        world.put_job(builders.job("train", parallelism=9))
        await settle()
        assert world.group()["spec"]["schedulingPolicy"]["gang"]["minCount"] == 9
        template = world.workloads()[0]["spec"]["podGroupTemplates"][0]
        assert template["schedulingPolicy"]["gang"]["minCount"] == 9
        assert [w.split()[0] for w in world.writes()] == ["POST", "POST", "PATCH", "PATCH"]
        patch = server.seen("PATCH")[-1]
        assert patch.body is not None
        assert b'"op":"test","path":"/metadata/uid"' in patch.body


async def test_what_cannot_be_changed_is_told(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.put_job(builders.job("train", parallelism=3))
        await settle()
        cause = {"field": "spec.podGroupTemplates", "message": "field is immutable", "reason": "FieldValueInvalid"}
        server.fail(status(422, "Invalid", causes=[cause]), verb="PATCH", path="/workloads", times=100)
        world.put_job(builders.job("train", parallelism=9))
        await clock.advance(30)
        (note,) = world.notes("FailedWorkloadUpdate")
        assert "stays 3, not 9" in note
        assert "field is immutable" in note


async def test_what_the_server_drops_is_recorded_on_the_object(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    server.put(
        world.controllers.priority_classes.resource,
        {"metadata": {"name": "polite"}, "value": 1, "preemptionPolicy": "Never"},
    )

    def without(request: Any) -> Any:
        body = json.loads(request.body)
        for template in body["spec"].get("podGroupTemplates", [body["spec"]]):
            template.pop("preemptionPolicy")
        return server._create(path_of(request), NAMESPACE, body, dry_run=False)

    def path_of(request: Any) -> str:
        return str((PODGROUPS if request.path.endswith("podgroups") else WORKLOADS).path())

    server.fail(without, verb="POST", path="scheduling.k8s.io", times=2)
    template = {"metadata": {"labels": {names.GANG_LABEL: "job"}}, "spec": {"priorityClassName": "polite"}}
    async with world.running():
        world.put_job(builders.job("train", template=template))
        await settle()
        for obj in (*world.workloads(), world.group()):
            assert obj["metadata"]["annotations"] == {names.DROPPED_FIELDS_ANNOTATION: '{"preemptionPolicy":"Never"}'}
        assert len(world.notes("DroppedFields")) == 2
        await clock.advance(3600)
        assert [w.split()[0] for w in world.writes()] == ["POST", "PATCH", "POST", "PATCH"]


async def test_two_misspelt_annotations_are_two_events_and_no_more(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    wrong = {"phalanx.dev/mincount": "1", "phalanx.dev/polcy": "gang"}
    async with world.running():
        for generation in range(4):
            world.put_job(builders.job("train", annotations=wrong, labels={"n": str(generation)}))
            await settle()
        await clock.advance(3600)
        assert len(world.notes("UnknownAnnotation")) == 2
        assert len(server.seen("PATCH", path="/events")) == 0


async def test_a_deleted_job_makes_nothing(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    async with world.running():
        world.put_job(builders.job("train", deletionTimestamp="2030-01-01T00:00:00Z"))
        await settle()
        server.remove(JOBS, "train", NAMESPACE)
        await settle()
    assert world.writes() == []


class TestNative:
    async def test_nothing_is_made_until_it_is_known(self, server: FakeApiServer, clock: FakeClock) -> None:
        world = World(server, clock, native=None)
        async with world.running():
            world.put_job(builders.job())
            await settle()
            assert world.writes() == []
            world.controllers.job.set_native(False)
            await settle()
            assert world.writes() == ["POST workloads", "POST podgroups"]

    async def test_a_pod_that_waits_for_our_group_gets_it(self, server: FakeApiServer, clock: FakeClock) -> None:
        world = World(server, clock, native=True)
        async with world.running():
            job = world.put_job(builders.job())
            await settle()
            assert world.writes() == []
            world.put_pod(builders.pod("p", owner=(job.metadata.name, job.metadata.uid), group=name_of(job)))
            await settle()
            assert world.writes() == ["POST workloads", "POST podgroups"]
