"""``phalanx demo``: the main job on a throwaway real control plane, told as it happens.

Every sentence it prints is checked against the API server; what does not happen ends it with a non-zero status
and what was missing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from api import conditions, names
from api.membership import named_group
from api.wire import Pod
from cli.demo_watch import NAMESPACE, MissingError, Moment, Watched
from cli.manifests import manifests
from cluster import Cluster, ClusterError, ClusterSpec, clusters, console_report, up
from runtime import telemetry
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.errors import ApiError, ConfigError, explain
from runtime.kr8s_seam import connect
from runtime.resources import EVENTS

console = Console(highlight=False)


def demo(*, keep: bool = False, nodes: int = 16) -> None:
    """Show all-or-nothing scheduling on a throwaway Kubernetes 1.37 control plane.

    The first start builds Kubernetes from its Go modules (minutes, with a progress bar); later ones take seconds.

    Parameters
    ----------
    keep
        Leave the cluster up at the end and print its KUBECONFIG.
    nodes
        How many fake nodes of 8 CPUs it begins with.
    """
    started = time.monotonic()
    spec = ClusterSpec(name=_free_name(), kubernetes="1.37", nodes=nodes, scheduler=True)
    console.rule("[bold]Phalanx: a Job's pods start together, or not at all")
    cluster: Cluster | None = None
    try:
        with console_report(console) as report, up(spec, report=report) as cluster:
            _say(f"Kubernetes {spec.kubernetes} control plane with {nodes} nodes", time.monotonic() - started)
            anyio.run(_Story(cluster, nodes).tell)
            if keep:
                cluster.detach()
            _what_next(cluster, keep=keep, seconds=time.monotonic() - started)
    except (MissingError, ClusterError, ConfigError) as error:
        console.print(f"\n[bold red]✗ the demo stopped:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        raise SystemExit(130) from None


def _free_name() -> str:
    """``demo``, or ``demo-2`` and so on while demos that were kept are still there."""
    taken = {cluster.name for cluster in clusters() if cluster.status != "dead"}
    candidates = ["demo", *(f"demo-{n}" for n in range(2, 100))]
    return next(name for name in candidates if name not in taken)


def _say(what: str, seconds: float | None = None) -> None:
    took = f"  [dim]{seconds:.1f} s[/]" if seconds is not None else ""
    console.print(f"[green]✓[/] {escape(what)}{took}", soft_wrap=True)


def _heading(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/]")


class _Story:
    """The demo's steps, each what a user would do and see."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._first_moment = 0

    async def tell(self) -> None:
        """Run all steps."""
        telemetry.setup("phalanx-demo", level="ERROR")
        await self._install()
        api = await connect(self._cluster.kubeconfig, user_agent="phalanx-demo")
        try:
            watched = Watched(Client(api, clock=SystemClock()))
            async with anyio.create_task_group() as tasks:
                await watched.start(tasks)
                await self._start_processes(watched)
                await self._gang(watched)
                await self._too_large(watched)
                await self._more_nodes(watched)
                await self._delete(watched)
                await self._not_eligible(watched)
                tasks.cancel_scope.cancel()
        finally:
            await api.aclose()
        _timeline(watched.moments[self._first_moment :])

    async def _kubectl(self, *arguments: str) -> str:
        console.print(f"[dim]$ kubectl {escape(' '.join(arguments))}[/]", soft_wrap=True)
        done = await anyio.to_thread.run_sync(lambda: self._cluster.kubectl_run(*arguments))
        return done.stdout

    async def _apply_sample(self, name: str) -> None:
        await self._kubectl("apply", "-n", NAMESPACE, "-f", _short(manifests() / "samples" / f"{name}.yaml"))

    async def _install(self) -> None:
        _heading("Install")
        await self._kubectl("apply", "-k", _short(manifests() / "overlays" / "demo"))
        sample = str(manifests() / "samples" / "gang-8.yaml")
        deadline = time.monotonic() + 30
        with console.status("waiting until the admission policies act"):
            while time.monotonic() < deadline:
                command = ("create", "-n", NAMESPACE, "-f", sample, "--dry-run=server", "-o", "yaml")
                done = await anyio.to_thread.run_sync(lambda: self._cluster.kubectl_run(*command))  # noqa: B023
                if f"{names.GANG_LABEL}: job" in done.stdout:
                    break
                await anyio.sleep(0.2)
            else:
                raise MissingError("the admission policy phalanx-jobs did not mark a Job within 30 s")
        _say("manifests installed; the admission policies mark eligible Jobs")

    async def _start_processes(self, watched: Watched) -> None:
        began = time.monotonic()
        for who in ("controllers", "scheduler"):
            kubeconfig = await anyio.to_thread.run_sync(self._cluster.kubeconfig_as, who)
            argv = [sys.executable, "-m", "cli", who, "--kubeconfig", kubeconfig, "--log-format", "text"]
            self._cluster.run(who, argv)
        with console.status("controllers find out whether kube-controller-manager makes groups itself (10 s)"):
            logs = {who: anyio.Path(self._cluster.log(who)) for who in ("controllers", "scheduler")}
            deadline = time.monotonic() + 60
            for who, log in logs.items():
                while (READY[who] not in await log.read_text()) and time.monotonic() < deadline:
                    if not self._cluster.alive(who):
                        raise MissingError(f"phalanx {who} ended:\n{(await log.read_text())[-2000:]}")
                    await anyio.sleep(0.1)
        _say("phalanx controllers and phalanx scheduler run as their ServiceAccounts", time.monotonic() - began)
        self._first_moment = len(watched.moments)

    async def _gang(self, watched: Watched) -> None:
        _heading("A gang: Indexed Job, parallelism 8 = completions 8")
        began = time.monotonic()
        await self._apply_sample("gang-8")
        job = "gang-8"
        await watched.until("a Workload controlled by the Job", lambda: watched.workload_of(job) is not None)
        await watched.until("a PodGroup controlled by the Job", lambda: watched.group_of(job) is not None)
        await watched.until("8 pods bound", lambda: len(_bound(watched.pods_of(job))) == 8)
        seconds = time.monotonic() - began
        group = watched.group_of(job)
        assert group is not None
        stamped = [
            p
            for p in watched.pods_of(job)
            if (named := named_group(p)) is not None
            and named.name == group.metadata.name
            and p.spec.scheduler_name == names.SCHEDULER_NAME
        ]
        if len(stamped) != 8:
            raise MissingError(f"all 8 pods name PodGroup {group.metadata.name} and schedulerName phalanx")
        await watched.until("PodGroupInitiallyScheduled=True", lambda: _is_scheduled(watched, job))
        _say(f"Job {job} -> Workload -> PodGroup {group.metadata.name} (minCount {group.min_count})")
        where = sorted({p.spec.node_name for p in watched.pods_of(job)})
        _say(f"8 stamped pods bound together, next to each other on {', '.join(where)}", seconds)

    async def _too_large(self, watched: Watched) -> None:
        _heading("A Job with more pods than there is room for")
        await self._apply_sample("too-large")
        job = "too-large"
        await watched.until("the reason in the PodGroup's condition", lambda: bool(_reason(watched, job)))
        if _bound(watched.pods_of(job)):
            raise MissingError("none of its pods is bound")
        _say(f"none of its {len(watched.pods_of(job))} pods is bound; the PodGroup's condition says why:")
        console.print(f"    [yellow]{escape(_reason(watched, job))}[/]", soft_wrap=True)
        for kind in ("PodGroup", "Job"):
            await self._has_event(watched, kind, job)
        _say("an Event on the PodGroup and on the Job says the same (kubectl describe job too-large)")

    async def _has_event(self, watched: Watched, kind: str, job: str) -> None:
        group = watched.group_of(job)
        name = group.metadata.name if kind == "PodGroup" and group is not None else job
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                events = await watched.client.list_all(EVENTS, namespace=NAMESPACE)
            except ApiError as error:
                raise MissingError(explain(error)) from None
            for event in events:
                about = event.get("regarding", {})
                if (about.get("kind"), about.get("name"), event.get("reason")) == (kind, name, "FailedScheduling"):
                    return
            await anyio.sleep(0.1)
        raise MissingError(f"an Event FailedScheduling on {kind} {name}")

    async def _more_nodes(self, watched: Watched) -> None:
        _heading("Nodes are added")
        job = "too-large"
        wanted = len(watched.pods_of(job))
        began = time.monotonic()
        added = await anyio.to_thread.run_sync(self._cluster.add_nodes, wanted)
        _say(f"{len(added)} nodes joined", time.monotonic() - began)
        await watched.until(f"{wanted} pods bound", lambda: len(_bound(watched.pods_of(job))) == wanted)
        await watched.until("PodGroupInitiallyScheduled=True", lambda: _is_scheduled(watched, job))
        _say(f"all {wanted} pods of {job} started together", time.monotonic() - began)

    async def _delete(self, watched: Watched) -> None:
        _heading("A Job is deleted: its PodGroup goes only after its pods")
        job = "gang-8"
        group = watched.group_of(job)
        assert group is not None
        await self._kubectl("delete", "job", "-n", NAMESPACE, job, "--wait=false")
        await watched.until(
            "the PodGroup gone", lambda: watched.groups.store.get(NAMESPACE, group.metadata.name) is None
        )
        left = [p for p in watched.pods.store.values() if (n := named_group(p)) and n.name == group.metadata.name]
        gone = next(i for i, m in enumerate(watched.moments) if (m.name, m.what) == (group.metadata.name, "gone"))
        late = [m for m in watched.moments[gone:] if m.kind == "Pod" and m.name.startswith(job) and m.what == "gone"]
        if left or late:
            raise MissingError("the PodGroup outlives its pods")
        _say(f"pods of {job} gone first, then PodGroup {group.metadata.name}")

    async def _not_eligible(self, watched: Watched) -> None:
        _heading("A Job that is no gang runs as if Phalanx were not there")
        began = time.monotonic()
        await self._apply_sample("single")
        job = "single"
        await watched.until("its pods bound by kube-scheduler", lambda: len(_bound(watched.pods_of(job))) == 2)
        if watched.group_of(job) is not None or any(named_group(p) for p in watched.pods_of(job)):
            raise MissingError("no PodGroup for a Job that is no gang")
        if {p.spec.scheduler_name for p in watched.pods_of(job)} != {names.DEFAULT_SCHEDULER_NAME}:
            raise MissingError("its pods keep schedulerName default-scheduler")
        _say("bound by kube-scheduler, no group, no label", time.monotonic() - began)


