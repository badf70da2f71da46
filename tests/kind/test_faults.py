"""Requests that fail on their way to a real API server: the scheduler recovers, and completes what it began first.

The scheduler runs inside the test, as its ServiceAccount, with faults put in front of its own client.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from cluster import Cluster
from controllers.app import Controllers
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.errors import Unreachable
from runtime.exchange import CallNext, Request, Response
from runtime.kr8s_seam import connect
from runtime.manager import Manager
from scheduler.core.core import Core
from scheduler.shell import Shell
from tests.kind.checks import Watcher, replay, settle
from tests.kind.kube import Kube, initially_scheduled, job, node, pod, pod_group, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.needs("fake nodes")]

#: Longest back-off of the scheduler, and what a busy machine adds.
PATIENCE = 30


@dataclass
class Faults:
    """An interceptor: asks ``rule`` for each request what is to become of it, and counts.

    The rule gets the request and how many like it (same verb and path) came before; it gives a fault, or None.
    """

    rule: Callable[[Request, int], Fault | None] = lambda request, before: None
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    hit: int = 0

    async def __call__(self, request: Request, call_next: CallNext) -> Response:
        key = (request.verb, request.path)
        fault = self.rule(request, self.seen[key])
        self.seen[key] += 1
        if fault is None:
            return await call_next(request)
        self.hit += 1
        return await fault(request, call_next)

    def binds(self, namespace: str) -> Counter[str]:
        """How often each pod's bind was tried."""
        prefix, suffix = f"/api/v1/namespaces/{namespace}/pods/", "/binding"
        tried: Counter[str] = Counter()
        for (_, path), count in self.seen.items():
            if path.startswith(prefix) and path.endswith(suffix):
                tried[path.removeprefix(prefix).removesuffix(suffix)] = count
        return tried


Fault = Callable[[Request, CallNext], Any]


def answer(status: int, reason: str, **headers: str) -> Fault:
    """The server refuses: the request never gets there."""

    async def fault(request: Request, call_next: CallNext) -> Response:
        body = {"kind": "Status", "code": status, "reason": reason, "message": f"a fault of the test: {reason}"}
        return Response(status, headers, json.dumps(body).encode())

    return fault


async def lose_answer(request: Request, call_next: CallNext) -> Response:
    """The server does it, and the connection breaks before it can say so."""
    await call_next(request)
    raise Unreachable("a fault of the test: answer lost", request.verb, request.path, ambiguous=True)


async def lose_request(request: Request, call_next: CallNext) -> Response:
    """The connection breaks before the server has got it; the client cannot tell."""
    raise Unreachable("a fault of the test: request lost", request.verb, request.path, ambiguous=True)


def is_bind(request: Request, name: str = "") -> bool:
    return request.path.endswith(f"/{name}/binding" if name else "/binding")


class Inside:
    """One of our processes, inside the test."""

    def __init__(self, portal: BlockingPortal, manager: Manager, ended: Future[int]) -> None:
        self._portal = portal
        self._manager = manager
        self._ended = ended

    def stop(self) -> int:
        self._portal.call(self._manager.stop, "the test is over")
        return self._ended.result(30)


@contextlib.contextmanager
def inside(cluster: Cluster, who: str, faults: Faults) -> Iterator[Inside]:
    """Run the scheduler or the controllers with faults in front of their client."""
    kubeconfig = cluster.kubeconfig_as(who)
    clock = SystemClock()
    manager = Manager(clock)

    async def run() -> int:
        api = await connect(kubeconfig, user_agent=f"phalanx-{who}")
        try:
            client = Client(api, clock=clock, interceptors=[faults])
            if who == "scheduler":
                Shell(client, clock, Core()).add_to(manager)
            else:
                Controllers(client, clock).add_to(manager)
            return await manager.run(handle_signals=False)
        finally:
            await api.aclose()

    with start_blocking_portal() as portal:
        running = Inside(portal, manager, portal.start_task_soon(run))
        until(lambda: manager.leading or running._ended.done(), what=f"the {who} works")
        try:
            yield running
        finally:
            assert running.stop() == 0


