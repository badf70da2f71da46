"""How much the framework carries, beside kr8s as shipped: watch events and binds per CPU-second of the client.

    python -m bench.throughput [--runs 3] [--quick]

Each figure is a process of its own, the two sides alternate, and the server is a third process (:mod:`bench.stub`). CPU
is what the kernel counts for the client process alone (user and system), between the first and the last measured event:
it is what holds on a busy machine, wall time does not. Tables on the terminal, all raw figures in ``bench/out/``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE / "out"
CONCURRENCY = 50
#: Seconds after which one client process is ended.
LIMIT = 90

#: What is measured: client -> (warm-up, measured). kr8s is slow, so it gets less; rates do not depend on it.
SIZES = {
    "watch-ours": (4_000, 60_000),
    "watch-kr8s": (100, 1_000),
    "bind-ours": (500, 10_000),
    "bind-kr8s": (100, 1_000),
}

Figures = dict[str, float]


class Meter:
    """Counts what happened after a warm-up, and stops the client when enough has."""

    def __init__(self, warm_up: int, measured: int) -> None:
        self.left = warm_up
        self._measured = measured
        self._started: tuple[float, float, float] | None = None
        self.figures: Figures = {}
        self.done = asyncio.Event()

    def count(self) -> None:
        self.left -= 1
        if self.left > 0 or self.done.is_set():
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = (time.perf_counter(), usage.ru_utime, usage.ru_stime)
        if self._started is None:
            self._started, self.left = now, self._measured
            return
        wall, user, system = (end - start for end, start in zip(now, self._started, strict=True))
        self.figures = {
            "count": self._measured,
            "wall": wall,
            "user": user,
            "system": system,
            "per_second": self._measured / wall,
            "per_cpu_second": self._measured / (user + system),
            "peak_mib": usage.ru_maxrss / 1024,
        }
        self.done.set()


# -- the clients: each runs in a process of its own ------------------------------------------------------------------


async def watch_ours(kubeconfig: Path, meter: Meter) -> None:
    """All of the way of an event: transport, lines, decode to api.wire.Pod, reflector, store, one handler."""
    from api.wire import Pod
    from runtime.client import Client
    from runtime.clock import SystemClock
    from runtime.informer import Informer
    from runtime.kr8s_seam import connect
    from runtime.memory import tune_gc
    from runtime.resources import PODS

    tune_gc()  # as every process on the framework does
    clock = SystemClock()
    api = await connect(kubeconfig, user_agent="bench")
    informer = Informer(Client(api, clock=clock), PODS, Pod, clock=clock)
    informer.add_handler(lambda _event, _old, _new: meter.count())
    running = asyncio.create_task(informer.run())
    await meter.done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await api.aclose()


async def watch_kr8s(kubeconfig: Path, meter: Meter) -> None:
    """kr8s's own watch; its objects are dropped at once, which is the best case for it."""
    import kr8s.asyncio
    from kr8s.asyncio.objects import Pod

    api = await kr8s.asyncio.api(kubeconfig=str(kubeconfig))
    async with aclosing(api.async_watch(Pod, namespace=kr8s.ALL)) as events:  # type: ignore[arg-type]
        async for _event, _pod in events:
            meter.count()
            if meter.done.is_set():
                break


async def bind_ours(kubeconfig: Path, meter: Meter) -> None:
    from runtime.client import Client
    from runtime.clock import SystemClock
    from runtime.kr8s_seam import connect
    from runtime.memory import tune_gc

    tune_gc()
    api = await connect(kubeconfig, user_agent="bench")
    client = Client(api, clock=SystemClock())

    async def bind(number: int) -> None:
        await client.bind("team-1", f"train-{number}", "00000000-1d2f-4a7e-8b0c-2f6a9c3d4e5f", f"node-{number % 500}")

    await _workers(bind, meter)
    await api.aclose()


async def bind_kr8s(kubeconfig: Path, meter: Meter) -> None:
    import kr8s.asyncio

    api = await kr8s.asyncio.api(kubeconfig=str(kubeconfig))

    async def bind(number: int) -> None:
        name = f"train-{number}"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "team-1", "uid": "00000000-1d2f-4a7e-8b0c-2f6a9c3d4e5f"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % 500}"},
        }
        url = f"pods/{name}/binding"
        async with api.call_api("POST", version="v1", namespace="team-1", url=url, content=json.dumps(body)) as answer:
            assert answer.status_code == 201

    await _workers(bind, meter)


async def _workers(bind: Callable[[int], Awaitable[None]], meter: Meter) -> None:
    numbers = itertools.count()

    async def work() -> None:
        while not meter.done.is_set():
            await bind(next(numbers))
            meter.count()

    await asyncio.gather(*[work() for _ in range(CONCURRENCY)])


CLIENTS: dict[str, Callable[[Path, Meter], Awaitable[None]]] = {
    "watch-ours": watch_ours,
    "watch-kr8s": watch_kr8s,
    "bind-ours": bind_ours,
    "bind-kr8s": bind_kr8s,
}


