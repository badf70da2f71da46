"""The barrier, the reasons and the queue, one situation a test."""

from __future__ import annotations

import pytest

from api import names
from api.membership import GroupKey
from scheduler.core import events
from scheduler.core.agenda import REFRESH
from scheduler.core.core import Core
from tests.builders import bound, job, node, pod, pod_group
from tests.unit.scheduler.world import World


def nodes(count: int, **kwargs):
    return [events.NodeSet(node(f"n{i}", **kwargs)) for i in range(count)]


def gang(name: str, size: int, minimum: int | None = None, **kwargs):
    members = [pod(f"{name}-{i}", group=name, index=i, **kwargs) for i in range(size)]
    return [events.GroupSet(pod_group(name, minimum or size)), *map(events.PodSet, members)]


def test_a_gang_that_fits_is_bound_together_and_told_once():
    world = World(*nodes(2, cpu="4"), *gang("g", 8)).run()
    assert len(world.nodes) == 8
    assert [(g, s) for g, s, _ in world.told()] == [("default/g", "True")]
    assert world.run(until=1000).core.next_time() is None


def test_no_member_is_bound_when_the_minimum_does_not_fit():
    """A4: 8 slots, 20 wanted: zero bound, and the condition says 8 of 20."""
    world = World(*nodes(8, cpu="1"), *gang("g", 20)).run(until=60)
    assert world.nodes == {}
    (told,) = world.told()
    assert told[:2] == ("default/g", "False")
    assert told[2].startswith("8 of 20 members fit")


def test_a_group_starts_when_nodes_come():
    world = World(*nodes(8, cpu="1"), *gang("g", 20)).run(until=5)
    world.feed(*[events.NodeSet(node(f"m{i}", cpu="1")) for i in range(12)]).run(until=20)
    assert len(world.nodes) == 20
    assert [s for _, s, _ in world.told()] == ["False", "True"]


def test_fragments_are_no_room():
    """A13: totals fit, nodes do not."""
    world = World(*nodes(10, cpu="6"), *gang("g", 12, cpu="4")).run()
    assert world.nodes == {}
    assert world.told()[0][2].startswith("10 of 12 members fit")


def test_members_wait_for_their_podgroup():
    """A17: pods first, the group later; nothing is bound before."""
    group, *members = gang("g", 2)
    world = World(*nodes(1), *members).run(until=60)
    assert world.nodes == {}
    assert "waiting for the PodGroup g to be created" in world.pod_messages()["g-0"]
    world.feed(group).run()
    assert len(world.nodes) == 2


def test_pods_of_a_misconfigured_job_say_what_is_wrong_with_it():
    wrong = job("train", parallelism=2, annotations={names.MIN_COUNT_ANNOTATION: "99"})
    owner = ("train", wrong.metadata.uid)
    members = [pod(f"train-{i}", owner=owner, group=names.group_name(*owner)) for i in range(2)]
    world = World(*nodes(1), events.JobSet(wrong), *map(events.PodSet, members)).run(until=30)
    assert world.nodes == {}
    told = world.pod_messages()["train-0"]
    assert told.startswith("Job train: metadata.annotations[phalanx.dev/min-count]")
    assert '"99" is not a number from 1 to 2' in told


def test_a_group_waits_for_its_members_and_says_how_many():
    group, first, _ = gang("g", 2)
    world = World(*nodes(1), group, first).run(until=60)
    assert world.nodes == {}
    assert world.told() == [
        (
            "default/g",
            "False",
            "1 of 2 members exist: waiting for 1 more to be created (see the Events of their owner)",
        )
    ]


def test_a_failed_bind_returns_to_the_queue_with_its_group():
    """A1: the bind of index 1 fails once."""
    world = World(*nodes(2, cpu="4"), *gang("g", 2, cpu="3"))
    world.fail = {"g-1": "500 internal error"}
    world.run(until=2)
    assert set(world.nodes) == {"g-0", "g-1"}
    assert [s for _, s, _ in world.told()] == ["True"]


def test_room_of_a_failed_bind_is_kept_for_its_group():
    """Completion first: what came later does not get the room between two tries of a bind."""
    world = World(*nodes(2, cpu="4"), *gang("g", 2, cpu="3"))
    world.fail = {"g-1": "500"}
    world.run()
    world.feed(events.PodSet(pod("single", cpu="3"))).run(until=60)
    assert "single" not in world.nodes
    assert world.nodes["g-1"]


