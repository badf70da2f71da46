"""``phalanx cluster``: throwaway Kubernetes clusters from the command line. Presentation only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster import Cluster, ClusterError, ClusterSpec, clusters, console_report, paths, start
from cluster.state import State

app = cluster_app = App(name="cluster", help="Throwaway Kubernetes clusters on this machine.")

_STATUS = {"ready": "green", "starting": "yellow", "degraded": "red", "dead": "red"}


def _errors() -> Console:
    # Made anew each time: standard error may have been replaced meanwhile.
    return Console(stderr=True)


def _fail(error: ClusterError) -> NoReturn:
    _errors().print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    raise SystemExit(1)


@contextmanager
def _for_people() -> Iterator[None]:
    """Turn what can go wrong into a message and exit code 1."""
    try:
        yield
    except ClusterError as error:
        _fail(error)
    except BrokenPipeError:
        # The reader has seen enough; what is left to flush at exit has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        where = (
            f"clusters are kept in {paths.state_dir()} (PHALANX_STATE), builds in {paths.cache_dir()} (PHALANX_CACHE)"
        )
        _fail(ClusterError(f"{error}; {where}"))
    except KeyboardInterrupt:
        _errors().print("interrupted; nothing is left running", highlight=False)
        raise SystemExit(130) from None


@app.command
def up(
    name: str,
    *,
    kubernetes: str = "1.37",
    nodes: int | None = None,
    profile: Literal["workload", "native-jobs", "no-gates"] = "workload",
    scheduler: bool = False,
    provider: Literal["modules", "kind", "existing"] = "modules",
    kubeconfig: Path | None = None,
    gate: Annotated[Sequence[str], Parameter(negative="")] = (),
    flag: Annotated[Sequence[str], Parameter(negative="", allow_leading_hyphen=True)] = (),
    node_cpu: str = "8",
    node_memory: str = "32Gi",
    node_pods: int = 110,
) -> None:
    """Start a cluster and leave it running.

    The first start builds Kubernetes from its Go modules, which takes some minutes; later ones take seconds.

    Parameters
    ----------
    name
        The cluster's name.
    kubernetes
        Kubernetes version.
    nodes
        How many nodes it has: fake ones (16 unless said), or real workers with kind (2 unless said).
    profile
        workload: the Workload API is on, nobody acts on it. native-jobs: kube-controller-manager makes each Job's
        Workload and PodGroup. no-gates: an API server without the Workload API.
    scheduler
        Also start kube-scheduler; kind always does.
    provider
        modules: real control plane as plain processes, fake nodes. kind: real nodes in containers, real pods.
        existing: a cluster that is there, which stays as it is.
    kubeconfig
        How to reach the cluster that is there; without it, what KUBECONFIG names.
    gate
        A feature gate, for all components or one: NAME=true or COMPONENT:NAME=true. Repeatable.
    flag
        A flag of one component, in the place of ours: COMPONENT:--name=value. Repeatable.
    node_cpu
        CPU of a node.
    node_memory
        Memory of a node.
    node_pods
        Pods a node takes.
    """
    with _for_people():
        spec = ClusterSpec(
            name=name,
            kubernetes=kubernetes,
            nodes=nodes,
            profile=profile,
            scheduler=scheduler,
            provider=provider,
            kubeconfig=kubeconfig,
            feature_gates=_gates(gate),
            flags=_flags(flag),
            node_cpu=node_cpu,
            node_memory=node_memory,
            node_pods=node_pods,
        )
        errors = _errors()
        with console_report(errors) as report:
            cluster = start(spec, report)
            cluster.detach()
        errors.print(
            f"\nUse it:        export KUBECONFIG={cluster.kubeconfig}\n"
            f"               {cluster.kubectl} get nodes\n"
            f"Take it down:  phalanx cluster down {name}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


@app.command
def down(name: str, *, keep_logs: bool = False) -> None:
    """Take a cluster down, or clear away a dead one.

    Parameters
    ----------
    name
        The cluster's name.
    keep_logs
        Keep its logs and tell where.
    """
    with _for_people():
        kept = Cluster.load(name).down(keep_logs=keep_logs)
        _errors().print(f"cluster {name} is down", highlight=False)
        if kept is not None:
            print(kept)


@app.command(name="list")
def list_(*, output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table") -> None:
    """List all clusters, dead ones too.

    Parameters
    ----------
    output
        table for people, json for programs.
    """
    with _for_people():
        known = [cluster.state for cluster in clusters()]
    if output == "json":
        with _for_people():
            print(json.dumps([_record(state) for state in known], indent=2), flush=True)
        return
    if not known:
        _errors().print("no clusters; start one: phalanx cluster up NAME")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "STATUS", "KUBERNETES", "PROFILE"):
        table.add_column(column, no_wrap=True)
    table.add_column("NODES", justify="right")
    table.add_column("PIDS", justify="right")
    table.add_column("KUBECONFIG", overflow="fold")
    for state in known:
        status = state.status
        died = "".join(f"\n{name} {how}" for name, how in state.died.items()) if status == "degraded" else ""
        table.add_row(
            state.name,
            f"[{_STATUS[status]}]{status}[/]{escape(died)}",
            state.kubernetes,
            state.profile,
            str(state.nodes),
            str(len(state.pids)),
            state.kubeconfig,
        )
    console = Console()
    # In a pipe nothing is folded: what reads it wants whole paths.
    (console if console.is_terminal else Console(width=400)).print(table)


@app.command
def kubeconfig(
    name: str,
    *,
    as_: Annotated[Literal["controllers", "scheduler"] | None, Parameter(name="--as")] = None,
    path: bool = False,
) -> None:
    """Print a cluster's kubeconfig.

    Parameters
    ----------
    name
        The cluster's name.
    as_
        Act as this ServiceAccount of ours, for 24 hours, instead of as administrator.
    path
        Print the path of the file instead of what is in it.
    """
    with _for_people():
        cluster = Cluster.load(name)
        if cluster.status == "dead":
            raise ClusterError(f"cluster {name!r} is dead; start it anew: phalanx cluster up {name}")
        file = cluster.kubeconfig_as(as_) if as_ else cluster.kubeconfig
        if path:
            print(file)
        else:
            sys.stdout.write(file.read_text())


def _record(state: State) -> dict[str, Any]:
    return {
        "name": state.name,
        "status": state.status,
        "kubernetes": state.kubernetes,
        "profile": state.profile,
        "provider": state.provider,
        "nodes": state.nodes,
        "kubeconfig": state.kubeconfig,
        "audit_log": state.audit_log,
        "logs": state.logs,
        "pids": state.pids,
        "owner": state.owner.pid if state.owner is not None and state.owner.alive else None,
        "died": state.died,
    }


def _gates(values: Sequence[str]) -> dict[str, dict[str, bool]]:
    gates: dict[str, dict[str, bool]] = {}
    for value in values:
        component, colon, setting = value.rpartition(":")
        name, _, on = setting.partition("=")
        if not name or on not in ("true", "false"):
            raise ClusterError(f"--gate {value}: write NAME=true or COMPONENT:NAME=false")
        gates.setdefault(component if colon else "*", {})[name] = on == "true"
    return gates


def _flags(values: Sequence[str]) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    for value in values:
        component, colon, flag = value.partition(":")
        if not colon or not flag:
            raise ClusterError(f"--flag {value}: write COMPONENT:--name=value")
        flags.setdefault(component, []).append(flag)
    return flags


if __name__ == "__main__":
    app()