#: What each process logs when it works.
READY = {"controllers": "[info     ] working", "scheduler": "[info     ] scheduling"}


def _bound(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.spec.node_name]


def _is_scheduled(watched: Watched, job: str) -> bool:
    group = watched.group_of(job)
    return group is not None and conditions.is_true(group.status.conditions, conditions.INITIALLY_SCHEDULED)


def _reason(watched: Watched, job: str) -> str:
    group = watched.group_of(job)
    found = conditions.find(group.status.conditions, conditions.INITIALLY_SCHEDULED) if group is not None else None
    unschedulable = found is not None and found.reason == conditions.UNSCHEDULABLE and " fit" in found.message
    return found.message if found is not None and unschedulable else ""


def _short(path: Path) -> str:
    """The path as a user in the checkout would type it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _timeline(moments: Sequence[Moment]) -> None:
    """Print what was seen, pods of one Job that did the same in one line."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="\nWhat the API server showed", title_justify="left"
    )
    table.add_column("TIME", no_wrap=True, style="dim")
    table.add_column("+MS", justify="right", no_wrap=True)
    table.add_column("OBJECT", no_wrap=True)
    table.add_column("WHAT")
    start = moments[0].at if moments else None
    for group in _folded(moments):
        first, last = group[0], group[-1]
        assert start is not None
        offset = f"{(first.at - start).total_seconds() * 1e3:.0f}"
        name, what = f"{first.kind} {first.name}", first.what
        if len(group) > 1:
            name = f"{len(group)} Pods {first.name.rsplit('-', 2)[0]}-*"
            what = f"{what.split(' to ')[0]}; the last {(last.at - first.at).total_seconds() * 1e3:.0f} ms later"
        style = {"PodGroup": "cyan", "Job": "bold", "Workload": "blue"}.get(first.kind, "")
        table.add_row(
            first.at.strftime("%H:%M:%S.%f")[:-3], offset, f"[{style}]{name}[/]" if style else name, escape(what)
        )
    console.print(table)


