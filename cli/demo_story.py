"""The demo's steps: what a user does, what is to be seen, and the check that it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from rich.console import Console
from rich.markup import escape

from api import conditions, names
from api.membership import named_group
from api.wire import Pod
from cli.demo_watch import NAMESPACE, MissingError, Moment, Watched
from cli.manifests import manifests
from cluster import Cluster, ClusterError
from runtime import telemetry
from runtime.client import Client
from runtime.clock import SystemClock
from runtime.errors import ApiError, explain
from runtime.kr8s_seam import connect
from runtime.resources import EVENTS

console = Console(highlight=False)


def say(what: str, seconds: float | None = None) -> None:
    """Print one thing that holds, and how long it took."""
    took = f"  [dim]{seconds:.1f} s[/]" if seconds is not None else ""
    console.print(f"[green]✓[/] {escape(what)}{took}", soft_wrap=True)


def _heading(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/]")


class Story:
    """The demo's steps, each what a user would do and see."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._first_moment = 0
        #: What was seen, in the server's order; also of a story that stopped.
        self.moments: list[Moment] = []

    async def tell(self) -> None:
        """Run all steps.

        :raises MissingError: something that is to happen did not
        """
        telemetry.setup("phalanx-demo", level="ERROR")
        await self._install()
        api = await connect(self._cluster.kubeconfig, user_agent="phalanx-demo")
        try:
            watched = Watched(Client(api, clock=SystemClock()))
            failure: Exception | None = None
            async with anyio.create_task_group() as tasks:
                await watched.start(tasks)
                try:
                    await self._steps(watched)
                except (MissingError, ClusterError) as error:
                    failure = error  # raised in here it would come out inside an ExceptionGroup
                tasks.cancel_scope.cancel()
        finally:
            await api.aclose()
            self.moments = sorted(watched.moments[self._first_moment :], key=_version)
        if failure is not None:
            raise failure

    async def _steps(self, watched: Watched) -> None:
        await self._start_processes(watched)
        await self._gang(watched)
        await self._too_large(watched)
        await self._more_nodes(watched)
        await self._delete(watched)
        await self._not_eligible(watched)

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
        say("manifests installed; the admission policies mark eligible Jobs")

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
        say("phalanx controllers and phalanx scheduler run as their ServiceAccounts", time.monotonic() - began)
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
        say(f"Job {job} -> Workload -> PodGroup {group.metadata.name} (minCount {group.min_count})")
        where = sorted({p.spec.node_name for p in watched.pods_of(job)})
        say(f"8 stamped pods bound together, next to each other on {', '.join(where)}", seconds)

    async def _too_large(self, watched: Watched) -> None:
        _heading("A Job with more pods than there is room for")
        await self._apply_sample("too-large")
        job = "too-large"
        await watched.until("the reason in the PodGroup's condition", lambda: bool(_reason(watched, job)))
        if _bound(watched.pods_of(job)):
            raise MissingError("none of its pods is bound")
        say(f"none of its {len(watched.pods_of(job))} pods is bound; the PodGroup's condition says why:")
        console.print(f"    [yellow]{escape(_reason(watched, job))}[/]", soft_wrap=True)
        for kind in ("PodGroup", "Job"):
            await self._has_event(watched, kind, job)
        say("an Event on the PodGroup and on the Job says the same (kubectl describe job too-large)")

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
        say(f"{len(added)} nodes joined", time.monotonic() - began)
        await watched.until(f"{wanted} pods bound", lambda: len(_bound(watched.pods_of(job))) == wanted)
        await watched.until("PodGroupInitiallyScheduled=True", lambda: _is_scheduled(watched, job))
        say(f"all {wanted} pods of {job} started together", time.monotonic() - began)

    async def _delete(self, watched: Watched) -> None:
        _heading("A Job is deleted: its PodGroup goes only after its pods")
        job = "gang-8"
        group = watched.group_of(job)
        assert group is not None
        await self._kubectl("delete", "job", "-n", NAMESPACE, job, "--wait=false")
        name = group.metadata.name
        await watched.until("the PodGroup gone", lambda: watched.groups.store.get(NAMESPACE, name) is None)
        # Pods and PodGroups come on two streams: their order is the server's, not that of their arrival.
        await watched.until("all its pods gone", lambda: not watched.pods_of(job))
        moments = [m for m in sorted(watched.moments, key=_version) if _is_of(m, job)]
        gone = next(m.version for m in moments if m.kind == "PodGroup" and m.what == "gone")
        # A pod that has ended holds nothing, though its object may be there for a moment.
        ended = {m.name for m in moments if m.kind == "Pod" and m.what in ("ended", "gone") and m.version < gone}
        if len(ended) < 8:
            raise MissingError(f"only {len(ended)} of 8 pods had ended when the PodGroup went; it is to go after them")
        say(f"all pods of {job} ended first, then PodGroup {group.metadata.name} went")

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
        say("bound by kube-scheduler, no group, no label", time.monotonic() - began)


def _version(moment: Moment) -> int:
    return moment.version


def _is_of(moment: Moment, job: str) -> bool:
    return moment.name.startswith(f"{job}-")


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
