"""Replicas whose clocks differ, that pause, die, are cut off or lose answers: never two leaders, and one soon after.

Time passes in steps; in each, every replica's own clock moves by its own rate. The ratio of the rates stays below
duration / renew_deadline, which is what the election needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import anyio
import structlog
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.clock import FakeClock, settle
from runtime.election import LeaseElection
from runtime.errors import ApiError
from runtime.exchange import CallNext, Request, Response
from runtime.resources import LEASES
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, thing

STEP = 0.5
which = st.integers(0, 2)


class Replica:
    """One process: its clock, its network, its election, and what it writes while it may."""

    def __init__(self, server: FakeApiServer, identity: str, rate: float, dead: set[str], rng: random.Random) -> None:
        self.identity, self.rate = identity, rate
        self.clock = FakeClock()
        self.paused = 0.0
        self.stopped = False
        self.trouble = ""
        self.election = LeaseElection(
            server.client(self.clock, interceptors=[self.network]),
            self.clock,
            name="job",
            namespace="ours",
            identity=identity,
            rng=rng,
            ended=dead.__contains__,
        )
        self.client = server.client(self.clock, before_write=self.election.check)
        self.task = asyncio.ensure_future(self.take_part())

    async def network(self, request: Request, call_next: CallNext) -> Response:
        if self.trouble == "hang":
            await anyio.sleep_forever()
        if self.trouble == "cut":
            return status(503, "ServiceUnavailable")
        answer = await call_next(request)
        if self.trouble == "deaf":
            return status(504, "Timeout")  # done, but nobody hears of it
        return answer

    async def take_part(self) -> None:
        while True:
            await self.election.acquire()
            await self.election.hold()

    async def kill(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class ElectionMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16), rates=st.lists(st.floats(0.85, 1.2), min_size=3, max_size=3))
    def start(self, seed: int, rates: list[float]) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self.runner = asyncio.Runner()
        self.server = FakeApiServer()
        self.server.put(LEASES, {"metadata": {"name": "job", "namespace": "ours"}})
        self.rng = random.Random(seed)
        self.dead: set[str] = set()
        self.born = 0
        self.rates = rates

        async def begin() -> list[Replica]:
            replicas = [self.new(rate) for rate in rates]
            await settle()
            return replicas

        self.replicas = self.runner.run(begin())

    def new(self, rate: float) -> Replica:
        self.born += 1
        return Replica(self.server, f"r{self.born}", rate, self.dead, self.rng)

    async def step(self) -> None:
        for replica in self.replicas:
            if replica.stopped:
                replica.paused += STEP * replica.rate
            else:
                await replica.clock.advance(STEP * replica.rate)
        self.check()

    def check(self) -> None:
        leading = [r.identity for r in self.replicas if r.election.leading and not r.stopped]
        assert len(leading) <= 1, leading

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 2, 9, 16]))
    def pass_time(self, seconds: float) -> None:
        async def go() -> None:
            for _ in range(int(seconds / STEP)):
                await self.step()

        self.runner.run(go())

    @rule(i=which, trouble=st.sampled_from(["", "", "cut", "hang", "deaf"]))
    def network(self, i: int, trouble: str) -> None:
        self.replicas[i].trouble = trouble

    @rule(i=which)
    def stop(self, i: int) -> None:
        self.replicas[i].stopped = True

    @rule(i=which)
    def resume(self, i: int) -> None:
        """What it does first after a pause is a write: it must not be sent if the lease ran out meanwhile."""
        replica = self.replicas[i]
        if not replica.stopped:
            return
        replica.stopped = False
        replica.clock.tick(replica.paused)
        replica.paused = 0.0
        self.check()
        self.write(i)

    @rule(i=which)
    def write(self, i: int) -> None:
        replica = self.replicas[i]
        if replica.stopped:
            return

        async def go() -> bool:
            before = len(self.server.requests)
            with contextlib.suppress(ApiError):
                await replica.client.create(THINGS, thing(f"t{self.server.version}"), "ns")
            return len(self.server.requests) > before

        may = replica.election.leading
        assert self.runner.run(go()) == may
        if may:
            others = [r for r in self.replicas if r is not replica and not r.stopped]
            assert not any(r.election.leading for r in others)

    @rule(i=which, known=st.booleans())
    def kill(self, i: int, known: bool) -> None:
        """Killed, and started again as somebody else; that it has ended is known to its neighbours only."""
        replica = self.replicas[i]
        self.runner.run(replica.kill())
        if known:
            self.dead.add(replica.identity)

        async def begin() -> Replica:
            made = self.new(replica.rate)
            await settle()
            return made

        self.replicas[i] = self.runner.run(begin())
        self.check()

    @rule(i=which)
    def release(self, i: int) -> None:
        replica = self.replicas[i]
        if not replica.stopped and not replica.trouble:
            self.runner.run(replica.election.release())
            self.kill(i, known=False)

    @rule()
    def delete_lease(self) -> None:
        if self.server.get(LEASES, "job", "ours"):
            self.server.remove(LEASES, "job", "ours")

    @rule(label=st.integers(0, 9))
    def touch_lease(self, label: int) -> None:
        lease = self.server.get(LEASES, "job", "ours")
        if lease:
            metadata = {"name": "job", "namespace": "ours", "labels": {"touched": str(label)}}
            self.server.put(LEASES, {"metadata": metadata, "spec": lease["spec"]})

    @invariant()
    def at_most_one(self) -> None:
        if hasattr(self, "replicas"):
            self.check()

    def teardown(self) -> None:
        if not hasattr(self, "replicas"):
            return

        async def end() -> None:
            """All troubles over: soon one leads, and it stays the one."""
            for replica in self.replicas:
                replica.trouble, replica.stopped = "", False
                replica.clock.tick(replica.paused)
                replica.paused = 0.0
            for _ in range(int(30 / STEP)):
                await self.step()
            (leader,) = [r for r in self.replicas if r.election.leading]
            lease: Any = self.server.get(LEASES, "job", "ours")
            assert lease["spec"]["holderIdentity"] == leader.identity
            for _ in range(int(30 / STEP)):
                await self.step()
                assert leader.election.leading
            for replica in self.replicas:
                await replica.kill()

        try:
            self.runner.run(end())
        finally:
            self.runner.close()


TestElection = ElectionMachine.TestCase
TestElection.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
