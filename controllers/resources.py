"""The kinds of ours that the controllers read and write, as the preferred source serves them."""

from __future__ import annotations

from api import v1beta1
from runtime.resources import Resource

WORKLOADS = Resource(v1beta1.GROUP, v1beta1.VERSION, "workloads", "Workload")
PODGROUPS = Resource(v1beta1.GROUP, v1beta1.VERSION, "podgroups", "PodGroup")