def test_binds_that_all_fail_back_off():
    world = World(*nodes(1), *gang("g", 2))
    world.refuse = "403"
    world.run(until=60)
    binds = [d for d in world.decisions if d.verdict == "scheduled" and d.placed]
    assert 5 <= len(binds) <= 10, "at 0, 1, 3, 7, 15, 25 s and so on"
    assert world.told()[0] == (
        "default/g",
        "False",
        "0 of 2 members bound: there is room, but binding keeps failing: 403",
    )
    assert world.pod_messages()["g-0"].endswith("403")


def test_a_single_pod_whose_binds_keep_failing_is_told_why():
    world = World(*nodes(1), events.PodSet(pod("p")))
    world.refuse = "403 forbidden"
    world.run(until=30)
    assert world.pod_messages() == {"p": "binding keeps failing: 403 forbidden"}
    world.refuse = ""
    world.run(until=60)
    assert set(world.nodes) == {"p"}


def test_a_group_bound_in_part_says_so_though_no_member_waits():
    """One of three is deleted while its bind is under way, and nobody makes another."""
    members = [pod(f"g-{i}", group="g") for i in range(3)]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, members))
    assert world.core.cycle(0.0) is not None
    world.feed(events.PodGone(members[0].metadata.uid))
    world.feed(*[events.PodSet(bound(m, "n0")) for m in members[1:]]).run(until=30)
    assert world.told() == [
        (
            "default/g",
            "False",
            "2 of 3 members bound: waiting for 1 more to be created (see the Events of their owner)",
        )
    ]


def test_a_group_whose_pods_are_all_gone_does_not_keep_their_reason():
    world = World(*nodes(1, cpu="1"), *gang("g", 2)).run(until=5)
    assert world.told()[-1][2].startswith("1 of 2 members fit")
    world.feed(*[events.PodGone(uid) for uid in world.pods]).run(until=30)
    assert world.told()[-1][2].startswith("0 of 2 members exist")


def test_a_group_of_a_job_that_is_over_waits_for_nobody():
    train = job("train", parallelism=2)
    owner = ("train", train.metadata.uid)
    members = [pod(f"t-{i}", owner=owner, group="g") for i in range(2)]
    group = events.GroupSet(pod_group("g", 2, job=owner))
    world = World(*nodes(1, cpu="1"), events.JobSet(train), group, *map(events.PodSet, members)).run(until=5)
    over = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    world.feed(*[events.PodGone(m.metadata.uid) for m in members])
    world.feed(events.JobSet(job("train", parallelism=2, job_uid=owner[1], conditions=over))).run(until=30)
    assert world.told()[-1][2] == "its Job train is over (Failed: DeadlineExceeded): no more members will come"


def test_nothing_is_said_of_other_schedulers_groups():
    others = [pod(f"g-{i}", group="g", scheduler="default-scheduler") for i in range(3)]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, others))
    world.feed(events.PodSet(bound(others[0], "n0"))).run(until=30)
    world.feed(*[events.PodSet(bound(p, "n0")) for p in others]).run(until=60)
    assert world.decisions == []


def test_lost_member_is_counted_out_and_its_replacement_waits():
    """A2: 3 placed, one deleted, its replacement has no room: 2 of 3."""
    members = [pod(f"g-{i}", group="g") for i in range(3)]
    world = World(*nodes(1, cpu="3"), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, members)).run()
    world.feed(events.PodGone(members[0].metadata.uid), events.PodSet(pod("intruder", node="n0", phase="Running")))
    replacement = pod("g-0b", group="g")
    world.feed(events.PodSet(replacement)).run(until=30)
    assert "g-0b" not in world.nodes
    assert world.pod_messages()["g-0b"].startswith("2 of 3 members bound, 0 of the 1 missing ones fit")
    assert [s for _, s, _ in world.told()] == ["True"], "True is terminal"


def test_a_replacement_in_a_running_group_needs_no_pending_siblings():
    """A8."""
    members = [pod(f"g-{i}", group="g") for i in range(6)]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 6)), *map(events.PodSet, members)).run()
    world.feed(events.PodGone(members[2].metadata.uid), events.PodSet(pod("g-2b", group="g"))).run()
    assert world.nodes["g-2b"] == "n0"