@pytest.fixture
def room(kube: Kube, namespace: str) -> Iterator[Callable[..., dict[str, str]]]:
    """Makes nodes of the given CPUs for this test; gives the selector for them."""
    tag, names = {"only-for": namespace}, []

    def make(*cpus: int) -> dict[str, str]:
        for cpu in cpus:
            names.append(f"{namespace}-{len(names)}")
            kube.create("nodes", node(names[-1], cpu=str(cpu), labels=tag))
        return tag

    yield make
    for name in names:
        kube.delete("nodes", name)


def gang(kube: Kube, namespace: str, name: str, size: int, tag: dict[str, str], cpu: str = "1", **options: Any) -> None:
    kube.create("podgroups", pod_group(name, options.pop("minimum", size)), namespace)
    for index in range(size):
        kube.create("pods", pod(f"{name}-{index}", cpu=cpu, group=name, selector=tag, **options), namespace)


def scheduled(kube: Kube, namespace: str, name: str) -> None:
    until(
        lambda: initially_scheduled(kube.get("podgroups", name, namespace))[0] == "True",
        PATIENCE,
        f"the condition of {name} is True",
    )


def all_bound(kube: Kube, namespace: str, *prefixes: str, count: int) -> None:
    def look() -> bool:
        return len([name for name in kube.bound(namespace) if name.startswith(prefixes)]) == count

    until(look, PATIENCE, f"{count} pods of {prefixes} are bound")


def well_told(watcher: Watcher, namespace: str, binds: int) -> None:
    """The history of this test has nothing wrong in it, and so many binds."""
    watcher.catch_up(namespace)
    report = replay(watcher.changes(), namespaces=[namespace])
    assert report.violations == []
    assert report.partial_now == []
    assert report.binds == binds


