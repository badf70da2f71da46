"""What a process counts, for Prometheus: read when asked for, so that counting costs the work nothing.

Names are client-go's and controller-runtime's where those have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.exchange import RequestStatistics
from runtime.loop import STALL, LoopStatistics
from runtime.manager import Manager


class ProcessCollector(Collector):
    """The manager that runs now, the requests of the process, and its event loop."""

    def __init__(self, name: str, requests: RequestStatistics, loop: LoopStatistics) -> None:
        self._name = name
        self._requests = requests
        self._loop = loop
        self.manager: Manager | None = None

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        yield from self._collect_loop()
        requests = CounterMetricFamily(
            "rest_client_requests", "Requests to the API server; code 0: no answer.", labels=["method", "code"]
        )
        for (method, code), count in self._requests.by_code.items():
            requests.add_metric([method, str(code)], count)
        yield requests
        if self.manager is not None:
            yield _gauge(
                "leader_election_master_status", "1 while this replica leads.", {self._name: self.manager.leading}
            )
            yield from _informers(self.manager)
            yield from _controllers(self.manager)

    def _collect_loop(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "phalanx_event_loop_longest_turn_seconds",
            "Longest time that the event loop stood still since the last scrape.",
            self._loop.take_longest(),
        )
        yield CounterMetricFamily(
            "phalanx_event_loop_stalls", f"Turns of the event loop over {STALL:g} s.", self._loop.stalls
        )
        yield CounterMetricFamily("phalanx_event_loop_busy_seconds", "Time not spent waiting.", self._loop.busy)
        yield GaugeMetricFamily("phalanx_tasks", "Tasks on the event loop.", len(asyncio.all_tasks()))


def _informers(manager: Manager) -> Iterator[Metric]:
    found = {name: informer.statistics for name, informer in manager.caches.items()}
    yield _gauge("phalanx_informer_objects", "Objects in the cache.", {n: s.objects for n, s in found.items()})
    yield _gauge("phalanx_informer_synced", "1 once the cache is complete.", {n: s.synced for n, s in found.items()})
    yield _gauge("phalanx_informer_healthy", "1 while it is kept up.", {n: s.healthy for n, s in found.items()})
    for field, text in (
        ("lists", "Complete lists read."),
        ("watches", "Watches begun."),
        ("events", "Watch events taken in."),
        ("undecodable", "Objects that could not be read."),
        ("failures", "Lists and watches that failed."),
    ):
        values = {name: getattr(statistics.reflector, field) for name, statistics in found.items()}
        yield _counter(f"phalanx_informer_{field}", text, values)


def _controllers(manager: Manager) -> Iterator[Metric]:
    queues = {c.name: c.queue.statistics for c in manager.controllers}
    work = {c.name: c.statistics for c in manager.controllers}
    yield _gauge("workqueue_depth", "Keys that wait.", {n: s.depth for n, s in queues.items()})
    yield _counter("workqueue_adds", "Keys added.", {n: s.adds for n, s in queues.items()})
    yield _counter("workqueue_retries", "Keys added again after a failure.", {n: s.retries for n, s in queues.items()})
    yield _gauge(
        "workqueue_longest_running_processor_seconds",
        "Age of the oldest reconcile that runs.",
        {n: s.longest_processing for n, s in queues.items()},
    )
    yield _gauge(
        "phalanx_workqueue_oldest_wait_seconds",
        "How long the oldest key has waited.",
        {n: s.oldest_wait for n, s in queues.items()},
    )
    yield _counter("controller_runtime_reconcile", "Reconciles.", {n: s.reconciles for n, s in work.items()})
    yield _counter("controller_runtime_reconcile_errors", "Failed ones.", {n: s.errors for n, s in work.items()})
    yield _counter(
        "controller_runtime_terminal_reconcile_errors",
        "Given up until a change.",
        {n: s.terminal for n, s in work.items()},
    )
    yield _counter(
        "controller_runtime_reconcile_time_seconds", "Time in reconciles.", {n: s.seconds for n, s in work.items()}
    )


def _gauge(name: str, text: str, values: dict[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=["name"]), values.items())


def _counter(name: str, text: str, values: dict[str, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=["name"]), values.items())


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]
) -> GaugeMetricFamily | CounterMetricFamily:
    for name, value in values:
        family.add_metric([name], value)
    return family