def test_terminating_pods_do_not_count():
    """A16: one of three pending pods is in deletion; its replacement completes the gang."""
    members = [pod("g-0", group="g", deleting=True), pod("g-1", group="g"), pod("g-2", group="g")]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, members)).run()
    assert world.nodes == {}
    world.feed(events.PodSet(pod("g-0b", group="g"))).run()
    assert set(world.nodes) == {"g-1", "g-2", "g-0b"}


def test_succeeded_members_count_failed_ones_do_not():
    owner = ("train", "job-uid")
    done = pod("g-0", group="g", node="n0", phase="Succeeded", owner=owner)
    lost = pod("g-1", group="g", node="n0", phase="Failed", owner=owner)
    runs = pod("g-2", group="g", node="n0", phase="Running", owner=owner)
    replacement = pod("g-1b", group="g", owner=owner)
    group = events.GroupSet(pod_group("g", 3, job=owner, condition="True"))
    world = World(*nodes(1), group, *map(events.PodSet, [done, lost, runs, replacement])).run()
    assert set(world.nodes) == {"g-1b"}


@pytest.mark.parametrize(
    ("field", "changes", "values"),
    [
        ("spec.schedulerName", {"scheduler": "default-scheduler"}, ['"default-scheduler"', '"phalanx"']),
        ("spec.priority", {"priority": 7}, ["0 (1 pod)", "7 (1 pod)"]),
        ("spec.preemptionPolicy", {"preemptionPolicy": "Never"}, ["Never", "PreemptLowerPriority"]),
    ],
)
def test_members_that_disagree_are_an_error_with_both_values(field, changes, values):
    """A19."""
    members = [pod("g-0", group="g"), pod("g-1", group="g", **changes)]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 2)), *map(events.PodSet, members)).run(until=30)
    assert world.nodes == {}
    (_, status, message) = world.told()[0]
    assert status == "False"
    assert field in message
    assert all(value in message for value in values)


def test_one_message_with_counts_by_reason():
    """B7: one node tainted, one too small, one full."""
    world = World(
        events.NodeSet(node("tainted", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])),
        events.NodeSet(node("small", cpu="1")),
        events.NodeSet(node("full", cpu="2")),
        events.PodSet(pod("other", cpu="1", node="full", phase="Running", scheduler="default-scheduler")),
        *gang("g", 2, cpu="2"),
    ).run()
    assert world.told() == [
        (
            "default/g",
            "False",
            "0 of 2 members fit; of 3 nodes: 1 Insufficient cpu, "
            "1 too small (allocatable cpu), 1 untolerated taint {gpu=yes:NoSchedule}",
        )
    ]
    assert {kind for kind, _ in world.notes()} == {"PodGroup"}


def test_a_big_group_blocks_nobody():
    """A10."""
    world = World(*nodes(1, cpu="4"), *gang("big", 10), *gang("two", 2), *gang("one", 1)).run()
    assert set(world.nodes) == {"two-0", "two-1", "one-0"}


def test_freed_room_that_is_too_little_wakes_nobody():
    """Ten thousand that wait for more must not all be tried for each pod that ends."""
    others = [pod(f"o-{i}", node="n0", phase="Running") for i in range(2)]
    world = World(*nodes(1, cpu="4"), *map(events.PodSet, others), *gang("three", 3), *gang("four", 4)).run()
    before = len(world.decisions)
    world.feed(events.PodGone(others[0].metadata.uid)).run(until=30)
    assert {d.entity for d in world.decisions[before:]} == {"default/three"}
    world.run(until=120)
    assert world.told()[-1] == ("default/four", "False", "0 of 4 members fit; of 1 node: 1 Insufficient cpu")


def test_reasons_are_renewed_though_the_room_stays_too_little():
    others = [pod(f"o-{i}", node="n0", phase="Running") for i in range(2)]
    world = World(*nodes(1, cpu="4"), *map(events.PodSet, others), *gang("four", 4)).run()
    assert world.told()[-1][2].startswith("2 of 4 members fit")
    world.feed(events.PodGone(others[0].metadata.uid)).run(until=REFRESH - 1)
    assert world.told()[-1][2].startswith("2 of 4 members fit")
    world.run(until=REFRESH)
    assert world.told()[-1][2].startswith("3 of 4 members fit")


