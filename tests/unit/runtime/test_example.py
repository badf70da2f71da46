"""The controller of docs/framework.md on the fake API server: what the guide says about it holds."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from docs.examples import budgets
from docs.examples.budgets import BUDGETS, DEPLOYMENTS, add_to
from runtime.clock import FakeClock, settle
from runtime.manager import Manager
from runtime.resources import EVENTS
from tests.unit.fakes.apiserver import FakeApiServer, status

pytestmark = pytest.mark.anyio

SELECTOR = {"matchLabels": {"app": "web"}}


def deployment(replicas: int = 3) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"replicas": replicas, "selector": SELECTOR},
    }


@asynccontextmanager
async def running(server: FakeApiServer, clock: FakeClock) -> AsyncIterator[None]:
    manager = Manager(clock)
    add_to(server.client(clock), clock, manager)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: manager.run(handle_signals=False))
        await settle()
        yield
        manager.stop("the test is over")


def budget(server: FakeApiServer) -> dict[str, Any] | None:
    return server.get(BUDGETS, "web", "ns")


def reasons(server: FakeApiServer) -> list[str]:
    return [event["reason"] for event in server.objects.get(EVENTS.path(), {}).values()]


def writes(server: FakeApiServer) -> list[str]:
    return [request.verb for request in server.requests if request.verb != "GET" and "/events" not in request.path]


def test_it_has_sixty_lines_at_most() -> None:
    assert len(Path(budgets.__file__).read_text().splitlines()) <= 60


def test_the_guide_links_to_what_is_there() -> None:
    guide = Path(budgets.__file__).parents[1] / "framework.md"
    links = re.findall(r"\]\(([^)#]+)", guide.read_text())
    assert links
    assert [link for link in links if not (guide.parent / link).exists()] == []


async def test_it_is_made_once_and_owned(server: FakeApiServer, clock: FakeClock) -> None:
    made = server.put(DEPLOYMENTS, deployment())
    async with running(server, clock):
        found = budget(server)
        assert found is not None
        assert found["spec"] == {"maxUnavailable": 1, "selector": SELECTOR}
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Deployment", made["metadata"]["uid"], True)
        assert reasons(server) == ["BudgetCreated"]
        server.put(BUDGETS, {**found, "status": {"disruptionsAllowed": 1}})
        await clock.advance(600)
    async with running(server, clock):
        await clock.advance(600)
    assert writes(server) == ["POST"], "what is as it should be is not written, after a restart neither"


async def test_it_is_repaired_and_made_again(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(DEPLOYMENTS, deployment())
    async with running(server, clock):
        found = copy.deepcopy(budget(server))
        assert found is not None
        server.put(BUDGETS, {**found, "spec": {**found["spec"], "maxUnavailable": 2}})
        await settle()
        assert (budget(server) or {})["spec"] == found["spec"]
        server.remove(BUDGETS, "web", "ns")
        await settle()
        assert (budget(server) or {})["spec"] == found["spec"]
    assert reasons(server) == ["BudgetCreated", "BudgetRepaired"]
    created = next(e for e in server.objects[EVENTS.path()].values() if e["reason"] == "BudgetCreated")
    assert created["series"]["count"] == 2, "the same thing said again is counted"


async def test_it_follows_what_is_not_what_happened(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(DEPLOYMENTS, deployment(1))
    async with running(server, clock):
        assert budget(server) is None
        server.put(DEPLOYMENTS, deployment(2))
        await settle()
        assert budget(server)
        # Nobody listens while these three happen: one list later only what is counts.
        server.end_watches()
        server.put(DEPLOYMENTS, deployment(5))
        server.put(DEPLOYMENTS, deployment(1))
        server.compact()
        await clock.advance(60)
        assert budget(server) is None


async def test_a_strangers_is_left_alone(server: FakeApiServer, clock: FakeClock) -> None:
    theirs = server.put(BUDGETS, {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"minAvailable": 1}})
    server.put(DEPLOYMENTS, deployment())
    async with running(server, clock):
        server.put(DEPLOYMENTS, deployment(1))
        await clock.advance(60)
    assert budget(server) == theirs
    assert writes(server) == []


async def test_a_refusal_is_tried_again(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail(status(403, "Forbidden", "exceeded quota"), verb="POST", path="poddisruptionbudgets", times=3)
    server.put(DEPLOYMENTS, deployment())
    async with running(server, clock):
        await clock.advance(1)
        assert budget(server)
    assert writes(server) == ["POST"] * 4


async def test_a_lost_answer_is_read_back(server: FakeApiServer, clock: FakeClock) -> None:
    server.fail("reset", verb="POST", path="poddisruptionbudgets", after=True)
    server.put(DEPLOYMENTS, deployment())
    async with running(server, clock):
        await clock.advance(1)
    assert budget(server)
    assert writes(server) == ["POST"]
