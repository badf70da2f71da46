"""What a Job's objects look like: its Workload and its PodGroup, ready to be sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from api import names, v1beta1
from api.model import (
    ControllerRef,
    Metadata,
    Owner,
    PodGroup,
    PodGroupSpec,
    PodGroupTemplate,
    PodGroupTemplateSpec,
    Workload,
    WorkloadRef,
    WorkloadSpec,
)
from api.wire import Job, PriorityClass
from controllers import dropped

_JOB_API_VERSION = "batch/v1"


def workload_for(job: Job, template: PodGroupTemplateSpec) -> Workload:
    """The Workload of a Job: owned by it, with the one template its PodGroup is made from."""
    return Workload(
        metadata=Metadata(
            name=names.group_name(job.metadata.name, job.metadata.uid),
            namespace=job.metadata.namespace,
            owner_references=[_controlled_by(job)],
        ),
        spec=WorkloadSpec(
            controller_ref=ControllerRef(api_group="batch", kind="Job", name=job.metadata.name),
            pod_group_templates=[PodGroupTemplate(name=names.TEMPLATE_NAME, **dict(template))],
        ),
    )


def pod_group_for(job: Job, workload: Workload, preemption_policy: str | None) -> PodGroup:
    """The PodGroup of a Job, from its Workload's template: a successor is what its predecessor was.

    The class's preemptionPolicy is looked up anew, as the server compares it with the class that exists now.
    """
    template = template_of(workload)
    fields = dict(template) | {"preemption_policy": preemption_policy, "priority": None}
    fields.pop("name", None)
    return PodGroup(
        metadata=Metadata(
            name=workload.metadata.name,
            namespace=workload.metadata.namespace,
            # The Job keeps it alive and takes it along; the Workload only takes it along.
            owner_references=[
                _controlled_by(job),
                Owner(
                    api_version=v1beta1.API_VERSION,
                    kind="Workload",
                    name=workload.metadata.name,
                    uid=workload.metadata.uid,
                ),
            ],
        ),
        spec=PodGroupSpec(
            workload_ref=WorkloadRef(workload_name=workload.metadata.name, template_name=names.TEMPLATE_NAME),
            **fields,
        ),
    )


def template_of(workload: Workload) -> PodGroupTemplateSpec:
    """The Workload's only template, with what the API server did not keep of it put back.

    :raises pydantic.ValidationError: when somebody wrote nonsense into the annotation that records it
    """
    template = workload.spec.pod_group_templates[0]
    lost = dropped.recorded(workload)
    if not lost:
        return template
    return PodGroupTemplateSpec.model_validate(template.model_dump(by_alias=True) | lost)


def min_count(template: PodGroupTemplateSpec) -> int | None:
    """The template's minimum, None for the basic policy."""
    gang = template.scheduling_policy.gang
    return gang.min_count if gang is not None else None


def preemption_policy(class_name: str | None, classes: Iterable[PriorityClass]) -> str | None:
    """What a group of this PriorityClass must say of preemption; None to leave it to the server.

    Left out, the server takes PreemptLowerPriority and then refuses a class that says otherwise. Only that is
    written: a server without the gate PodGroupPreemptionPolicy would drop, and we record, what means nothing.
    Without a class the cluster's default one applies; of several, the lowest.
    """
    if class_name:
        found = next((c for c in classes if c.metadata.name == class_name), None)
    else:
        found = min((c for c in classes if c.global_default), key=lambda c: c.value, default=None)
    return "Never" if found is not None and found.preemption_policy == "Never" else None


def _controlled_by(job: Job) -> Owner:
    return Owner(
        api_version=_JOB_API_VERSION,
        kind="Job",
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