def test_groups_start_whole_or_not_at_all():
    """F14: 2 groups of 2, 3 slots."""
    world = World(*nodes(3, cpu="1"), *gang("a", 2), *gang("b", 2)).run(until=60)
    assert len(world.nodes) == 2
    assert len({name[0] for name in world.nodes}) == 1


def test_after_a_restart_a_running_group_is_completed_before_new_ones():
    """The older process bound one of two and died; a group of higher priority waits too."""
    half = [bound(pod("g-0", group="g"), "n0"), pod("g-1", group="g")]
    rival = [events.GroupSet(pod_group("vip", 1, priority=100)), events.PodSet(pod("vip-0", group="vip", priority=100))]
    world = World(*nodes(1, cpu="2"), *rival, events.GroupSet(pod_group("g", 2)), *map(events.PodSet, half)).run()
    assert set(world.nodes) == {"g-1"}


def test_room_is_reserved_for_a_running_group_bit_by_bit():
    """A running group of which two are missing gets room as it comes, before newer pods, and binds both at once."""
    members = [bound(pod("g-0", group="g"), "n0"), pod("g-1", group="g"), pod("g-2", group="g")]
    others = [pod(f"o-{i}", node="n0", phase="Running") for i in range(2)]
    world = World(
        *nodes(1, cpu="3"), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, [*members, *others])
    ).run()
    world.feed(events.PodSet(pod("newer")), events.PodGone(others[0].metadata.uid)).run(until=30)
    assert world.nodes == {}
    world.feed(events.PodGone(others[1].metadata.uid)).run(until=60)
    assert set(world.nodes) == {"g-1", "g-2"}


def test_two_running_groups_do_not_hold_each_others_room():
    a = [bound(pod("a-0", group="a"), "n0"), pod("a-1", group="a"), pod("a-2", group="a")]
    b = [bound(pod("b-0", group="b"), "n0"), pod("b-1", group="b"), pod("b-2", group="b")]
    groups = [events.GroupSet(pod_group(g, 3, created=f"2026-01-0{i}T00:00:00Z")) for i, g in ((2, "a"), (1, "b"))]
    world = World(*nodes(1, cpu="4"), *groups, *map(events.PodSet, [*a, *b])).run(until=60)
    assert set(world.nodes) == {"b-1", "b-2"}, "the older one"


def test_a_terminating_group_takes_no_members():
    group = events.GroupSet(pod_group("g", 1, deleting=True))
    world = World(*nodes(1), group, events.PodSet(pod("g-0", group="g"))).run(until=30)
    assert world.nodes == {}
    assert "being deleted" in world.pod_messages()["g-0"]


def test_extras_are_best_effort_and_never_count():
    """J4: a stranger's pod names the group of a Job."""
    owner = ("train", "job-uid")
    group = events.GroupSet(pod_group("g", 2, job=owner))
    member = pod("g-0", group="g", owner=owner)
    stranger = pod("stranger", group="g")
    world = World(*nodes(1), group, *map(events.PodSet, [member, stranger])).run(until=30)
    assert world.nodes == {}
    world.feed(events.PodSet(pod("g-1", group="g", owner=owner))).run()
    assert set(world.nodes) == {"g-0", "g-1", "stranger"}


def test_minimum_below_size_binds_the_minimum_then_the_rest():
    world = World(*nodes(3, cpu="1"), *gang("g", 5, minimum=2)).run(until=30)
    assert len(world.nodes) == 3
    assert [s for _, s, _ in world.told()] == ["True"]
    assert "no node fits" in world.pod_messages()["g-4"]


def test_lowered_minimum_takes_effect():
    """A7: minCount of a pending group edited from 5 to 3, 3 fit."""
    world = World(*nodes(3, cpu="1"), *gang("g", 5)).run(until=5)
    assert world.nodes == {}
    world.feed(events.GroupSet(pod_group("g", 3))).run(until=15)
    assert len(world.nodes) == 3


