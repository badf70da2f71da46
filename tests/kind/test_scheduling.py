"""Scheduling from outside: the situations in which gang schedulers are known to go wrong, on a real API server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from api.names import group_name
from tests.kind.checks import Watcher, replay, settle
from tests.kind.conftest import Phalanx
from tests.kind.kube import Kube, initially_scheduled, job, node, pod, pod_group, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("phalanx"), pytest.mark.needs("fake nodes")]

Room = Callable[..., dict[str, str]]
Told = tuple[str, str, str]


@pytest.fixture
def room(kube: Kube, namespace: str) -> Iterator[Room]:
    """Makes nodes for this test; gives the selector for them."""
    tag, names = {"only-for": namespace}, []

    def make(*cpus: int, **options: int) -> dict[str, str]:
        for cpu in cpus:
            names.append(f"{namespace}-{len(names)}")
            kube.create("nodes", node(names[-1], cpu=str(cpu), labels=tag, **options))
        return tag

    yield make
    for name in names:
        kube.delete("nodes", name)


@pytest.fixture(autouse=True)
def _history(watcher: Watcher, namespace: str) -> Iterator[None]:
    """Whatever else a test looks at: no invariant was broken at any instant of it."""
    yield
    watcher.catch_up(namespace)
    assert replay(watcher.changes(), namespaces=[namespace]).violations == []


def told(kube: Kube, namespace: str, name: str, *words: str) -> Told:
    """Wait until the group's condition has these words in it."""
    last: Told = ("", "", "")

    def look() -> Told | None:
        nonlocal last
        last = initially_scheduled(kube.find("podgroups", name, namespace))
        return last if last[0] and all(word in " ".join(last) for word in words) else None

    try:
        return until(look, 30)
    except AssertionError:
        raise AssertionError(f"{name} says {last}, without {words}") from None


def members(kube: Kube, namespace: str, name: str, size: int, tag: dict[str, str], first: int = 0) -> None:
    for index in range(first, first + size):
        kube.create("pods", pod(f"{name}-{index}", group=name, selector=tag), namespace)


def running(kube: Kube, namespace: str, count: int) -> None:
    until(lambda: len(kube.bound(namespace)) == count, what=f"{count} pods are bound")