def measure(name: str, kubeconfig: Path, scale: float) -> Figures:
    """Run one client on the event loop that its side uses."""
    warm_up, measured = (max(1, int(count * scale)) for count in SIZES[name])
    figures: Figures = {}

    async def client(_statistics: object = None) -> int:
        meter = Meter(warm_up, measured)
        await CLIENTS[name](kubeconfig, meter)
        figures.update(meter.figures)
        return 0

    if name.endswith("-ours"):
        from runtime import loop

        loop.run(client)
    else:
        asyncio.run(client())
    return figures | {"loop_ns": loop_ns()}


def loop_ns() -> float:
    """CPU nanoseconds of one turn of an empty loop: what a CPU-second was worth just then."""
    started = time.process_time()
    for _ in range(1_000_000):
        pass
    return (time.process_time() - started) * 1e3


# -- the conductor ----------------------------------------------------------------------------------------------------


@contextmanager
def stub_server() -> Iterator[dict[str, Any]]:
    argv = [sys.executable, "-m", "bench.stub"]
    with subprocess.Popen(argv, cwd=HERE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            facts: dict[str, Any] = json.loads(process.stdout.readline())
            yield facts
        finally:
            process.stdin.close()


def server_cpu(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats") as answer:
        return float(json.load(answer)["cpu"])


def run_client(name: str, kubeconfig: Path, port: int, scale: float) -> Figures:
    argv = [
        sys.executable,
        "-m",
        "bench.throughput",
        "--client",
        name,
        "--kubeconfig",
        str(kubeconfig),
        "--scale",
        str(scale),
    ]
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    before = server_cpu(port)
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    figures: Figures = json.loads(done.stdout)
    # From the client's start to its end, so more than the measured part: an upper bound.
    figures["server_share"] = (server_cpu(port) - before) / (figures["user"] + figures["system"])
    figures["load"] = os.getloadavg()[0]
    return figures


def write_kubeconfig(path: Path, port: int) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
        "clusters": [{"name": "stub", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        # A ServiceAccount's token has about 1 kB.
        "users": [{"name": "stub", "user": {"token": "x" * 1000}}],
    }
    path.write_text(json.dumps(body))


def conduct(runs: int, scale: float) -> None:
    from rich.console import Console

    console = Console()
    results: dict[str, list[Figures]] = {name: [] for name in CLIENTS}
    with stub_server() as facts, tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        write_kubeconfig(kubeconfig, facts["port"])
        for run in range(runs):
            for name in CLIENTS:  # sides alternate: what else the machine does hits both alike
                figures = run_client(name, kubeconfig, facts["port"], scale)
                results[name].append(figures)
                console.print(f"run {run + 1} of {runs}: {name} {figures['per_cpu_second']:,.0f} per CPU-second")
    report = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "event_bytes": {key: facts[key] for key in ("smallest", "mean", "largest")},
        "concurrency": CONCURRENCY,
        "results": results,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "throughput.json").write_text(json.dumps(report, indent=1) + "\n")
    show(console, report)


def show(console: Any, report: dict[str, Any]) -> None:
    from rich.table import Table

    size = report["event_bytes"]
    everything = [figures for runs in report["results"].values() for figures in runs]
    loads, loops = ([figures[key] for figures in everything] for key in ("load", "loop_ns"))
    title = (
        f"Python {report['python']}, {report['cores']} cores, load {min(loads):.1f} to {max(loads):.1f}, "
        f"one turn of an empty loop {min(loops):.0f} to {max(loops):.0f} ns; "
        f"events of {size['smallest']:,} to {size['largest']:,} bytes; {report['concurrency']} binds at once"
    )
    table = Table(title=title)
    for column in ("", "per CPU-second", "lowest", "highest", "µs CPU each", "per second", "peak MiB", "server's CPU"):
        table.add_column(column, justify="right" if column else "left")
    for name, runs in report["results"].items():
        rates = [figures["per_cpu_second"] for figures in runs]
        middle = statistics.median(rates)
        table.add_row(
            name,
            f"{middle:,.0f}",
            f"{min(rates):,.0f}",
            f"{max(rates):,.0f}",
            f"{1e6 / middle:,.1f}",
            f"{statistics.median(figures['per_second'] for figures in runs):,.0f}",
            f"{max(figures['peak_mib'] for figures in runs):,.0f}",
            f"{statistics.median(figures['server_share'] for figures in runs):.0%}",
        )
    console.print(table)
    for what in ("watch", "bind"):
        ours, theirs = (
            statistics.median(figures["per_cpu_second"] for figures in report["results"][f"{what}-{side}"])
            for side in ("ours", "kr8s")
        )
        console.print(f"{what}: {ours / theirs:,.1f} times kr8s")
    console.print(f"raw figures: {(OUT / 'throughput.json').relative_to(HERE.parent)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of the framework, beside kr8s as shipped.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events: to see that it works")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(measure(options.client, options.kubeconfig, options.scale)))
    else:
        conduct(options.runs, 0.1 if options.quick else options.scale)


if __name__ == "__main__":
    main()
