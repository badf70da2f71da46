"""The kinds of ours that the controllers read and write, as the preferred source serves them."""

from __future__ import annotations

from api import v1beta1
from api.wire import Job
from runtime.objects import reference
from runtime.resources import JOBS, Resource

WORKLOADS = Resource(v1beta1.GROUP, v1beta1.VERSION, "workloads", "Workload")
PODGROUPS = Resource(v1beta1.GROUP, v1beta1.VERSION, "podgroups", "PodGroup")


def job_reference(job: Job) -> dict[str, str]:
    """Return what an Event about the Job regards."""
    return reference(JOBS, job)