def _folded(moments: Sequence[Moment]) -> list[list[Moment]]:
    folded: dict[tuple[str, str, str] | int, list[Moment]] = {}
    for index, moment in enumerate(moments):
        # A Job's pods are called JOB-INDEX-SUFFIX.
        family = (moment.kind, moment.name.rsplit("-", 2)[0], moment.what.split(" ")[0])
        folded.setdefault(family if moment.kind == "Pod" else index, []).append(moment)
    return list(folded.values())


def _what_next(cluster: Cluster, *, keep: bool, seconds: float) -> None:
    console.print(f"\n[bold green]✓ everything above was seen on a real API server[/], in {seconds:.0f} s\n")
    console.print("[bold]What to try next[/]")
    if keep:
        lines = [
            f"export KUBECONFIG={cluster.kubeconfig}",
            f"export PATH={cluster.kubectl.parent}:$PATH",
            "kubectl get jobs,workloads,podgroups,pods",
            "kubectl apply -f manifests/samples/min-count.yaml",
            "kubectl describe podgroup",
            "kubectl annotate pod -l batch.kubernetes.io/job-name=too-large phalanx.dev/finish=succeeded",
            "phalanx cluster list",
            f"phalanx cluster down {cluster.name}        # when you are done",
        ]
    else:
        lines = [
            "make demo KEEP=1     # the same, and the cluster stays up for you",
            "make test            # lint, types, unit tests, integration tests on a real API server",
        ]
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
