"""Any mix of writes, drops, expiries, duplicates and silences: the store ends as the server is, and never goes back.

What handlers are told is what the server had, in its order; no watch asks for a version that is known to have expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from typing import Any

import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.clock import FakeClock, settle
from runtime.exchange import Request
from runtime.objects import key_of
from runtime.store import EventType
from tests.unit.fakes.apiserver import FakeApiServer, Response, status

from .things import THINGS, Thing, content, make, thing, truth

names = st.sampled_from(["a", "b", "c", "d"])
colors = st.sampled_from(["red", "green", "blue", ""])
failures: st.SearchStrategy[Response | str] = st.sampled_from(
    [
        "refuse",
        "reset",
        status(503, "ServiceUnavailable"),
        status(429, "TooManyRequests", retryAfterSeconds=3),
        status(410, "Expired"),
        status(403, "Forbidden"),
    ]
)


State = tuple[str, str]  # uid, color


class Server(FakeApiServer):
    """Remembers what it had, and which versions it called expired."""

    def __init__(self) -> None:
        super().__init__()
        self.had: dict[tuple[str, str], dict[int, State]] = {}
        self.expired: set[str] = set()

    def _publish(self, collection: str, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        meta = obj["metadata"]
        states = self.had.setdefault((meta["namespace"], meta["name"]), {})
        states[int(meta["resourceVersion"])] = (meta["uid"], obj["spec"]["color"])
        super()._publish(collection, kind, obj, old)

    async def handle(self, request: Request) -> Any:
        params = request.params or {}
        version = params.get("resourceVersion", "")
        assert "watch" not in params or version not in self.expired, "known to be expired"
        answer = await super().handle(request)
        if "watch" in params:
            expired = isinstance(answer, Response) and answer.status == 410
            told = isinstance(answer, Response) and answer.chunks is not None and int(version) < self.compacted
            if expired or told:
                self.expired.add(version)
        elif isinstance(answer, Response) and answer.status == 200:
            self.expired.discard(json.loads(answer.body)["metadata"]["resourceVersion"])
        return answer


class InformerMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16), page=st.integers(1, 3))
    def start(self, seed: int, page: int) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.server = Server()
        self.mirror: dict[tuple[str, str], Thing] = {}
        self.refreshes: list[asyncio.Task[None]] = []
        self.highest: dict[tuple[str, str], int] = {}

        async def begin() -> asyncio.Task[Any]:
            self.informer = make(self.server, self.clock, rng=random.Random(seed), page_size=page)
            self.informer.store.add_index("color", lambda o: [o.spec.color] if o.spec.color else [])
            self.informer.add_handler(self.handle)
            task = asyncio.ensure_future(self.informer.run())
            await settle()
            return task

        self.task = self.runner.run(begin())

    def handle(self, event: EventType, old: Thing | None, new: Thing | None) -> None:
        obj = new or old
        assert obj is not None
        key = key_of(obj)
        if event == "add":
            assert key not in self.mirror
            assert new is not None
            self.mirror[key] = new
        elif event == "update":
            assert old is self.mirror[key]
            assert new is not None
            assert new.metadata.uid == old.metadata.uid, "one uid a life"
            self.mirror[key] = new
        else:
            assert old is self.mirror.pop(key), "each deletion once, with the object that was known"
            assert new is None or new.metadata.uid == old.metadata.uid, "nobody else's last state"
        if event != "delete":
            assert new is not None
            version = int(new.metadata.resource_version)
            assert version > self.highest.get(key, 0), "never back"
            assert self.server.had[key][version] == (new.metadata.uid, new.spec.color), "what the server had"
            self.highest[key] = version

    def let_run(self) -> None:
        self.runner.run(settle())

    @rule(name=names, color=colors, wait=st.booleans())
    def put(self, name: str, color: str, wait: bool) -> None:
        self.server.put(THINGS, thing(name, color=color))
        if wait:
            self.let_run()

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.server.get(THINGS, name, "ns"):
            self.server.remove(THINGS, name, "ns")

    @rule(name=names, color=colors)
    def recreate(self, name: str, color: str) -> None:
        self.remove(name)
        self.server.put(THINGS, thing(name, color=color))

    @rule()
    def refresh(self) -> None:
        async def ask() -> None:
            asked = self.server.version
            await self.informer.refresh()
            version = self.informer._reflector._version
            assert version is not None
            assert int(version) >= asked, "read after it was asked for"

        async def start() -> None:
            self.refreshes.append(asyncio.ensure_future(ask()))

        self.runner.run(start())

    @rule(how=st.sampled_from(["closed", "reset"]))
    def disconnect(self, how: Any) -> None:
        self.server.end_watches(how)

    @rule(how=st.sampled_from(["status", "event"]))
    def compact(self, how: Any) -> None:
        self.server.gone_as = how
        self.server.compact()

    @rule()
    def bookmark(self) -> None:
        self.server.bookmark()

    @rule(back=st.integers(1, 3))
    def duplicate(self, back: int) -> None:
        for _, collection, kind, obj, old in self.server.history[-back:]:
            for watch in self.server.watches:
                if kind != "DELETED":
                    self.server._offer(watch, collection, kind, obj, old)

    @rule(outcome=failures, watch=st.booleans(), times=st.integers(1, 3))
    def fail(self, outcome: Any, watch: bool, times: int) -> None:
        self.server.fail(outcome, watch=watch, times=times)

    @rule(line=st.sampled_from([b"{]\n", b'{"type":"NEW","object":{"metadata":{}}}\n']))
    def garble(self, line: bytes) -> None:
        self.server.send_raw(line)

    @rule()
    def stall(self) -> None:
        for watch in self.server.watches:
            watch.stalled = True

    @rule(seconds=st.sampled_from([0.1, 1, 10, 80]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "informer"):
            return
        store = self.informer.store
        assert self.informer.handler_errors == 0, "the assertions of the handler above"
        assert {key_of(o): o for o in store} == self.mirror, "handlers know what the store has"
        assert set(store.keys()) == set(self.mirror)
        assert all(store.get_key(key) is obj and key in store for key, obj in self.mirror.items())
        assert set(store.index_keys("color")) == {o.spec.color for o in store if o.spec.color}
        for color in ("red", "green", "blue"):
            assert {key_of(o) for o in store.by_index("color", color)} == {
                key_of(o) for o in store if o.spec.color == color
            }
        assert not self.task.done()

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.server.faults.clear()
        for watch in self.server.watches:
            watch.stalled = False
            watch.wake()
        # At worst: a dead connection is noticed, then it backs off twice at the cap.
        self.runner.run(self.clock.advance(75 + 2 * 30 + 1))
        try:
            self.consistent()
            assert content(self.informer) == truth(self.server)
            assert self.informer.synced.is_set()
            assert all(task.done() and task.result() is None for task in self.refreshes)
        finally:
            for task in (self.task, *self.refreshes):
                task.cancel()

            async def end() -> None:
                with contextlib.suppress(asyncio.CancelledError):
                    await self.task

            self.runner.run(end())
            self.runner.close()
            structlog.reset_defaults()


TestInformerMachine = InformerMachine.TestCase
TestInformerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
