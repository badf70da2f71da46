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
from rich.markup import escape
from rich.table import Table

from cli.demo_story import Story, console, say
from cli.demo_watch import MissingError, Moment
from cluster import Cluster, ClusterError, ClusterSpec, clusters, console_report, up
from runtime.errors import ConfigError


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
    try:
        with console_report(console) as report, up(spec, report=report) as cluster:
            say(f"Kubernetes {spec.kubernetes} control plane with {nodes} nodes", time.monotonic() - started)
            _tell(cluster, keep=keep)
            took = time.monotonic() - started
            console.print(f"\n[bold green]✓ everything above was seen on a real API server[/], in {took:.0f} s")
            _what_next(cluster, keep=keep)
    except (MissingError, ClusterError, ConfigError) as error:
        console.print(f"\n[bold red]✗ the demo stopped:[/] {escape(str(error))}", soft_wrap=True)
        if not keep:
            console.print("Look into it: make demo KEEP=1 leaves the cluster up, also when it stops.")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        raise SystemExit(130) from None


def _tell(cluster: Cluster, *, keep: bool) -> None:
    """Tell the story, and what was seen of it; where it stops, also what our processes said last."""
    story = Story(cluster)
    try:
        anyio.run(story.tell)
    except (MissingError, ClusterError, ConfigError):
        _last_words(cluster)
        if keep:
            console.print(f"\nThe cluster stays up: export KUBECONFIG={cluster.kubeconfig}", soft_wrap=True)
        raise
    finally:
        _timeline(story.moments)
        if keep:
            cluster.detach()


def _free_name() -> str:
    """``demo``, or ``demo-2`` and so on while demos that were kept are still there."""
    taken = {cluster.name for cluster in clusters() if cluster.status != "dead"}
    candidates = ["demo", *(f"demo-{n}" for n in range(2, 100))]
    return next(name for name in candidates if name not in taken)


def _timeline(moments: Sequence[Moment]) -> None:
    """Print what was seen, pods of one Job that did the same in one line."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="\nWhat the API server showed", title_justify="left"
    )
    table.add_column("TIME", no_wrap=True, style="dim")
    table.add_column("+MS", justify="right", no_wrap=True)
    table.add_column("OBJECT", no_wrap=True)
    table.add_column("WHAT", overflow="fold")
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


def _last_words(cluster: Cluster) -> None:
    """Show what our processes said last."""
    for who in ("controllers", "scheduler"):
        log = cluster.log(who)
        lines = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else ["(not started)"]
        console.print(f"\n[bold]phalanx {who} said last[/]")
        for line in lines:
            console.print(f"  {escape(line)}", style="dim", soft_wrap=True)


def _what_next(cluster: Cluster, *, keep: bool) -> None:
    console.print("\n[bold]What to try next[/]")
    if keep:
        lines = [
            f"export KUBECONFIG={cluster.kubeconfig}",
            f"export PATH={Path(sys.executable).parent}:{cluster.kubectl.parent}:$PATH",
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
