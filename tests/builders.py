"""Fluent builders of the objects that tests speak about: `pod("a", cpu="2", group="g")`."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from api import names
from api.model import PodGroup
from api.wire import Job, Node, Pod

_uids = count(1)


def uid() -> str:
    """A fresh uid of the usual shape."""
    return f"{next(_uids):08x}-1111-4111-8111-111111111111"


def node(name: str, cpu: str = "8", memory: str = "32Gi", pods: int = 110, **extra: Any) -> Node:
    labels = {"kubernetes.io/hostname": name, **extra.pop("labels", {})}
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods, **extra.pop("allocatable", {})}
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": uid(), "labels": labels},
            "spec": extra,
            "status": {"allocatable": allocatable},
        },
        Node,
    )


def owned_by_job(name: str, job_uid: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid, "controller": True}]


def pod(
    name: str,
    *,
    cpu: str = "1",
    group: str | None = None,
    node: str = "",
    scheduler: str = names.SCHEDULER_NAME,
    owner: tuple[str, str] | None = None,
    phase: str = "Pending",
    deleting: bool = False,
    pod_uid: str | None = None,
    index: int | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": pod_uid or uid(),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": dict(labels or {}),
    }
    if index is not None:
        metadata["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    if owner is not None:
        metadata["ownerReferences"] = owned_by_job(*owner)
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    body: dict[str, Any] = {
        "schedulerName": scheduler,
        "nodeName": node,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        **spec,
    }
    if group is not None:
        body["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert({"metadata": metadata, "spec": body, "status": {"phase": phase}}, Pod)


def bound(p: Pod, node: str, *, phase: str = "Running") -> Pod:
    """The pod as the watch shows it once it is bound."""
    return msgspec.structs.replace(
        p,
        spec=msgspec.structs.replace(p.spec, node_name=node),
        status=msgspec.structs.replace(p.status, phase=phase),
    )


def pod_group(
    name: str,
    minimum: int | None,
    *,
    job: tuple[str, str] | None = None,
    group_uid: str | None = None,
    priority: int = 0,
    deleting: bool = False,
    created: str = "2026-01-01T00:00:00Z",
    condition: str | None = None,
    **spec: Any,
) -> PodGroup:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": group_uid or f"group-{name}",
        "creationTimestamp": created,
    }
    if job is not None:
        metadata["ownerReferences"] = owned_by_job(*job)
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    policy = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    status = {"conditions": [{"type": "PodGroupInitiallyScheduled", "status": condition}]} if condition else {}
    return PodGroup.model_validate(
        {"metadata": metadata, "spec": {"schedulingPolicy": policy, "priority": priority, **spec}, "status": status}
    )


def job(name: str = "train", *, parallelism: int = 4, job_uid: str | None = None, **changes: Any) -> Job:
    """An eligible Job; one that is suspended is as the Job controller leaves it.

    Keyword arguments replace fields of its spec, `annotations`, `labels` and the like of its metadata.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": job_uid or uid()}
    for field in ("annotations", "labels", "ownerReferences", "deletionTimestamp"):
        if field in changes:
            metadata[field] = changes.pop(field)
    template = changes.pop("template", {"metadata": {"labels": {names.GANG_LABEL: "job"}}})
    acted = [{"type": "Suspended", "status": "True"}] if changes.get("suspend") else []
    conditions = changes.pop("conditions", acted)
    spec = {
        "parallelism": parallelism,
        "completions": parallelism,
        "completionMode": "Indexed",
        "template": template,
        **changes,
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}, Job)
