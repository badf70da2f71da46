"""Pods as the controllers cache them: who controls a pod, the group it names, whether it was bound or ended.

A cluster's pods are by far the most objects we hold, and we read a handful of fields of each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from api import names
from api.membership import named_group, owning_job
from api.wire import ObjectMeta, Pod, PodSpec, PodStatus
from runtime.informer import Informer

#: Index: uid of the controlling Job.
BY_JOB = "job-uid"
#: Index: :class:`api.membership.GroupKey` that the pod itself names.
BY_GROUP = "group"

_LABELS = (names.GANG_LABEL, names.POD_GROUP_LABEL)


def slim(pod: Pod) -> Pod:
    """Drop what no controller reads."""
    meta = pod.metadata
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            uid=meta.uid,
            resource_version=meta.resource_version,
            labels={key: meta.labels[key] for key in _LABELS if key in meta.labels},
            owner_references=tuple(owner for owner in meta.owner_references if owner.controller),
            deletion_timestamp=meta.deletion_timestamp,
        ),
        spec=PodSpec(
            node_name=sys.intern(pod.spec.node_name),
            scheduler_name=sys.intern(pod.spec.scheduler_name),
            scheduling_group=pod.spec.scheduling_group,
        ),
        status=PodStatus(phase=sys.intern(pod.status.phase)),
    )


def index(pods: Informer[Pod]) -> None:
    """Add the two indexes the controllers share."""
    pods.store.add_index(BY_JOB, _job)
    pods.store.add_index(BY_GROUP, _group)


def was_bound(pod: Pod) -> bool:
    """Whether the pod ever got a node; ``spec.nodeName`` is never taken back."""
    return bool(pod.spec.node_name)


def _job(pod: Pod) -> Iterable[str]:
    owner = owning_job(pod)
    return () if owner is None else (owner.uid,)


def _group(pod: Pod) -> Iterable[object]:
    key = named_group(pod)
    return () if key is None else (key,)
