"""A made-up kind and the small helpers that tests of the framework share."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec

from runtime.clock import FakeClock, settle
from runtime.informer import Informer
from runtime.objects import key_of
from runtime.resources import Resource
from runtime.store import EventType
from tests.unit.fakes.apiserver import FakeApiServer

THINGS = Resource("test.dev", "v1", "things", "Thing")


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}


class Spec(msgspec.Struct, frozen=True, gc=False):
    color: str = ""
    size: int = 0


class Thing(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta
    spec: Spec = Spec()


def thing(name: str, namespace: str = "ns", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "test.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def local(name: str, *, uid: str = "u", rv: int = 1, **spec: Any) -> Thing:
    return Thing(Meta(name, "ns", uid, str(rv)), Spec(**spec))


class Highest(random.Random):
    """No luck with jitter."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Recorder:
    """What handlers were told."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, Thing | None, Thing | None]] = []

    def __call__(self, event: EventType, old: Thing | None, new: Thing | None) -> None:
        self.events.append((event, old, new))

    @property
    def summary(self) -> list[str]:
        return [f"{event} {(new or old).metadata.name}" for event, old, new in self.events]  # type: ignore[union-attr]


@asynccontextmanager
async def running(*fns: Callable[[], Awaitable[Any]]) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run until the block ends; entered once all of them wait for something."""
    async with anyio.create_task_group() as group:
        for fn in fns:
            group.start_soon(fn)
        await settle()
        yield group
        group.cancel_scope.cancel()


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for an effect that crosses a real socket."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await anyio.sleep(0.001)


def make(server: FakeApiServer, clock: FakeClock, **options: Any) -> Informer[Thing]:
    return Informer(server.client(clock), THINGS, Thing, clock=clock, **options)


def content(informer: Informer[Thing]) -> dict[tuple[str, str], tuple[str, str]]:
    return {key_of(o): (o.metadata.uid, o.metadata.resource_version) for o in informer.store}


def truth(server: FakeApiServer) -> dict[tuple[str, str], tuple[str, str]]:
    objects = server.objects.get(THINGS.path(), {})
    return {k: (o["metadata"]["uid"], o["metadata"]["resourceVersion"]) for k, o in objects.items()}


async def cancelled_by_somebody() -> None:
    """Await what another has cancelled."""
    task = asyncio.ensure_future(anyio.sleep_forever())
    task.cancel()
    await task
