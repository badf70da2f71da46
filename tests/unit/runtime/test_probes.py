"""What a process answers over HTTP, and what it says of itself there."""

from __future__ import annotations

import socket
import time
from typing import NoReturn

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime import loop
from runtime.clock import FakeClock, settle
from runtime.controller import Controller, Result
from runtime.errors import ConfigError
from runtime.exchange import RequestStatistics
from runtime.loop import LoopStatistics
from runtime.manager import Manager
from runtime.metrics import ProcessCollector
from runtime.probes import Probes
from runtime.workqueue import RateLimitingQueue
from tests.unit.fakes.apiserver import FakeApiServer

from .things import THINGS, make, thing

pytestmark = pytest.mark.anyio


def collector(requests: RequestStatistics | None = None, statistics: LoopStatistics | None = None) -> ProcessCollector:
    return ProcessCollector("test", requests or RequestStatistics(), statistics or LoopStatistics())


async def test_ready_is_ready_and_live_is_live(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a"))
    made = collector()
    probes = Probes(made)
    await probes.listen("127.0.0.1", 0)
    async with anyio.create_task_group() as group, httpx.AsyncClient() as http:
        group.start_soon(probes.serve)

        async def ask(path: str) -> tuple[int, str]:
            answer = await http.get(f"http://127.0.0.1:{probes.port}{path}")
            return answer.status_code, answer.text

        assert await ask("/livez") == await ask("/healthz") == (200, "ok\n")
        assert await ask("/readyz") == (503, "waiting for a cluster that can be used\n")
        manager = made.manager = Manager(clock)
        manager.add_informer(make(server, clock))
        assert await ask("/readyz") == (503, "cache of things.test.dev is not complete\n")
        group.start_soon(lambda: manager.run(handle_signals=False))
        await settle()
        assert await ask("/readyz") == (200, "ok\n")
        assert await ask("/debug/caches") == (200, '{"things.test.dev":{"ns/a":"101"}}')
        manager.stop("test")
        code, text = await ask("/readyz")
        assert (code, text.splitlines()[0]) == (503, "stopping")
        assert (await ask("/nothing"))[0] == 404
        group.cancel_scope.cancel()
    with socket.socket() as free:
        free.bind(("127.0.0.1", probes.port))


async def test_an_address_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port} .*choose another"):
            await Probes(collector()).listen("127.0.0.1", port)


async def test_two_caches_of_one_resource_are_told_apart(server: FakeApiServer, clock: FakeClock) -> None:
    server.put(THINGS, thing("a", "one"))
    server.put(THINGS, thing("b", "two"))
    made = collector()
    manager = made.manager = Manager(clock)
    for namespace in ("one", "two"):
        manager.add_informer(make(server, clock, namespace=namespace))
    probes = Probes(made)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: manager.run(handle_signals=False))
        await settle()
        found = (await probes._caches(None)).body  # type: ignore[arg-type]
        metrics = (await probes._metrics(None)).body  # type: ignore[arg-type]
        manager.stop("test")
    assert found == b'{"things.test.dev":{"one/a":"101"},"things.test.dev#2":{"two/b":"102"}}'
    assert isinstance(metrics, bytes)
    assert b'phalanx_informer_objects{name="things.test.dev"} 1.0' in metrics
    assert b'phalanx_informer_objects{name="things.test.dev#2"} 1.0' in metrics


async def test_metrics(server: FakeApiServer, clock: FakeClock) -> None:
    requests, statistics = RequestStatistics(), LoopStatistics(stalls=2, longest=0.3)
    server.put(THINGS, thing("a"))
    client = server.client(clock, statistics=requests)
    made = collector(requests, statistics)
    manager = made.manager = Manager(clock)
    informer = make(server, clock)
    queue: RateLimitingQueue[str] = RateLimitingQueue(clock, name="q")

    async def reconcile(_key: str) -> Result | None:
        raise ValueError("always")

    controller = Controller("things", reconcile, queue, clock=clock)
    manager.add_informer(informer)
    manager.add_controller(controller)
    queue.add("k")
    probes = Probes(made)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: manager.run(handle_signals=False))
        await settle()
        await client.get(THINGS, "a", "ns")
        server.fail("refuse")
        with pytest.raises(Exception, match="no answer"):
            await client.get(THINGS, "a", "ns")
        body = (await probes._metrics(None)).body  # type: ignore[arg-type]
        manager.stop("test")
    assert isinstance(body, bytes)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    expected = {
        ("rest_client_requests_total", "200", "GET"): 1,
        ("rest_client_requests_total", "0", "GET"): 1,
        ("leader_election_master_status", "test"): 1,
        ("phalanx_informer_objects", "things.test.dev"): 1,
        ("phalanx_informer_synced", "things.test.dev"): 1,
        ("phalanx_informer_healthy", "things.test.dev"): 1,
        ("phalanx_informer_lists_total", "things.test.dev"): 1,
        ("workqueue_adds_total", "things"): 1,
        ("workqueue_retries_total", "things"): 1,
        ("controller_runtime_reconcile_total", "things"): 1,
        ("controller_runtime_reconcile_errors_total", "things"): 1,
        ("phalanx_event_loop_longest_turn_seconds",): 0.3,
        ("phalanx_event_loop_stalls_total",): 2,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["process_resident_memory_bytes",] > 0
    assert found["phalanx_tasks",] > 1
    assert statistics.longest < 0.3, "counted anew after each scrape"


def test_a_loop_that_stands_still_is_noticed() -> None:
    seen: list[LoopStatistics] = []

    async def main(statistics: LoopStatistics) -> int:
        seen.append(statistics)
        for _ in range(5):
            await anyio.sleep(0.001)
        assert statistics.stalls == 0
        time.sleep(2 * loop.STALL)  # noqa: ASYNC251 - the fault that is to be seen
        await anyio.sleep(0.001)
        assert statistics.stalls == 1
        assert statistics.take_longest() >= 2 * loop.STALL
        return 7

    assert loop.run(main) == 7
    assert seen[0].turns > 5
    assert seen[0].longest < 2 * loop.STALL


def test_what_main_raises_comes_through() -> None:
    async def main(_statistics: LoopStatistics) -> NoReturn:
        raise ConfigError("no file")

    with pytest.raises(ConfigError, match="no file"):
        loop.run(main)
