"""The objects of a case, and the requests that create them: encoded beforehand, the same bytes for every contender."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bench.cases import NODE_CPU, Case
from bench.load import Phase, Request
from cluster import nodes

Obj = dict[str, Any]

#: Where a case's objects are and nothing else is; where each contender proves that it works; what was there before.
BENCH, WARM_UP, BEFORE = "bench", "warm-up", "before"

#: Seconds after its PodGroup at which the pods of a gang of a stream are created.
_AFTER_GROUP = 0.02

#: What a pod asks for: cores and bytes. On a node of the bench 8 of them fit.
_CPU, _MEMORY = "1", "128Mi"
#: Of these, no two fit on one node.
_LARGE = str(NODE_CPU // 2 + 1)


def pod(name: str, *, scheduler: str, group: str = "", node: str = "", cpu: str = _CPU) -> Obj:
    """Return a pod; with ``node``, it is bound from the start."""
    spec: Obj = {"schedulerName": scheduler, **_pod_spec(cpu)}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def pod_group(name: str, size: int) -> Obj:
    """Return a PodGroup of which all ``size`` members must start together."""
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }


def job(name: str, size: int, *, scheduler: str = "", group: str = "", native: bool = False, cpu: str = _CPU) -> Obj:
    """Return an Indexed Job whose pods all run at once.

    :param scheduler: of its pods; "" leaves that to defaults and admission, as users do
    :param group: a PodGroup that is there already
    :param native: ask kube-controller-manager to make the gang's objects
    """
    template: Obj = _pod_spec(cpu)
    if scheduler:
        template["schedulerName"] = scheduler
    if group:
        template["schedulingGroup"] = {"podGroupName": group}
    spec: Obj = {
        "completionMode": "Indexed",
        "parallelism": size,
        "completions": size,
        "template": {"spec": template},
    }
    if native:
        spec["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def namespaces(labels: Mapping[str, str]) -> Phase:
    """Return what makes the namespaces of a run."""
    bodies = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}
        for name in (BENCH, WARM_UP, BEFORE)
    ]
    return [Request("/api/v1/namespaces", msgspec.json.encode(body)) for body in bodies]


def before(case: Case, node_count: int) -> Phase:
    """Return what makes the pods that are bound already, dealt out to all nodes in turn.

    For a gang that is not to fit, they leave one node less than it has pods.
    """
    count, cpu = case.bound, _CPU
    if not case.fits:
        count, cpu = max(0, node_count - (case.size - 1)), _LARGE
    return [
        _post("pods", BEFORE, pod(f"before-{i}", scheduler="nobody", node=nodes.name(i % node_count), cpu=cpu))
        for i in range(count)
    ]


def warm_up(case: Case, scheduler: str, *, native: bool = False) -> list[Phase]:
    """Return what each contender schedules first: two small pods of the case's kind."""
    if case.kind == "jobs":
        return [[_post("jobs", WARM_UP, job("warm-up", 2, native=native, cpu="10m"))]]
    group = "" if case.kind == "singles" else "warm-up"
    pods = [_post("pods", WARM_UP, pod(f"warm-up-{i}", scheduler=scheduler, group=group, cpu="10m")) for i in range(2)]
    return [[_post("podgroups", WARM_UP, pod_group(group, 2))], pods] if group else [pods]


def create(case: Case, scheduler: str, *, native: bool = False) -> list[Phase]:
    """Return what creates a case's objects for a scheduler: first all groups, then all pods."""
    if case.kind == "jobs":
        return [[_post("jobs", BENCH, job(name, case.size, native=native)) for name in _groups(case)]]
    cpu = _CPU if case.fits else _LARGE
    groups = (
        [] if case.kind == "singles" else [_post("podgroups", BENCH, pod_group(g, case.size)) for g in _groups(case)]
    )
    pods = [
        _post("pods", BENCH, pod(name, scheduler=scheduler, group=group if groups else "", cpu=cpu))
        for name, group in members(case).items()
    ]
    return _timed(case, groups, pods) if case.rate else [phase for phase in (groups, pods) if phase]


def create_and_bind(case: Case, node_count: int) -> list[Phase]:
    """Return what creates a case's objects with nobody scheduling: each pod is bound as soon as it is there.

    Of Jobs, the pods are made by the Job controller, so their binds are not among these: see :func:`places`.
    """
    if case.kind == "jobs":
        groups = [_post("podgroups", BENCH, pod_group(name, case.size)) for name in _groups(case)]
        workloads = [_post("workloads", BENCH, workload(name, case.size)) for name in _groups(case)]
        jobs = [_post("jobs", BENCH, job(n, case.size, scheduler="nobody", group=n)) for n in _groups(case)]
        return [workloads, groups, jobs]
    *rest, pods = create(case, "nobody")
    where = iter(places(case, node_count))
    bound = [
        msgspec.structs.replace(request, then=binding(request.name, next(where))) if request.name else request
        for request in pods
    ]
    return [*rest, bound]


def workload(name: str, size: int) -> Obj:
    """Return the Workload that a gang's PodGroup is an instance of, where a Job has one."""
    template = {"name": "workers", "schedulingPolicy": {"gang": {"minCount": size}}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podGroupTemplates": [template]},
    }


def binding(name: str, node: str) -> Request:
    """Return what binds a pod of the case."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    return Request(f"/api/v1/namespaces/{BENCH}/pods/{name}/binding", msgspec.json.encode(body))


def places(case: Case, node_count: int) -> list[str]:
    """Return a node for each pod of the case: they go on where the pods that were there before end."""
    return [nodes.name((case.bound + i) % node_count) for i in range(case.pods)]


def members(case: Case) -> dict[str, str]:
    """Return the names of the case's pods, and the group of each. (Of Jobs, the controller names them.)"""
    return {f"{group}-{i}": group for group in _groups(case) for i in range(case.size)}


def _groups(case: Case) -> Iterator[str]:
    return (f"g{number}" for number in range(case.groups))


def _timed(case: Case, groups: Phase, pods: Phase) -> list[Phase]:
    """Give the requests of a stream their time; each gang's group first."""
    requests = []
    for number, group in enumerate(groups):
        at = number / case.rate
        requests.append(msgspec.structs.replace(group, at=at))
        mine = pods[number * case.size : (number + 1) * case.size]
        requests += [msgspec.structs.replace(request, at=at + _AFTER_GROUP) for request in mine]
    return [sorted(requests, key=lambda request: request.at)]


def _pod_spec(cpu: str) -> Obj:
    requests = {"cpu": cpu, "memory": _MEMORY}
    return {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
    }


def _post(resource: str, namespace: str, body: Obj) -> Request:
    prefix = {"pods": "/api/v1", "jobs": "/apis/batch/v1"}.get(resource, "/apis/scheduling.k8s.io/v1beta1")
    name = body["metadata"]["name"] if resource == "pods" else ""
    return Request(f"{prefix}/namespaces/{namespace}/{resource}", msgspec.json.encode(body), name=name)