def test_new_members_of_a_grown_job_wait_for_the_new_minimum():
    """A5: a node of 7, 3 run, the Job grows to 9 before its PodGroup does; then only 4 of 6 have room."""
    small = job("train", parallelism=3)
    owner = ("train", small.metadata.uid)
    name = names.group_name(*owner)
    group = pod_group(name, 3, job=owner)
    members = [pod(f"train-{i}", owner=owner, group=name, index=i) for i in range(9)]
    world = World(*nodes(1, cpu="7"), events.JobSet(small), events.GroupSet(group))
    world.feed(*map(events.PodSet, members[:3])).run()
    assert len(world.nodes) == 3
    world.feed(events.JobSet(job("train", parallelism=9, job_uid=owner[1])), *map(events.PodSet, members[3:]))
    world.run(until=30)
    assert len(world.nodes) == 3
    assert "waiting for minCount 3 of the PodGroup to be raised" in world.pod_messages()["train-8"]
    world.feed(events.GroupSet(pod_group(name, 9, job=owner))).run(until=60)
    assert len(world.nodes) == 3
    world.feed(events.PodSet(pod("other"))).run(until=61)
    assert "other" in world.nodes, "a group that runs with its old minimum holds no room for its growth"
    world.feed(events.NodeSet(node("more"))).run(until=90)
    assert len(world.nodes) == 10


def test_basic_groups_have_no_minimum():
    members = [events.PodSet(pod(f"g-{i}", group="g")) for i in range(3)]
    world = World(*nodes(2, cpu="1"), events.GroupSet(pod_group("g", None)), *members).run()
    assert len(world.nodes) == 2
    assert [s for _, s, _ in world.told()] == ["True"]


def test_members_of_an_eligible_job_that_name_no_group_wait_for_the_jobs():
    """A Job outside the opted-in namespaces that names our scheduler: its pods carry no group."""
    train = job("train", parallelism=2, template={"spec": {"schedulerName": "phalanx"}})
    owner = ("train", train.metadata.uid)
    members = [pod(f"train-{i}", owner=owner, index=i) for i in range(2)]
    world = World(*nodes(1), *map(events.PodSet, members)).run(until=20)
    assert world.nodes == {}, "its Job was not seen"
    world.feed(events.JobSet(train)).run(until=40)
    assert world.nodes == {}, "its group does not exist"
    name = f"train-{train.metadata.uid[:8]}{train.metadata.uid[9:13]}"
    world.feed(events.GroupSet(pod_group(name, 2, job=owner))).run()
    assert len(world.nodes) == 2


def test_a_strangers_group_of_the_jobs_name_starts_none_of_its_pods():
    """Its minimum of 1 is not the Job's; the pods wait for the Job's own group."""
    train = job("train", parallelism=2)
    owner = ("train", train.metadata.uid)
    name = names.group_name(*owner)
    members = [pod(f"train-{i}", owner=owner, group=name) for i in range(2)]
    stranger = pod_group(name, 1, group_uid="stranger")
    world = World(*nodes(1), events.GroupSet(stranger), *map(events.PodSet, members)).run(until=30)
    assert world.nodes == {}
    assert "is not controlled by this pod's Job" in world.pod_messages()["train-0"]
    assert world.told() == []
    # It works the other way round too, and ends well.
    world.feed(events.GroupGone(GroupKey("default", name)), events.GroupSet(stranger)).run(until=60)
    assert world.nodes == {}
    world.feed(events.GroupGone(GroupKey("default", name))).run(until=70)
    world.feed(events.GroupSet(pod_group(name, 2, job=owner))).run(until=90)
    assert len(world.nodes) == 2


def test_a_group_made_for_a_jobs_pods_under_another_name_answers_for_them():
    owner = ("train", "0badcafe-1111-4111-8111-111111111111")
    members = [pod(f"train-{i}", owner=owner, group="mine") for i in range(2)]
    world = World(*nodes(1), events.GroupSet(pod_group("mine", 2)), *map(events.PodSet, members)).run()
    assert len(world.nodes) == 2


def test_pods_of_an_ineligible_job_are_scheduled_alone():
    single = job("single", parallelism=1, template={"spec": {"schedulerName": "phalanx"}})
    owner = ("single", single.metadata.uid)
    world = World(*nodes(1), events.JobSet(single), events.PodSet(pod("single-0", owner=owner))).run()
    assert set(world.nodes) == {"single-0"}


