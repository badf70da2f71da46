"""Leadership by a Lease: one replica at a time, whatever the clock, the network and the Lease do."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from runtime.clock import FakeClock, settle
from runtime.election import DELETED, RELEASES, LeaseElection, LeaseTimes
from runtime.errors import Conflict, NotLeading
from runtime.exchange import CallNext, Request, Response
from runtime.resources import LEASES
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, thing

pytestmark = pytest.mark.anyio

NAMESPACE, NAME = "ours", "job"
WRITE = Request("POST", "/x")


class Replica:
    """One replica that takes part, from `start` until it loses or is told to release."""

    def __init__(
        self, server: FakeApiServer, clock: FakeClock, name: str, *, dead: set[str] | None = None, **options: Any
    ) -> None:
        self.cut = False
        self.hang = False
        self.history: list[str] = []
        ended = (dead if dead is not None else set()).__contains__
        self.election = LeaseElection(
            server.client(clock, interceptors=[self.network]),
            clock,
            name=NAME,
            namespace=NAMESPACE,
            identity=name,
            ended=ended,
            **options,
        )
        self.client = server.client(clock, before_write=self.election.check)

    async def network(self, request: Request, call_next: CallNext) -> Response:
        if self.hang:
            await anyio.sleep_forever()
        if self.cut:
            return status(503, "ServiceUnavailable")
        return await call_next(request)

    async def run(self) -> None:
        self.history.append(f"leads after {'another' if await self.election.acquire() else 'none'}")
        await self.election.hold()
        self.history.append("lost")

    @property
    def leading(self) -> bool:
        return self.election.leading


class Jitter(random.Random):
    """Always the least or always the most."""

    def __init__(self, which: Callable[[float, float], float]) -> None:
        super().__init__(0)
        self._which = which

    def uniform(self, a: float, b: float) -> float:
        return self._which(a, b)


@pytest.fixture(autouse=True)
def _installed(server: FakeApiServer) -> None:
    """The manifests bring the Lease."""
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}})


def lease(server: FakeApiServer) -> dict[str, Any]:
    found = server.get(LEASES, NAME, NAMESPACE)
    assert found is not None
    spec: dict[str, Any] = found["spec"]
    return spec


async def advance_until(clock: FakeClock, condition: Callable[[], bool], *, step: float, within: float = 60.0) -> None:
    """Let time pass in steps until it is so, a minute at most."""
    end = clock.monotonic() + within
    while not condition():
        assert clock.monotonic() < end, "it did not happen"
        await clock.advance(step)


@asynccontextmanager
async def taking_part(*replicas: Replica) -> AsyncIterator[anyio.abc.TaskGroup]:
    async with anyio.create_task_group() as group:
        for replica in replicas:
            group.start_soon(replica.run)
            await settle()
        yield group
        group.cancel_scope.cancel()


async def test_the_first_leads_at_once_and_renews(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        assert a.leading
        spec = lease(server)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
        assert spec["acquireTime"] == spec["renewTime"] == "2030-01-01T00:00:00.000000Z"
        await clock.advance(100)
        assert a.leading
        later = lease(server)
        assert later["renewTime"] == "2030-01-01T00:01:40.000000Z"
        assert later | {"renewTime": ""} == spec | {"renewTime": ""}
    assert a.history == ["leads after none"]
    assert len(server.seen("PUT")) == 51
    assert len(server.seen("GET")) == 1, "the leader knows what it wrote"


async def test_a_follower_takes_over_after_a_whole_duration_without_change(
    server: FakeApiServer, clock: FakeClock
) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        await clock.advance(60)
        assert (a.leading, b.leading) == (True, False)
        a.cut = True
        await advance_until(clock, lambda: b.leading or not a.leading, step=0.5)
        assert not b.leading
        out_since = clock.monotonic()
        await advance_until(clock, lambda: b.leading, step=0.5)
        assert clock.monotonic() - out_since >= 15 - 10 - 2, "the follower is not early"
        assert clock.monotonic() - out_since <= 15 - 10 + 2 * 2.4 + 1, "nor late"
        assert lease(server)["holderIdentity"] == "b"
        assert lease(server)["leaseTransitions"] == 1
    assert a.history == ["leads after none", "lost"]
    assert b.history == ["leads after another"]


async def test_remote_times_are_never_read(server: FakeApiServer, clock: FakeClock) -> None:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"}
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    a = Replica(server, clock, "a")
    async with taking_part(a):
        await clock.advance(14.9)
        assert not a.leading
        await clock.advance(3)
        assert a.leading


async def test_a_longer_lease_of_another_is_respected(server: FakeApiServer, clock: FakeClock) -> None:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 60}
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    a = Replica(server, clock, "a")
    async with taking_part(a):
        await clock.advance(59)
        assert not a.leading
        await clock.advance(4)
        assert a.leading


async def test_the_deadline_counts_from_when_the_renewal_began(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    slow = 0.0

    async def late(request: Request, call_next: CallNext) -> Response:
        answer = await call_next(request)
        await clock.sleep(slow)
        return answer

    a.election._client = server.client(clock, interceptors=[late])
    async with taking_part(a):
        slow = 4.0
        await clock.advance(6)  # renewal begins at 2 and ends at 6
        slow = 1000.0
        assert a.leading
        await clock.advance(5.9)
        assert a.leading
        await clock.advance(0.2)
        assert not a.leading, "10 s after 2, not after 6"


async def test_a_request_that_hangs_leaves_time_for_another(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        a.hang = True
        await clock.advance(3)
        a.hang = False
        await clock.advance(60)
        assert a.leading
    assert a.history == ["leads after none"]


async def test_the_loss_is_told_at_the_deadline_also_while_a_request_hangs(
    server: FakeApiServer, clock: FakeClock
) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        a.hang = True
        await clock.advance(9.9)
        assert a.history == ["leads after none"]
        await clock.advance(0.2)
        assert a.history == ["leads after none", "lost"]


async def test_a_lost_answer_is_settled_by_the_next_look(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("reset", verb="PUT", after=True)
    a = Replica(server, clock, "a")
    async with taking_part(a):
        assert not a.leading, "unknown is not yes"
        await clock.advance(3)
        assert a.leading
        server.fail("reset", verb="PUT", after=True, times=1)
        await clock.advance(60)
        assert a.leading
    assert lease(server)["leaseTransitions"] == 0


async def test_a_lease_taken_by_another_ends_leadership_at_once(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        spec = lease(server) | {"holderIdentity": "thief"}
        server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
        await clock.advance(2.1)
        assert not a.leading
        assert a.history == ["leads after none", "lost"]
    assert lease(server)["holderIdentity"] == "thief"


async def test_a_lease_changed_by_a_stranger_is_still_ours(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        metadata = {"name": NAME, "namespace": NAMESPACE, "labels": {"touched": "yes"}}
        server.put(LEASES, {"metadata": metadata, "spec": lease(server)})
        await clock.advance(60)
        assert (a.leading, b.leading) == (True, False)


async def test_touching_a_dead_leaders_lease_does_not_keep_it(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        a.cut = True
        for n in range(20):
            metadata = {"name": NAME, "namespace": NAMESPACE, "labels": {"touched": str(n)}}
            server.put(LEASES, {"metadata": metadata, "spec": lease(server)})
            await clock.advance(1)
        assert b.leading


async def test_where_there_is_no_lease_nobody_leads_for_a_whole_duration(
    server: FakeApiServer, clock: FakeClock
) -> None:
    """Its holder may not know yet that it is gone."""
    server.remove(LEASES, NAME, NAMESPACE)
    a = Replica(server, clock, "a")
    async with taking_part(a):
        await clock.advance(14.9)
        assert not a.leading
        assert lease(server)["holderIdentity"] == DELETED
        await clock.advance(3)
        assert a.leading
        assert (lease(server)["holderIdentity"], lease(server)["leaseTransitions"]) == ("a", 1)


async def test_a_lease_that_is_deleted_twice_between_two_looks_is_noticed(
    server: FakeApiServer, clock: FakeClock
) -> None:
    server.remove(LEASES, NAME, NAMESPACE)
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        await advance_until(clock, lambda: a.leading or b.leading, step=0.1)
        server.remove(LEASES, NAME, NAMESPACE)
        for _ in range(300):
            await clock.advance(0.1)
            assert [a.leading, b.leading] != [True, True]
        assert a.leading or b.leading


async def test_a_lease_deleted_before_it_is_given_back(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        server.remove(LEASES, NAME, NAMESPACE)
        await a.election.release()
        assert not a.leading
        assert server.get(LEASES, NAME, NAMESPACE) is None


async def test_a_deleted_lease_is_no_invitation(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        a.cut = True
        await clock.advance(2.5)
        server.remove(LEASES, NAME, NAMESPACE)
        await advance_until(clock, lambda: b.leading or not a.leading, step=0.5)
        assert not b.leading
        await clock.advance(15)
        assert b.leading
    assert a.history[-1] == "lost"


async def test_the_leader_makes_a_deleted_lease_anew(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        server.remove(LEASES, NAME, NAMESPACE)
        await clock.advance(5)
        assert lease(server)["holderIdentity"] == "a"
        assert lease(server)["leaseTransitions"] == 0
        await clock.advance(60)
        assert a.leading
    assert a.history == ["leads after none"]


async def test_released_it_is_taken_at_once(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        # Its version has changed since: released all the same.
        metadata = {"name": NAME, "namespace": NAMESPACE, "labels": {"touched": "yes"}}
        server.put(LEASES, {"metadata": metadata, "spec": lease(server)})
        await a.election.release()
        assert not a.leading
        assert lease(server)["holderIdentity"] == ""
        await clock.advance(2.5)
        assert b.leading
        assert lease(server)["leaseTransitions"] == 1
    assert b.history == ["leads after another"]


async def test_what_is_lost_is_not_released(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        a.cut = True
        await clock.advance(11)
        a.cut = False
        await a.election.release()
        assert lease(server)["holderIdentity"] == "a"


async def test_what_cannot_be_ours_is_not_looked_at(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a").election
    await a.release()
    assert server.requests == [], "never claimed"
    await a.acquire()
    await clock.advance(11)
    requests = len(server.requests)
    await a.release()
    assert len(server.requests) == requests, "its claim was answered, and has run out"


async def test_what_always_changes_is_not_released_for_ever(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        fault = server.fail(status(409, "Conflict"), verb="PUT", times=10**6)
        with pytest.raises(Conflict):
            await a.election.release()
        assert fault.hits == RELEASES
        assert not a.leading


async def test_a_claim_that_is_cut_off_is_released(server: FakeApiServer, clock: FakeClock) -> None:
    """The API server took it, its answer never came: whether it is ours, only a look can tell."""

    async def deaf(request: Request, call_next: CallNext) -> Response:
        answer = await call_next(request)
        if request.verb == "PUT" and not stopping.is_set():
            await anyio.sleep_forever()
        return answer

    stopping = anyio.Event()
    client = server.client(clock, interceptors=[deaf])
    election = LeaseElection(client, clock, name=NAME, namespace=NAMESPACE, identity="a")
    async with anyio.create_task_group() as group:
        group.start_soon(election.acquire)
        await settle()
        group.cancel_scope.cancel()
    assert lease(server)["holderIdentity"] == "a"
    stopping.set()
    await election.release()
    assert lease(server)["holderIdentity"] == ""


async def test_a_holder_that_has_ended_is_not_waited_for(server: FakeApiServer, clock: FakeClock) -> None:
    dead: set[str] = set()
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b", dead=dead)
    async with taking_part(a, b) as group:
        await clock.advance(5)
        assert not b.leading
        dead.add("a")
        a.cut = True
        await clock.advance(2.5)
        assert b.leading
        group.cancel_scope.cancel()


async def test_writes_are_refused_before_during_and_after(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")

    async def write() -> None:
        server.requests.clear()
        await a.client.create(THINGS, thing("x"), "ns")

    with pytest.raises(NotLeading, match="nobody known"):
        await write()
    async with taking_part(a):
        await write()
        assert len(server.requests) == 1
        await a.client.get(THINGS, "x", "ns")
        # Stopped for a minute: not even the first request after it may start.
        clock.tick(60)
        with pytest.raises(NotLeading):
            await a.client.delete(THINGS, "x", "ns")
        assert server.seen("DELETE") == []
        await a.client.get(THINGS, "x", "ns")


async def test_a_write_waits_no_longer_than_leadership_lasts(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        clock.tick(1.5)
        request = Request("POST", "/x", timeout=30)
        a.election.check(request)
        assert request.timeout == pytest.approx(8.5)
        request = Request("POST", "/x", timeout=1)
        a.election.check(request)
        assert request.timeout == 1


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (status(404, "NotFound", 'namespaces "ours" not found'), "namespace ours does not exist"),
        (
            status(
                403,
                "Forbidden",
                'leases.coordination.k8s.io "job" is forbidden: User "system:serviceaccount:ours:us" cannot create '
                'resource "leases" in API group "coordination.k8s.io" in the namespace "ours"',
            ),
            "lacks the RBAC verb 'create' on leases.coordination.k8s.io in namespace ours",
        ),
        ("refuse", "did not answer"),
    ],
)
async def test_what_keeps_it_out_is_said_once_a_minute(
    server: FakeApiServer, clock: FakeClock, outcome: Any, words: str
) -> None:
    server.remove(LEASES, NAME, NAMESPACE)
    server.fail(outcome, verb="POST", times=10**6)
    a = Replica(server, clock, "a")
    with capture_logs() as logs:
        async with taking_part(a):
            await clock.advance(59)
            (line,) = [log for log in logs if log["log_level"] == "warning"]
            assert words in line["error"]
            server.faults.clear()
            await clock.advance(20)
            assert a.leading


async def test_what_it_says_of_a_life(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    where = {"lease": "ours/job"}
    with capture_logs() as logs:
        async with taking_part(a):
            assert logs == [{"event": "leading", "log_level": "info", "identity": "a"} | where]
            logs.clear()
            a.hang = True
            await clock.advance(7.5)
            a.hang = False
            a.cut = True
            await clock.advance(3)
            hung, refused, out = logs
            assert (
                hung
                == {
                    "event": "the Lease was not renewed",
                    "error": "the API server did not answer within 5 s",
                    "log_level": "warning",
                }
                | where
            )
            assert (refused["event"], refused["lease"]) == ("the Lease was not renewed", "ours/job")
            assert "503" in refused["error"]
            assert out == {"event": "the Lease could not be renewed in time", "log_level": "error"} | where
            assert not a.leading


async def test_what_it_says_when_it_gives_back_or_is_robbed(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b", dead={"thief"})
    where = {"lease": "ours/job"}
    with capture_logs() as logs:
        async with taking_part(a):
            logs.clear()
            await a.election.release()
            assert logs == [{"event": "leadership given back", "log_level": "info"} | where]
            assert lease(server)["leaseDurationSeconds"] == 1
            assert lease(server)["renewTime"] == "2030-01-01T00:00:00.000000Z"
        async with taking_part(b):
            spec = lease(server) | {"holderIdentity": "thief"}
            server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
            logs.clear()
            await clock.advance(2.5)
            robbed = {"event": "the Lease has another holder", "log_level": "error", "holder": "thief"} | where
            assert logs == [robbed]
            logs.clear()
            assert await b.election.acquire()
            ended = {"event": "the holder of the Lease has ended", "log_level": "info", "holder": "thief"} | where
            assert logs == [ended, {"event": "leading", "log_level": "info", "identity": "b"} | where]


async def test_a_look_that_fails_too_is_told_and_is_not_the_end(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    async with taking_part(a):
        server.fail(status(409, "Conflict"), verb="PUT")
        server.fail(status(403, "Forbidden", "no such luck"), verb="GET")
        with capture_logs() as logs:
            await clock.advance(2)
        assert [("no such luck" in log["error"], log["lease"]) for log in logs] == [(True, "ours/job")]
        await clock.advance(60)
        assert a.leading


async def test_one_that_hangs_from_the_start_does_not_lead(server: FakeApiServer, clock: FakeClock) -> None:
    a = Replica(server, clock, "a")
    a.hang = True
    with capture_logs() as logs:
        async with taking_part(a):
            await clock.advance(6)
            assert [log["error"] for log in logs] == ["the API server did not answer within 5 s"]
            assert logs[0]["event"] == "cannot take part in leader election yet"
            assert a.history == []


async def test_its_own_lease_is_taken_up_again(server: FakeApiServer, clock: FakeClock) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 7, "acquireTime": "then"}
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    a = Replica(server, clock, "a")
    async with taking_part(a):
        assert (lease(server)["leaseTransitions"], lease(server)["acquireTime"]) == (7, "then")
    assert a.history == ["leads after none"]


@pytest.mark.parametrize(("which", "slept"), [(min, 2.0), (max, 2.4)])
async def test_followers_ask_at_times_of_their_own(
    server: FakeApiServer, clock: FakeClock, which: Callable[[float, float], float], slept: float
) -> None:
    spec = {"holderIdentity": "x"}
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    async with taking_part(Replica(server, clock, "a", rng=Jitter(which))):
        await clock.advance(5)
        assert clock.slept == [slept] * 3


@pytest.mark.parametrize("duration", [16.0, 0.5])
async def test_the_whole_duration_is_enough(server: FakeApiServer, clock: FakeClock, duration: float) -> None:
    spec = {"holderIdentity": "x"}
    server.put(LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    times = LeaseTimes(duration=duration, renew_deadline=duration / 2, retry_period=duration / 8)
    a = Replica(server, clock, "a", times=times, rng=Jitter(min))
    async with taking_part(a):
        await clock.advance(duration * 7 / 8)
        assert not a.leading
        await clock.advance(duration / 8)
        assert a.leading
        assert lease(server)["leaseDurationSeconds"] == (16 if duration == 16 else 1), "whole seconds, no fewer"


async def test_leadership_is_over_at_the_deadline(server: FakeApiServer, clock: FakeClock) -> None:
    a, b = Replica(server, clock, "a"), Replica(server, clock, "b")
    async with taking_part(a, b):
        clock.tick(9.5)
        a.election.check(WRITE)
        with pytest.raises(NotLeading, match=r"\(a does\)") as refused:
            b.election.check(WRITE)
        assert (refused.value.verb, refused.value.path) == ("POST", "/x")
        clock._monotonic += 0.5  # no task has run since
        assert not a.leading
        with pytest.raises(NotLeading):
            a.election.check(WRITE)


def test_times_that_are_not_safe_are_refused() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        LeaseTimes(duration=10, renew_deadline=10)
    with pytest.raises(ValueError, match="does not hold"):
        LeaseTimes(retry_period=10)
    with pytest.raises(ValueError, match="does not hold"):
        LeaseTimes(retry_period=0)
    assert LeaseTimes() == LeaseTimes(15, 10, 2)
    LeaseTimes(retry_period=0.5)