class TestRoom:
    def test_eight_of_twenty_is_none(self, kube: Kube, namespace: str, room: Room, watcher: Watcher) -> None:
        tag = room(*[1] * 8)
        kube.create("podgroups", pod_group("twenty", 20), namespace)
        members(kube, namespace, "twenty", 20, tag)
        told(kube, namespace, "twenty", "False", "Unschedulable", "8 of 20")
        settle(watcher.world, [namespace])
        assert kube.bound(namespace) == []

    def test_the_sum_is_there_but_the_nodes_are_not(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher
    ) -> None:
        tag = room(*[6] * 4)
        made = kube.create("jobs", job("six", 6, cpu="4", selector=tag), namespace)
        told(kube, namespace, group_name("six", made["metadata"]["uid"]), "4 of 6")
        settle(watcher.world, [namespace])
        assert kube.bound(namespace) == []

    def test_pods_per_node_count(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(8, pods=2)
        kube.create("podgroups", pod_group("three", 3), namespace)
        members(kube, namespace, "three", 3, tag)
        told(kube, namespace, "three", "2 of 3")
        room(8, pods=1)
        running(kube, namespace, 3)

    def test_one_whole_group_rather_than_two_halves(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher
    ) -> None:
        tag = room(1, 1, 1)
        for name in ("a", "b"):
            kube.create("podgroups", pod_group(name, 2), namespace)
        for index in range(2):
            for name in ("a", "b"):
                kube.create("pods", pod(f"{name}-{index}", group=name, selector=tag), namespace)
        running(kube, namespace, 2)
        settle(watcher.world, [namespace])
        assert len({name[0] for name in kube.bound(namespace)}) == 1

    def test_a_cordoned_node_is_no_room(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(4)
        kube.cordon(f"{namespace}-0")
        kube.create("podgroups", pod_group("two", 2), namespace)
        members(kube, namespace, "two", 2, tag)
        told(kube, namespace, "two", "0 of 2", "unschedulable")
        kube.cordon(f"{namespace}-0", False)
        running(kube, namespace, 2)


class TestMinimum:
    def test_an_edit_takes_effect(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(3)
        kube.create("podgroups", pod_group("five", 5), namespace)
        members(kube, namespace, "five", 5, tag)
        told(kube, namespace, "five", "3 of 5")
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        kube.patch("podgroups", "five", namespace, {"spec": spec})
        running(kube, namespace, 3)
        told(kube, namespace, "five", "True")

    def test_a_job_that_grows_starts_none_of_its_new_pods_in_part(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher, phalanx: Phalanx
    ) -> None:
        """The pods come before their group has heard of the new size: they must not be bound on the old one."""
        tag = room(7)
        made = kube.create("jobs", job("grows", 3, selector=tag), namespace)
        running(kube, namespace, 3)
        controllers = phalanx.cluster.pids["controllers"]
        os.kill(controllers, signal.SIGSTOP)
        try:
            kube.patch("jobs", "grows", namespace, {"spec": {"parallelism": 9, "completions": 9}})
            until(lambda: len(kube.list("pods", namespace)) == 9)
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 2, what="time in which nothing may be bound")
            early = kube.bound(namespace)
        finally:
            os.kill(controllers, signal.SIGCONT)
        assert len(early) == 3, early
        name = group_name("grows", made["metadata"]["uid"])
        until(
            lambda: kube.get("podgroups", name, namespace)["spec"]["schedulingPolicy"]["gang"]["minCount"] == 9,
            what="the PodGroup has the new minimum",
        )
        settle(watcher.world, [namespace])
        assert len(kube.bound(namespace)) == 3

    def test_fewer_members_than_the_minimum_wait_and_are_counted(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(8)
        kube.create("podgroups", pod_group("four", 4), namespace)
        members(kube, namespace, "four", 3, tag)
        told(kube, namespace, "four", "False", "3 of 4", "1 more")
        assert kube.bound(namespace) == []
        # Members of an incomplete group can be deleted.
        kube.clear("pods", namespace)
        until(lambda: not kube.list("pods", namespace))
        members(kube, namespace, "four", 4, tag, first=10)
        running(kube, namespace, 4)

    def test_more_members_than_the_minimum_join_as_they_fit(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher
    ) -> None:
        tag = room(3)
        kube.create("podgroups", pod_group("two", 2), namespace)
        members(kube, namespace, "two", 4, tag)
        running(kube, namespace, 3)
        room(1)
        running(kube, namespace, 4)


class TestMembers:
    def test_a_replacement_joins_the_running_group(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(6)
        kube.create("jobs", job("six", 6, selector=tag, backoffLimit=10), namespace)
        running(kube, namespace, 6)
        before = {p["metadata"]["uid"] for p in kube.list("pods", namespace)}
        kube.delete("pods", kube.list("pods", namespace)[0]["metadata"]["name"], namespace)

        def replaced() -> bool:
            pods = kube.list("pods", namespace)
            live = {
                p["metadata"]["uid"] for p in pods if p["spec"].get("nodeName") and p["status"]["phase"] == "Running"
            }
            return len(live) == 6 and live != before

        until(replaced, 40, "a replacement is bound")

    def test_a_lost_member_is_missed(self, kube: Kube, namespace: str, room: Room, watcher: Watcher) -> None:
        """Its successor finds no room: it waits, and the others keep theirs."""
        tag = room(3)
        kube.create("podgroups", pod_group("three", 3), namespace)
        members(kube, namespace, "three", 3, tag)
        running(kube, namespace, 3)
        kube.create("pods", pod("greedy", selector=tag), namespace)
        kube.delete("pods", "three-0", namespace)
        until(lambda: "greedy" in kube.bound(namespace))
        members(kube, namespace, "three", 1, tag, first=9)

        def says() -> str:
            conditions = kube.get("pods", "three-9", namespace)["status"].get("conditions") or ()
            return next(
                (c["message"] for c in conditions if c["type"] == "PodScheduled" and "2 of 3" in c["message"]), ""
            )

        until(says, what="the newcomer is told that 2 of 3 are bound")
        settle(watcher.world, [namespace])
        assert len(kube.bound(namespace)) == 3
        kube.finish(namespace, ["greedy"])
        until(lambda: "three-9" in kube.bound(namespace))

    def test_a_deleted_pending_member_does_not_count(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(2)
        kube.create("podgroups", pod_group("three", 3), namespace)
        stuck = pod("three-0", group="three", selector=tag)
        stuck["metadata"]["finalizers"] = ["example.com/stays"]
        kube.create("pods", stuck, namespace)
        members(kube, namespace, "three", 2, tag, first=1)
        told(kube, namespace, "three", "2 of 3 members fit")
        kube.delete("pods", "three-0", namespace)
        try:
            room(1)
            told(kube, namespace, "three", "2 of 3 members exist")
            assert kube.bound(namespace) == []
            members(kube, namespace, "three", 1, tag, first=7)
            running(kube, namespace, 3)
        finally:
            kube.patch("pods", "three-0", namespace, {"metadata": {"finalizers": None}})

    def test_a_gated_member_holds_the_group(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(4)
        kube.create("podgroups", pod_group("three", 3), namespace)
        members(kube, namespace, "three", 2, tag)
        gated = pod("three-2", group="three", selector=tag, schedulingGates=[{"name": "example.com/wait"}])
        kube.create("pods", gated, namespace)
        told(kube, namespace, "three", "2 of 3")
        assert kube.bound(namespace) == []
        kube.patch("pods", "three-2", namespace, {"spec": {"schedulingGates": []}})
        running(kube, namespace, 3)

    def test_a_strangers_pod_never_fills_a_jobs_minimum(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher
    ) -> None:
        tag = room(3)
        made = kube.create("jobs", job("four", 4, selector=tag), namespace)
        name = group_name("four", made["metadata"]["uid"])
        until(lambda: len(kube.list("pods", namespace)) == 4)
        kube.create("pods", pod("stranger", group=name, cpu="100m", selector=tag), namespace)
        told(kube, namespace, name, "3 of 4")
        settle(watcher.world, [namespace])
        assert kube.bound(namespace) == []


class TestNames:
    def test_a_group_made_again_starts_anew(self, kube: Kube, namespace: str, room: Room, watcher: Watcher) -> None:
        tag = room(3)
        for size, fits in ((3, True), (4, False), (2, True)):
            kube.create("podgroups", pod_group("again", size), namespace)
            members(kube, namespace, "again", size, tag)
            told(kube, namespace, "again", "True" if fits else f"3 of {size}")
            assert len(kube.bound(namespace)) == (size if fits else 0)
            kube.delete("podgroups", "again", namespace)
            kube.clear("pods", namespace)
            until(lambda: not kube.list("pods", namespace) and not kube.list("podgroups", namespace))

    def test_members_of_a_group_in_deletion_wait_for_the_next(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(8)
        kube.create("podgroups", pod_group("next", 2), namespace)
        members(kube, namespace, "next", 2, tag)
        running(kube, namespace, 2)
        kube.delete("podgroups", "next", namespace)
        members(kube, namespace, "next", 2, tag, first=5)

        def waits() -> bool:
            conditions = kube.get("pods", "next-5", namespace)["status"].get("conditions") or ()
            return any("being deleted" in c.get("message", "") for c in conditions)

        until(waits, what="the new members are told")
        running(kube, namespace, 2)
        kube.clear("pods", namespace)
        until(lambda: not kube.list("podgroups", namespace), 40, "the old group is gone")

    def test_a_pod_made_again_under_its_name(self, kube: Kube, namespace: str, room: Room) -> None:
        tag = room(2)
        kube.create("podgroups", pod_group("pair", 2), namespace)
        for _ in range(5):
            members(kube, namespace, "pair", 2, tag)
            kube.clear("pods", namespace, gracePeriodSeconds=0)
            until(lambda: not kube.list("pods", namespace))
        members(kube, namespace, "pair", 2, tag)
        running(kube, namespace, 2)


class TestSuspend:
    def test_suspend_and_resume_while_the_old_pods_still_end(
        self, kube: Kube, namespace: str, room: Room, watcher: Watcher
    ) -> None:
        tag = room(4)
        body = job("pauses", 4, selector=tag)
        body["spec"]["template"]["metadata"] = {"annotations": {"phalanx.dev/ignore-sigterm": "true"}}
        body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3
        kube.create("jobs", body, namespace)
        running(kube, namespace, 4)
        uids = set()
        for _ in range(3):
            (group,) = kube.list("podgroups", namespace)
            uids.add(group["metadata"]["uid"])
            kube.patch("jobs", "pauses", namespace, {"spec": {"suspend": True}})
            until(lambda: kube.get("jobs", "pauses", namespace)["status"].get("terminating", 0))
            kube.patch("jobs", "pauses", namespace, {"spec": {"suspend": False}})

            def again() -> bool:
                pods = kube.list("pods", namespace, fieldSelector="status.phase=Running")
                live = [p for p in pods if "deletionTimestamp" not in p["metadata"] and p["spec"].get("nodeName")]
                groups = kube.list("podgroups", namespace)
                return len(live) == 4 and len(groups) == 1 and groups[0]["metadata"]["uid"] not in uids

            until(again, 40, "all four run in a group of their own")
        settle(watcher.world, [namespace])
