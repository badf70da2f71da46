"""What must not happen whatever comes: lost wake-ups, leaks, hot loops, crashes on a user's text."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from api import names
from api.eligibility import decide
from api.wire import Pod
from scheduler.core import events
from scheduler.core.agenda import HOLD
from scheduler.core.instructions import Bind, Decision
from tests.builders import bound, job, node, pod, pod_group
from tests.unit.scheduler.test_core import gang, nodes
from tests.unit.scheduler.world import World

INDEX = "batch.kubernetes.io/job-completion-index"


def binds(decision: Decision | None) -> list[Bind]:
    return [i for i in decision.instructions if isinstance(i, Bind)] if decision is not None else []


def memory(*quantities: str) -> dict[str, object]:
    return {
        "containers": [{"name": str(i), "resources": {"requests": {"memory": q}}} for i, q in enumerate(quantities)]
    }


@pytest.mark.parametrize("index", ["²", "9" * 5000, "-1", "", "x", "1_0"])
def test_any_completion_index(index):
    odd = pod("g-0", group="g")
    metadata = msgspec.structs.replace(odd.metadata, annotations={INDEX: index})
    odd = msgspec.structs.replace(odd, metadata=metadata)
    world = World(
        *nodes(1), events.GroupSet(pod_group("g", 2)), events.PodSet(odd), events.PodSet(pod("g-1", group="g"))
    )
    assert len(world.run().nodes) == 2


def test_requests_beyond_all_numbers():
    world = World(*nodes(1), events.PodSet(pod("x", **memory("8Ei", "8Ei")))).run()
    assert world.nodes == {}
    full = World(events.NodeSet(node("n0", memory="4Gi")))
    for i in range(3):
        full.feed(events.PodSet(pod(f"big{i}", node="n0", scheduler="default-scheduler", **memory("8Ei", "8Ei"))))
    full.feed(events.PodSet(pod("p", **memory("1Gi")))).run(until=5)
    assert full.nodes == {}, "what is used did not wrap round"


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([names.MIN_COUNT_ANNOTATION, names.POLICY_ANNOTATION]), st.text()))
def test_no_annotation_makes_a_job_undecidable(annotations):
    assert decide(job(annotations=annotations)) is not None
    assert decide(job(annotations={names.MIN_COUNT_ANNOTATION: "9" * 5000})) is not None


def running_group(**kwargs: object) -> tuple[World, list[Pod]]:
    """A node of 2; a group of 3 with one bound, so that the other slot is kept for it."""
    members = [bound(pod("g-0", group="g"), "n0"), pod("g-1", group="g"), pod("g-2", group="g")]
    world = World(*nodes(1, cpu="2"), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, members)).run()
    world.feed(events.PodSet(pod("single"))).run(until=30)
    assert world.nodes == {}
    return world, members


def test_kept_room_that_is_given_back_wakes_others():
    world, _ = running_group()
    world.feed(events.PodSet(pod("g-3", group="g", priority=7))).run(until=300)  # members disagree: it cannot be tried
    assert set(world.nodes) == {"single"}


def test_no_room_is_kept_for_a_group_that_has_nothing_bound_any_more():
    world, members = running_group()
    world.feed(events.PodGone(members[0].metadata.uid), events.PodGone(members[2].metadata.uid)).run(until=60)
    assert set(world.nodes) == {"single"}


def test_no_room_is_kept_for_a_group_in_deletion():
    world, _ = running_group()
    world.feed(events.GroupSet(pod_group("g", 3, deleting=True))).run(until=60)
    assert set(world.nodes) == {"single"}


def test_room_is_not_kept_for_ever():
    """One pod pinned by its user and a minimum of 1000 would take the cluster from everybody."""
    world, _ = running_group()
    world.run(until=HOLD - 10)
    assert world.nodes == {}
    world.run(until=HOLD + 60)
    assert set(world.nodes) == {"single"}


def test_a_refused_burst_is_one_failed_attempt():
    world = World(*nodes(1), *gang("g", 8))
    for bind in binds(world.core.cycle(0.0)):
        world.feed(events.BindFailed(bind.uid, "429"))
        assert world.core.cycle(0.01) is None
    assert world.told() == []
    assert world.core.next_time() <= 1.1


def test_failures_are_forgotten_when_the_watch_is_faster_than_the_answer():
    world = World(*nodes(1, cpu="1"), *gang("g", 2)).run(until=60)
    world.feed(events.NodeSet(node("n1", cpu="1")))
    world.now += 100
    for bind in binds(world.core.cycle(world.now)):
        world.feed(events.PodSet(bound(world.pods[bind.uid], bind.node)), events.BindDone(bind.uid))
    assert world.core.agenda.queue.failures == {}


def test_a_pod_whose_bind_is_always_refused_is_not_tried_in_a_loop():
    world = World(*nodes(1), events.PodSet(pod("p")))
    world.refuse = "409"
    world.run(until=0.9)
    assert len(world.decisions) == 1


def test_a_member_made_again_and_again_does_not_skip_the_back_off():
    world = World(*nodes(1, cpu="1"), *gang("g", 2)).run(until=0)
    before = len(world.decisions)
    uid = next(uid for uid, p in world.pods.items() if p.metadata.name == "g-1")
    for _ in range(10):
        again = pod("g-1", group="g")
        world.feed(events.PodGone(uid), events.PodSet(again)).run()
        uid = again.metadata.uid
    assert len(world.decisions) == before


def test_binds_of_other_schedulers_wake_nobody():
    world = World(*nodes(4, cpu="1"), *gang("big", 20)).run(until=100)
    before = len(world.decisions)
    for i in range(4):
        foreign = pod(f"f{i}", scheduler="default-scheduler")
        world.feed(events.PodSet(foreign), events.PodSet(bound(foreign, "n0"))).run(until=120 + i)
    assert len(world.decisions) == before


def test_an_orphaned_pod_is_not_waited_for():
    owner = ("train", "0badcafe-1111-4111-8111-111111111111")
    held, other = pod("t-0", owner=owner), pod("t-1", owner=owner)
    orphan = msgspec.structs.replace(held, metadata=msgspec.structs.replace(held.metadata, owner_references=[]))
    world = World(*nodes(1), *map(events.PodSet, [held, other, orphan]), events.PodGone(held.metadata.uid))
    world.feed(events.JobSet(job("train", parallelism=1, job_uid=owner[1]))).run()
    assert set(world.nodes) == {"t-1"}


def test_an_extra_with_a_constraint_we_cannot_honour_is_held():
    owner = ("train", "job-uid")
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
    group = events.GroupSet(pod_group("g", 1, job=owner))
    member, extra = pod("g-0", group="g", owner=owner), pod("extra", group="g", volumes=volumes)
    world = World(*nodes(1), group, *map(events.PodSet, [member, extra])).run(until=10)
    assert set(world.nodes) == {"g-0"}
    assert "cannot honour" in world.pod_messages()["extra"]


def test_nodes_that_come_and_go_leave_nothing():
    world = World()
    for i in range(500):
        taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": str(i), "effect": "NoSchedule"}
        world.feed(events.NodeSet(node(f"n{i}", taints=[taint])), events.NodeGone(f"n{i}"))
    table = world.core.state.nodes
    assert (len(table), len(table.taint_classes), len(table.rows)) == (1, 0, 0)


def test_a_row_used_again_has_nothing_of_its_former_node():
    world = World(
        events.NodeSet(node("old", labels={"disk": "ssd"})), events.PodSet(pod("p", nodeSelector={"disk": "ssd"}))
    )
    world.run().feed(*[events.PodGone(uid) for uid in world.pods], events.NodeGone("old"), events.NodeSet(node("new")))
    world.feed(events.PodSet(pod("q", nodeSelector={"disk": "ssd"}))).run(until=30)
    assert "q" not in world.nodes


def test_the_minimum_is_found_among_smaller_members():
    members = [pod("g-0", group="g", cpu="3"), pod("g-1", group="g"), pod("g-2", group="g")]
    world = World(*nodes(1, cpu="3"), events.GroupSet(pod_group("g", 2)), *map(events.PodSet, members)).run()
    assert set(world.nodes) == {"g-1", "g-2"}


def test_more_members_than_the_job_as_seen_can_have_wait():
    """A5 with the Job's watch behind that of its pods."""
    small = job("train", parallelism=3)
    owner = ("train", small.metadata.uid)
    name = names.group_name(*owner)
    members = [pod(f"t-{i}", owner=owner, group=name) for i in range(9)]
    world = World(*nodes(1, cpu="7"), events.JobSet(small), events.GroupSet(pod_group(name, 3, job=owner)))
    world.feed(*map(events.PodSet, members[:3])).run()
    world.feed(*map(events.PodSet, members[3:])).run(until=5)
    assert len(world.nodes) == 3
    world.feed(events.JobGone(owner[1])).run(until=60)
    assert len(world.nodes) == 7, "of a group whose Job is gone nothing more is known"
