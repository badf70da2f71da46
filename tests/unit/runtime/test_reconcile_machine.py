"""Events doubled, reordered or lost, requests that fail before or after they are carried out, restarts, strangers.

After a last resync the cluster is what the specs ask for, whatever came before; and once it is, nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import msgspec
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.clock import FakeClock, settle
from runtime.controller import Controller, Result
from runtime.errors import Conflict, NotFound
from runtime.informer import Informer
from runtime.objects import key_of
from runtime.resources import Resource
from runtime.workqueue import RateLimitingQueue
from runtime.writes import Created, Exists, Foreign, Terminating, apply_condition, create_owned
from tests.unit.fakes.apiserver import FakeApiServer, status

from .things import THINGS, Spec, thing

PARTS = Resource("test.dev", "v1", "parts", "Part")
Key = tuple[str, str]


class Owner(msgspec.Struct, frozen=True, gc=False):
    name: str
    uid: str
    kind: str
    controller: bool = False


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: tuple[Owner, ...] = ()


class Status(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[dict[str, Any], ...] = ()


class Object(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def owner(self) -> Owner | None:
        return next((o for o in self.metadata.owner_references if o.controller and o.kind == "Thing"), None)


names = st.sampled_from(["a", "b", "c"])
sizes = st.integers(0, 2)
parts = st.tuples(names, st.integers(0, 1)).map(lambda pair: f"{pair[0]}-{pair[1]}")
colors = st.sampled_from(["red", "green"])
failures: st.SearchStrategy[Any] = st.sampled_from(
    [
        "refuse",
        "reset",
        status(503, "ServiceUnavailable"),
        status(500, "InternalError"),
        status(429, "TooManyRequests", retryAfterSeconds=3),
        status(403, "Forbidden"),
        status(409, "AlreadyExists"),
        status(409, "Conflict"),
    ]
)


def part(name: str, owner: Owner, color: str) -> dict[str, Any]:
    obj = {**thing(name, color=color), "kind": "Part"}
    obj["metadata"]["ownerReferences"] = [{"apiVersion": "test.dev/v1", **msgspec.to_builtins(owner)}]
    return obj


class Process:
    """One life of a controller that makes ``size`` parts of each thing, in its color."""

    def __init__(self, server: FakeApiServer, clock: FakeClock, seed: int) -> None:
        self.client = server.client(clock)
        self.deaf = False
        self.wrong: list[AssertionError] = []
        rng = random.Random(seed)
        self.things = Informer(self.client, THINGS, Object, clock=clock, rng=rng)
        self.parts = Informer(self.client, PARTS, Object, clock=clock, rng=rng)
        self.parts.store.add_index("owner", lambda o: [(o.metadata.namespace, o.owner.name)] if o.owner else [])
        self.queue: RateLimitingQueue[Key] = RateLimitingQueue(clock, base=0.1, cap=10)
        self.controller = Controller("test", self.checked, self.queue, clock=clock, workers=2, timeout=20)
        heard = {"predicate": lambda *_: not self.deaf}
        self.controller.enqueue_on(self.things, **heard)  # type: ignore[arg-type]
        self.controller.enqueue_on(
            self.parts,
            lambda o: (o.metadata.namespace, o.owner.name) if o.owner else None,
            **heard,  # type: ignore[arg-type]
        )
        self.tasks = [asyncio.ensure_future(run()) for run in (self.things.run, self.parts.run, self.controller.run)]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def checked(self, key: Key) -> Result | None:
        try:
            return await self.reconcile(key)
        except AssertionError as error:  # to the controller it is a failure like any other
            self.wrong.append(error)
            raise

    async def reconcile(self, key: Key) -> Result | None:
        namespace, name = key
        if not (self.things.synced.is_set() and self.parts.synced.is_set()):
            return Result(requeue_after=1)
        owner = self.things.store.get_key(key)
        wanted = {f"{name}-{n}" for n in range(owner.spec.size)} if owner else set()
        waits = False
        for old in self.parts.store.by_index("owner", key):
            ours = owner is not None and old.owner is not None and old.owner.uid == owner.metadata.uid
            if not (owner and ours and old.metadata.name in wanted and old.spec.color == owner.spec.color):
                with contextlib.suppress(NotFound, Conflict):
                    await self.client.delete(PARTS, old.metadata.name, namespace, uid=old.metadata.uid)
                waits = True
        if owner is None:
            return Result(requeue_after=5) if waits else None
        for child in sorted(wanted):
            held = self.parts.store.get(namespace, child)
            if held is not None and held.owner is not None and held.owner.uid == owner.metadata.uid:
                continue
            reference = Owner(name, owner.metadata.uid, "Thing", controller=True)
            body = part(child, reference, owner.spec.color)
            outcome = await create_owned(self.client, PARTS, body, owner_uid=owner.metadata.uid, namespace=namespace)
            uid = outcome.obj["metadata"]["ownerReferences"][0]["uid"]
            match outcome:
                case Created() | Exists():
                    assert uid == owner.metadata.uid
                case Foreign():
                    assert uid != owner.metadata.uid
                    waits = True
                case Terminating(ours=ours):
                    assert ours is (uid == owner.metadata.uid)
                    assert outcome.obj["metadata"]["deletionTimestamp"]
                    waits = True
        await self.tell(owner, waits)
        return Result(requeue_after=5) if waits else None

    async def tell(self, owner: Object, waits: bool) -> None:
        condition = {"type": "Ready", "status": str(not waits), "reason": owner.spec.color}
        await apply_condition(
            self.client,
            THINGS,
            owner.metadata.name,
            owner.metadata.namespace,
            condition,
            "test-ready",
            current=next(iter(owner.status.conditions), None),
            uid=owner.metadata.uid,
        )


class ReconcileMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16))
    def start(self, seed: int) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.server = FakeApiServer()
        self.seed = seed
        self.strangers: dict[str, dict[str, Any]] = {}
        self.process: Process
        self.runner.run(self.begin())

    async def begin(self) -> None:
        self.process = Process(self.server, self.clock, self.seed)
        await settle()

    @rule(name=names, size=sizes, color=colors)
    def put(self, name: str, size: int, color: str) -> None:
        old = self.server.get(THINGS, name, "ns") or thing(name)
        self.server.put(THINGS, {**old, "spec": {"size": size, "color": color}})

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.server.get(THINGS, name, "ns"):
            self.server.remove(THINGS, name, "ns")

    @rule(name=names, size=sizes)
    def recreate(self, name: str, size: int) -> None:
        self.remove(name)
        self.server.put(THINGS, thing(name, size=size, color="red"))

    @rule(name=parts)
    def lose(self, name: str) -> None:
        if self.server.get(PARTS, name, "ns"):
            self.server.remove(PARTS, name, "ns")
            self.strangers.pop(name, None)

    @rule(name=parts)
    def let_a_stranger_in(self, name: str) -> None:
        if not self.server.get(PARTS, name, "ns"):
            stranger = Owner(name[0], "stranger", "Stranger", controller=True)
            self.strangers[name] = self.server.put(PARTS, part(name, stranger, "black"))

    @rule(name=parts)
    def hold(self, name: str) -> None:
        """Its deletion takes until the finalizer is gone."""
        obj = self.server.get(PARTS, name, "ns")
        if obj:
            obj = {**obj, "metadata": {**obj["metadata"], "finalizers": ["x/y"]}}
            obj["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:01Z"
            held = self.server.put(PARTS, obj)
            if name in self.strangers:
                self.strangers[name] = held

    @rule()
    def let_go(self) -> None:
        for obj in list(self.server.objects.get(PARTS.path(), {}).values()):
            if obj["metadata"].get("finalizers"):
                self.server.remove(PARTS, obj["metadata"]["name"], "ns")
                self.strangers.pop(obj["metadata"]["name"], None)

    @rule(outcome=failures, verb=st.sampled_from(["POST", "PATCH", "DELETE", "GET", None]), after=st.booleans())
    def fail(self, outcome: Any, verb: str | None, after: bool) -> None:
        if after and (verb == "GET" or outcome == "refuse" or (outcome != "reset" and outcome.status < 500)):
            after = False  # refused is not carried out
        if outcome != "reset" and outcome != "refuse" and outcome.status == 409 and verb != "POST":
            return
        self.server.fail(outcome, verb=verb, after=after)

    @rule(how=st.sampled_from(["closed", "reset"]), compact=st.booleans())
    def disconnect(self, how: Any, compact: bool) -> None:
        self.server.end_watches(how)
        if compact:
            self.server.compact()

    @rule(deaf=st.booleans())
    def lose_events(self, deaf: bool) -> None:
        self.process.deaf = deaf

    @rule(keys=st.lists(names, max_size=6))
    def double_events(self, keys: list[str]) -> None:
        for key in keys:
            self.process.queue.add(("ns", key))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.process.stop())
        self.runner.run(self.begin())

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @invariant()
    def alive(self) -> None:
        if hasattr(self, "process"):
            assert not any(task.done() for task in self.process.tasks)
            assert self.process.wrong == []

    def teardown(self) -> None:
        if not hasattr(self, "process"):
            return
        try:
            self.end()
        finally:
            self.runner.run(self.process.stop())
            self.runner.close()
            structlog.reset_defaults()

    def end(self) -> None:
        self.server.faults.clear()
        self.let_go()
        for name, stranger in self.strangers.items():
            assert self.server.get(PARTS, name, "ns") is stranger, "left alone"
            self.server.remove(PARTS, name, "ns")
        self.runner.run(self.clock.advance(80 + 2 * 30))  # the informers have caught up
        self.resync()
        self.runner.run(self.clock.advance(60))
        self.alive()
        self.settled()
        writes = len([request for request in self.server.requests if request.verb != "GET"])
        self.resync()
        self.runner.run(self.clock.advance(60))
        assert len([request for request in self.server.requests if request.verb != "GET"]) == writes, "nothing to do"
        assert self.process.controller.statistics.timeouts == 0

    def resync(self) -> None:
        for name in ("a", "b", "c"):
            self.process.queue.add(("ns", name))

    def settled(self) -> None:
        things = self.server.objects.get(THINGS.path(), {})
        wanted = {
            f"{name}-{n}": (obj["metadata"]["uid"], obj["spec"]["color"])
            for (_, name), obj in things.items()
            for n in range(obj["spec"].get("size", 0))
        }
        found = {
            obj["metadata"]["name"]: (obj["metadata"]["ownerReferences"][0]["uid"], obj["spec"]["color"])
            for obj in self.server.objects.get(PARTS.path(), {}).values()
        }
        assert found == wanted
        for obj in things.values():
            [condition] = obj["status"]["conditions"]
            assert (condition["status"], condition["reason"]) == ("True", obj["spec"]["color"])
        for informer in (self.process.things, self.process.parts):
            truth = self.server.objects.get(informer.resource.path(), {})
            assert {key_of(o): o.metadata.resource_version for o in informer.store} == {
                key: obj["metadata"]["resourceVersion"] for key, obj in truth.items()
            }


TestReconcileMachine = ReconcileMachine.TestCase
TestReconcileMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