@pytest.mark.usefixtures("only_controllers")
class TestBind:
    def test_refused_once_for_one_member_of_a_job(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        tag = room(4, 4)

        def rule(request: Request, before: int) -> Fault | None:
            return answer(500, "InternalError") if is_bind(request) and "-1-" in request.path and not before else None

        with inside(cluster, "scheduler", faults := Faults(rule)):
            kube.create("jobs", job("two", 2, cpu="3", selector=tag), namespace)
            all_bound(kube, namespace, "two", count=2)
            pods = until(
                lambda: (p := kube.list("pods", namespace)) and {x["status"]["phase"] for x in p} == {"Running"} and p
            )
            assert len(pods) == 2
            assert faults.hit == 1
            settle(watcher.world, [namespace])
            # The first bind of the other member was not tried again.
            assert sorted(faults.binds(namespace).values()) == [1, 2]
        well_told(watcher, namespace, 2)

    @pytest.mark.parametrize("times", [1, 3])
    def test_a_group_with_failed_binds_is_completed_before_others(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room, times: int
    ) -> None:
        tag = room(4)

        def rule(request: Request, before: int) -> Fault | None:
            return answer(500, "InternalError") if is_bind(request, "first-2") and before < times else None

        with inside(cluster, "scheduler", faults := Faults(rule)):
            gang(kube, namespace, "first", 4, tag)
            until(lambda: faults.hit, what="the first bind has failed")
            # All of these want the room that the failed member needs, with a higher priority too.
            gang(kube, namespace, "second", 1, tag)
            kube.create("pods", pod("alone", selector=tag), namespace)
            urgent = pod("urgent", selector=tag, priorityClassName="system-cluster-critical")
            kube.create("pods", urgent, namespace)
            scheduled(kube, namespace, "first")
            assert faults.hit == times
            settle(watcher.world, [namespace])
            assert [name for name in kube.bound(namespace) if not name.startswith("first")] == []
        well_told(watcher, namespace, 4)

    def test_refused_for_a_while_for_everybody(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        tag = room(4, 4)
        faults = Faults(lambda request, before: answer(503, "ServiceUnavailable") if is_bind(request) else None)
        with inside(cluster, "scheduler", faults):
            gang(kube, namespace, "one", 3, tag)
            gang(kube, namespace, "two", 3, tag)
            until(lambda: faults.hit >= 9, PATIENCE, "some rounds of binds have failed")
            assert kube.bound(namespace) == []
            # No hot loop: the pauses between two attempts grow.
            before, began = faults.hit, time.monotonic()
            until(lambda: time.monotonic() - began > 3, what="three seconds")
            assert faults.hit - before <= 6 * 3
            faults.rule = lambda request, before: None
            all_bound(kube, namespace, "one", "two", count=6)
            scheduled(kube, namespace, "one")
            scheduled(kube, namespace, "two")
        well_told(watcher, namespace, 6)

    @pytest.mark.parametrize(
        "fault",
        [
            pytest.param(lose_answer, id="answer-lost"),
            pytest.param(lose_request, id="request-lost"),
            pytest.param(answer(409, "Conflict"), id="conflict"),
            pytest.param(answer(429, "TooManyRequests", **{"Retry-After": "1"}), id="throttled"),
            pytest.param(answer(504, "Timeout"), id="timeout"),
        ],
    )
    def test_first_try_of_each_goes_wrong(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room, fault: Fault
    ) -> None:
        tag = room(3, 3)
        with inside(cluster, "scheduler", faults := Faults(lambda r, n: fault if is_bind(r) and not n else None)):
            gang(kube, namespace, "one", 4, tag)
            scheduled(kube, namespace, "one")
            assert faults.hit >= 4
            # The books are right: two more fit, a third does not.
            for name in ("alone-0", "alone-1", "alone-2"):
                kube.create("pods", pod(name, selector=tag), namespace)
            all_bound(kube, namespace, "alone", count=2)
            settle(watcher.world, [namespace])
            assert max(faults.binds(namespace).values()) <= 2
        well_told(watcher, namespace, 6)

    def test_somebody_else_was_faster(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        """Another scheduler binds a member elsewhere: it counts where it is."""
        tag = room(4, 2)
        other = f"{namespace}-1"
        # A node is born with the taint not-ready; the history blames whoever binds there before it is lifted, us too.
        until(lambda: not kube.get("nodes", other)["spec"].get("taints"), PATIENCE, f"{other} takes pods")

        async def steal(request: Request, call_next: CallNext) -> Response:
            body = json.loads(request.body or b"")
            body["target"]["name"] = other
            kube.request("POST", f"/api/v1/namespaces/{namespace}/pods/one-0/binding", body)
            return await call_next(request)

        def rule(request: Request, before: int) -> Fault | None:
            return steal if is_bind(request, "one-0") and not before else None

        with inside(cluster, "scheduler", Faults(rule)):
            gang(kube, namespace, "one", 3, tag)
            scheduled(kube, namespace, "one")
            for index in range(4):
                kube.create("pods", pod(f"alone-{index}", selector=tag), namespace)
            all_bound(kube, namespace, "alone", count=3)
            settle(watcher.world, [namespace])
        well_told(watcher, namespace, 6)

    def test_a_member_is_deleted_under_the_bind(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        tag = room(3)

        async def delete(request: Request, call_next: CallNext) -> Response:
            kube.delete("pods", "one-1", namespace, gracePeriodSeconds=0)
            return await call_next(request)

        def rule(request: Request, before: int) -> Fault | None:
            return delete if is_bind(request, "one-1") and not before else None

        with inside(cluster, "scheduler", Faults(rule)):
            gang(kube, namespace, "one", 3, tag)
            all_bound(kube, namespace, "one", count=2)
            message = until(
                lambda: (m := initially_scheduled(kube.get("podgroups", "one", namespace))[2]) and "2 of 3" in m and m,
                PATIENCE,
                "the group says what it waits for",
            )
            assert "1 more" in message, message
            # The room of the member that was lost is free for others until there is a new one ...
            kube.create("pods", pod("one-9", group="one", selector=tag), namespace)
            scheduled(kube, namespace, "one")
        well_told(watcher, namespace, 3)

    def test_a_restart_in_the_middle_completes_the_group_first(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        tag = room(4)
        stuck = Faults(lambda request, before: answer(500, "InternalError") if is_bind(request, "first-3") else None)
        with inside(cluster, "scheduler", stuck):
            gang(kube, namespace, "first", 4, tag)
            all_bound(kube, namespace, "first", count=3)
        # While nobody schedules, others come who want the same room.
        kube.create("pods", pod("alone", selector=tag, priorityClassName="system-cluster-critical"), namespace)
        gang(kube, namespace, "second", 1, tag)
        with inside(cluster, "scheduler", Faults()):
            scheduled(kube, namespace, "first")
            settle(watcher.world, [namespace])
            assert [name for name in kube.bound(namespace) if not name.startswith("first")] == []
        well_told(watcher, namespace, 4)


@pytest.mark.usefixtures("only_controllers")
class TestStatus:
    @pytest.mark.parametrize("status", [409, 429, 500])
    def test_the_condition_gets_there_in_the_end(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room, status: int
    ) -> None:
        tag = room(8)

        def rule(request: Request, before: int) -> Fault | None:
            about = request.verb == "PATCH" and request.path.endswith("/podgroups/ten/status")
            return answer(status, "Conflict" if status == 409 else "Fault") if about and before < 3 else None

        with inside(cluster, "scheduler", faults := Faults(rule)):
            gang(kube, namespace, "ten", 8, tag)
            scheduled(kube, namespace, "ten")
            assert faults.hit == 3
        changes = watcher.changes()
        told = [
            c.view.scheduled for c in changes if c.resource == "podgroups" and c.view and c.view.namespace == namespace
        ]
        assert len([t for t in dict.fromkeys(told) if t[0] == "True"]) == 1

    def test_a_group_deleted_before_its_status_is_written_is_dropped(
        self, cluster: Cluster, kube: Kube, namespace: str, room
    ) -> None:
        tag = room(1)

        async def delete(request: Request, call_next: CallNext) -> Response:
            kube.clear("pods", namespace, gracePeriodSeconds=0)
            kube.delete("podgroups", "gone", namespace)
            until(lambda: kube.find("podgroups", "gone", namespace) is None)
            return await call_next(request)

        def rule(request: Request, before: int) -> Fault | None:
            about = request.verb == "PATCH" and request.path.endswith("/podgroups/gone/status")
            return delete if about and not before else None

        with inside(cluster, "scheduler", faults := Faults(rule)):
            # The group comes last, for a pod made after its deletion would hold it.
            for index in range(2):
                kube.create("pods", pod(f"gone-{index}", group="gone", selector=tag), namespace)
            kube.create("podgroups", pod_group("gone", 2), namespace)
            until(lambda: kube.find("podgroups", "gone", namespace) is None, PATIENCE, "its status was to be written")
            assert faults.hit == 1
            # Something later is dealt with: then nothing of the old one is left.
            gang(kube, namespace, "later", 1, tag)
            scheduled(kube, namespace, "later")
            writes = [n for (verb, path), n in faults.seen.items() if verb == "PATCH" and "/podgroups/gone/" in path]
            assert sum(writes) <= 2


@pytest.mark.usefixtures("only_scheduler")
class TestControllers:
    def test_pods_wait_until_their_group_can_be_made(
        self, cluster: Cluster, kube: Kube, namespace: str, watcher: Watcher, room
    ) -> None:
        tag = room(4)

        def rule(request: Request, before: int) -> Fault | None:
            about = request.verb == "POST" and request.path.endswith(f"/namespaces/{namespace}/podgroups")
            return answer(503, "ServiceUnavailable") if about and before < 2 else None

        with inside(cluster, "controllers", faults := Faults(rule)):
            kube.create("jobs", job("late", 3, selector=tag), namespace)
            all_bound(kube, namespace, "late", count=3)
            assert faults.hit == 2
        watcher.catch_up(namespace)
        ours = [c for c in watcher.changes() if c.view is not None and getattr(c.view, "namespace", "") == namespace]
        made = min(c.revision for c in ours if c.resource == "podgroups")
        binds = [c.revision for c in ours if c.resource == "pods" and c.view.node]
        assert min(binds) > made
        well_told(watcher, namespace, 3)
