"""PodGroups in deletion: whose pods hold them, and how the finalizer goes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from api import names
from controllers.podgroup_protection import BIND_IN_FLIGHT, held_by_unbound_only
from controllers.resources import PODGROUPS
from runtime.clock import FakeClock, settle
from runtime.resources import PODS
from tests import builders
from tests.unit.fakes.apiserver import FakeApiServer

from .world import NAMESPACE, World

OURS = frozenset({names.SCHEDULER_NAME})

pytestmark = pytest.mark.anyio

OTHER = "example.com/other"


def leaving(*finalizers: str) -> dict[str, Any]:
    return {
        "apiVersion": PODGROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {
            "name": "g",
            "namespace": NAMESPACE,
            "deletionTimestamp": "2030-01-01T00:00:00Z",
            "finalizers": list(finalizers or (names.PROTECTION_FINALIZER,)),
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }


@pytest.mark.parametrize(("node", "phase"), list(product(["", "n1"], ["Pending", "Running", "Succeeded", "Failed"])))
def test_which_pods_hold_it(node: str, phase: str) -> None:
    group = builders.pod_group("g", 2, deleting=True)
    metadata = group.metadata.model_copy(update={"finalizers": [names.PROTECTION_FINALIZER]})
    group = group.model_copy(update={"metadata": metadata})
    waiting = builders.pod("waiting", group="g")
    other = builders.pod("other", group="g", node=node, phase=phase)
    holds = bool(node) and phase not in ("Succeeded", "Failed")
    assert held_by_unbound_only(group, [waiting, other], OURS) is not holds
    # With no pod that waits it is upstream's controller that acts.
    assert not held_by_unbound_only(group, [], OURS)
    assert not held_by_unbound_only(group, [builders.pod("ended", group="g", node="n1", phase="Succeeded")], OURS)
    assert not held_by_unbound_only(builders.pod_group("g", 2), [waiting], OURS)
    assert not held_by_unbound_only(builders.pod_group("g", 2, deleting=True), [waiting], OURS)


async def test_it_goes_after_a_moment(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g"))
    async with world.running():
        server.put(PODGROUPS, leaving(OTHER, names.PROTECTION_FINALIZER))
        await settle()
        assert world.writes() == []
        await clock.advance(BIND_IN_FLIGHT)
        assert world.group()["metadata"]["finalizers"] == [OTHER]
        await clock.advance(60)
        assert world.writes() == ["PATCH g"]


async def test_a_bind_that_the_cache_has_not_seen_keeps_it(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g"))
    async with world.running():
        server.put(PODGROUPS, leaving())
        await settle()
        for watch in server.watches:
            watch.stalled = watch.collection == PODS.path()
        world.put_pod(builders.pod("waiting", group="g", node="n1", phase="Running"))
        await clock.advance(5)
        assert world.writes() == []


async def test_a_bind_in_another_group_does_not(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g"))
    world.put_pod(builders.pod("elsewhere", group="h", node="n1", phase="Running"))
    async with world.running():
        server.put(PODGROUPS, leaving())
        await clock.advance(5)
        assert world.writes() == ["PATCH g"]
        assert world.groups() == []


async def test_a_group_that_changed_meanwhile_is_looked_at_again(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g"))
    async with world.running():
        server.put(PODGROUPS, leaving())
        await settle()
        for watch in server.watches:
            watch.stalled = watch.collection == PODGROUPS.path()
        changed = leaving(OTHER, names.PROTECTION_FINALIZER)
        changed["metadata"]["uid"] = world.group()["metadata"]["uid"]
        server.put(PODGROUPS, changed)
        await clock.advance(5)
        assert world.group()["metadata"]["finalizers"] == [OTHER, names.PROTECTION_FINALIZER], "the test failed"
        server.end_watches("reset")
        await clock.advance(60)
        assert world.group()["metadata"]["finalizers"] == [OTHER]


async def test_a_timer_that_touches_it_all_the_while_does_not_keep_it(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g"))
    async with world.running():
        server.put(PODGROUPS, leaving())
        touched = 0
        while world.groups() and touched < 100:
            touched += 1
            group = world.group()
            metadata = {**group["metadata"], "annotations": {"resynced": str(touched)}}
            server.put(PODGROUPS, {**group, "metadata": metadata})
            await clock.advance(0.1)
        assert world.groups() == []
        assert touched * 0.1 <= BIND_IN_FLIGHT + 0.3, "gone within one sync"


async def test_it_goes_when_the_last_bound_pod_ends(server: FakeApiServer, clock: FakeClock) -> None:
    world = World(server, clock)
    running = builders.pod("running", group="g", node="n1", phase="Running")
    world.put_pod(builders.pod("waiting", group="g"))
    world.put_pod(running)
    async with world.running():
        server.put(PODGROUPS, leaving())
        await clock.advance(60)
        assert world.writes() == []
        world.put_pod(builders.bound(running, "n1", phase="Succeeded"))
        await clock.advance(5)
        assert world.groups() == []


async def test_groups_of_other_schedulers_are_left_alone(server: FakeApiServer, clock: FakeClock) -> None:
    """kube-scheduler may have a bind under way for longer than ours can be."""
    world = World(server, clock)
    world.put_pod(builders.pod("waiting", group="g", scheduler="default-scheduler"))
    async with world.running():
        server.put(PODGROUPS, leaving(names.PROTECTION_FINALIZER))
        await settle()
        await clock.advance(BIND_IN_FLIGHT + 1)
        await settle()
    assert world.writes() == []
