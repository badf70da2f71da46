"""The hub model: Workload and PodGroup as the code sees them, whatever version the cluster serves.

One module a served version (``api.v1beta1`` …) turns wire objects into these and back. The shape is that of
``scheduling.k8s.io/v1beta1`` (Kubernetes 1.37), the newest one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from api.wire import Condition


def _conditions(value: Any) -> list[Condition]:
    return msgspec.convert(value, list[Condition])


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Owner(_Model):
    """An owner reference."""

    api_version: str = Field(description="Group and version of the owner's kind.")
    kind: str = Field(description="The owner's kind.")
    name: str = Field(description="The owner's name, in the same namespace.")
    uid: str = Field(description="The owner's uid: the identity that counts.")
    controller: bool = Field(default=False, description="Whether this owner controls the object.")
    block_owner_deletion: bool | None = Field(
        default=None, description="Whether a foreground deletion of the owner waits for this object."
    )


class Metadata(_Model):
    """Object metadata, as far as we read or write it."""

    name: str = Field(description="Name, unique in its namespace.")
    namespace: str = Field(description="Namespace.")
    uid: str = Field(default="", description="Set by the server.")
    resource_version: str = Field(default="", description="Set by the server.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    owner_references: list[Owner] = Field(default_factory=list, description="Owners.")
    finalizers: list[str] = Field(default_factory=list, description="What still holds a deletion.")
    creation_timestamp: str | None = Field(default=None, description="Set by the server, RFC 3339.")
    deletion_timestamp: str | None = Field(default=None, description="Set while in deletion.")

    @property
    def controller(self) -> Owner | None:
        """The owner that controls this object, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Gang(_Model):
    """All-or-nothing: nothing is bound before ``minCount`` members have a place together."""

    min_count: int = Field(ge=1, description="How many members must be placed at once. Mutable in v1beta1.")


class Basic(_Model):
    """No minimum: members are scheduled one by one."""


class SchedulingPolicy(_Model):
    """Exactly one of ``basic`` and ``gang``; the choice is immutable."""

    basic: Basic | None = Field(default=None, description="Schedule members one by one.")
    gang: Gang | None = Field(default=None, description="Schedule all or nothing.")

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.basic is None) == (self.gang is None):
            raise ValueError("schedulingPolicy: must specify exactly one of: `basic`, `gang`")
        return self


class TopologyConstraint(_Model):
    """All members in one domain: one value of the node label ``key``."""

    key: str = Field(description="Node label whose values are the domains.")


class SchedulingConstraints(_Model):
    """Constraints on where the group as a whole may be placed."""

    topology: list[TopologyConstraint] = Field(default_factory=list, description="Required topology.")


class Empty(_Model):
    """A variant with no settings."""


class DisruptionMode(_Model):
    """How members may be disrupted: one by one (``single``) or only all together (``all``)."""

    single: Empty | None = Field(default=None, description="Members may be disrupted one by one.")
    all: Empty | None = Field(default=None, description="Only the whole group may be disrupted.")


class GroupResourceClaim(_Model):
    """A ResourceClaim that the members share."""

    name: str = Field(description="Name of the claim inside the group.")
    resource_claim_name: str | None = Field(default=None, description="An existing ResourceClaim.")
    resource_claim_template_name: str | None = Field(default=None, description="A template to make it from.")


class PodGroupTemplateSpec(_Model):
    """What a PodGroup and a Workload's template have in common."""

    scheduling_policy: SchedulingPolicy = Field(description="Basic or gang.")
    scheduling_constraints: SchedulingConstraints | None = Field(default=None, description="Placement.")
    disruption_mode: DisruptionMode | None = Field(default=None, description="Victims singly or together.")
    resource_claims: list[GroupResourceClaim] = Field(default_factory=list, description="Shared claims.")
    priority_class_name: str | None = Field(default=None, description="PriorityClass of the group.")
    priority: int | None = Field(default=None, description="Filled in by admission from the class.")
    preemption_policy: Literal["PreemptLowerPriority", "Never"] | None = Field(
        default=None, description="Copied from the class: left out, the server refuses a `Never` class."
    )


class PodGroupTemplate(PodGroupTemplateSpec):
    """One entry of ``Workload.spec.podGroupTemplates``."""

    name: str = Field(description="Name of the template, unique in its Workload.")


class ControllerRef(_Model):
    """The object a Workload describes, in its namespace."""

    api_group: str = Field(default="", description="API group of the kind.")
    kind: str = Field(description="Kind.")
    name: str = Field(description="Name.")


class WorkloadSpec(_Model):
    """``spec`` of a Workload."""

    controller_ref: ControllerRef | None = Field(default=None, description="What this Workload describes.")
    pod_group_templates: list[PodGroupTemplate] = Field(
        default_factory=list, description="Templates of its PodGroups, at most 8."
    )


class Workload(_Model):
    """The scheduling intent of a whole Job."""

    metadata: Metadata = Field(description="Object metadata.")
    spec: WorkloadSpec = Field(description="Intent.")


class WorkloadRef(_Model):
    """The template a PodGroup was made from."""

    workload_name: str = Field(description="Name of the Workload, in the same namespace.")
    template_name: str = Field(description="Name of its template.")


class PodGroupSpec(PodGroupTemplateSpec):
    """``spec`` of a PodGroup."""

    workload_ref: WorkloadRef | None = Field(default=None, description="Where it came from.")


class PodGroupStatus(_Model):
    """``status`` of a PodGroup."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    conditions: Annotated[list[Condition], BeforeValidator(_conditions)] = Field(
        default_factory=list, description="Conditions, one of each type."
    )


class PodGroup(_Model):
    """The runtime group whose members are scheduled together."""

    metadata: Metadata = Field(description="Object metadata.")
    spec: PodGroupSpec = Field(description="Policy and constraints.")
    status: PodGroupStatus = Field(default_factory=PodGroupStatus, description="What became of it.")

    @property
    def min_count(self) -> int:
        """Members that must be placed together; 0 for the basic policy."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_count if gang is not None else 0

    @property
    def job_uid(self) -> str | None:
        """The uid of the Job that controls this group, or None where it belongs to no Job."""
        owner = self.metadata.controller
        is_job = owner is not None and owner.kind == "Job" and owner.api_version.startswith("batch/")
        return owner.uid if owner is not None and is_job else None