def test_another_schedulers_pods_use_room_and_are_never_placed():
    foreign = [
        pod("x", cpu="6", node="n0", scheduler="default-scheduler", phase="Running"),
        pod("y", scheduler="volcano"),
    ]
    world = World(*nodes(1, cpu="8"), *map(events.PodSet, foreign), *gang("g", 3)).run()
    assert world.nodes == {}
    assert world.told()[0][2].startswith("2 of 3 members fit")


def test_a_member_bound_elsewhere_is_never_bound_again():
    """33: someone else was faster; nothing is reported of our bind, the watch tells where the pod is."""
    member = pod("g-0", group="g")
    world = World(*nodes(2), events.GroupSet(pod_group("g", 1)), events.PodSet(member))
    assert world.core.cycle(0.0) is not None
    world.feed(events.PodSet(bound(member, "n1"))).run(until=200)
    assert world.nodes == {}
    assert [s for _, s, _ in world.told()] == ["True"]


def test_unconfirmed_binds_expire_and_are_tried_again():
    """34: accepted, and the watch never shows it, as after the server was restored from a backup."""
    world = World(*nodes(1), *gang("g", 1))
    world.confirm = False
    world.run(until=50)
    assert len(world.decisions) == 2, "placed, and told"
    world.confirm = True
    world.run(until=70)
    assert [d.placed for d in world.decisions] == [1, 0, 1]
    assert world.run(until=1000).core.next_time() is None


def test_a_deleted_node_frees_nothing_else():
    world = World(*nodes(2, cpu="2"), *gang("g", 4)).run()
    world.feed(events.NodeGone("n0")).run(until=30)
    assert world.run(until=60).core.state.nodes.present.tolist() == [False, True]


def test_hard_constraints_not_supported_yet_are_refused_not_ignored():
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}}
    world = World(*nodes(1), events.PodSet(pod("p", affinity=anti))).run()
    assert world.nodes == {}
    assert "cannot honour spec.affinity.podAntiAffinity of pod p yet" in world.pod_messages()["p"]


def test_a_core_that_only_listens_keeps_nothing_of_what_is_gone():
    """As in a replica that waits for leadership: others decide, and it is never asked."""
    core = Core()
    for size in range(5):
        made = pod_group("g", 1, group_uid=f"u{size}")
        member = pod("p", group="g")
        for event in (
            events.GroupSet(made),
            events.PodSet(member),
            events.PodSet(bound(member, "n0")),
            events.PodGone(member.metadata.uid),
            events.GroupGone(GroupKey("default", "g")),
        ):
            core.handle(event)
    left = {name: value for name, value in vars(core).items() if isinstance(value, dict | set | list) and value}
    assert left == {}
    assert not core.state.pods
    assert not core.state.groups


def test_a_group_whose_members_are_gated_says_so():
    gate = {"schedulingGates": [{"name": "example.com/wait"}]}
    gated = [pod(f"p{i}", group="g", **gate) for i in range(2)]
    world = World(*nodes(1), events.GroupSet(pod_group("g", 3)), *map(events.PodSet, gated)).run(until=60)
    ((_, status, message),) = world.told()
    assert status == "False"
    assert message == (
        "0 of 3 members may be scheduled: waiting for the scheduling gates of 2 to be removed (example.com/wait) "
        "and 1 more to be created (see the Events of their owner)"
    )
    world.feed(events.PodSet(pod("p2", group="g"))).run(until=120)
    assert world.told()[-1][2] == (
        "1 of 3 members may be scheduled: waiting for the scheduling gates of 2 to be removed (example.com/wait)"
    )
    world.feed(*(events.PodSet(pod(p.metadata.name, group="g", pod_uid=p.metadata.uid)) for p in gated)).run()
    assert set(world.nodes) == {"p0", "p1", "p2"}


def test_gated_pods_wait():
    gated = pod("p", schedulingGates=[{"name": "wait"}])
    world = World(*nodes(1), events.PodSet(gated)).run()
    assert world.nodes == {}
    world.feed(events.PodSet(pod("p", pod_uid=gated.metadata.uid))).run()
    assert set(world.nodes) == {"p"}
