"""Core kinds as they travel: only the fields we read, decoded straight from bytes.

Frozen msgspec structs without garbage-collector tracking (they hold no cycles), and tuples for the API's lists: the
collector stops following those once it has seen that they hold nothing else, so that it never walks through the pods
of a cluster. A pod takes about 7 KiB and 11 µs to decode. Unknown fields are skipped. Field names follow the Kubernetes
API (camelCase on the wire). Maps inside are shared with the cache and must not be changed.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of the wire structs."""


class OwnerReference(_Wire, frozen=True):
    """``metadata.ownerReferences[]``."""

    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_Wire, frozen=True):
    """``metadata`` of every object. Times are RFC 3339 strings as the server wrote them."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, if any."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Condition(_Wire, frozen=True):
    """One entry of ``status.conditions`` (pods, nodes, Jobs and PodGroups share the fields we read)."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ResourceRequirements(_Wire, frozen=True):
    """``resources`` of a container or pod: quantities as written; limits stand in for absent requests."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerPort(_Wire, frozen=True):
    """``ports[]`` of a container; a ``hostPort`` of 0 claims nothing on the node."""

    host_port: int = 0
    container_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class Container(_Wire, frozen=True):
    """A container; ``restart_policy == "Always"`` marks a restartable init container (sidecar)."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class Toleration(_Wire, frozen=True):
    """``spec.tolerations[]``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(_Wire, frozen=True):
    """``spec.taints[]`` of a node."""

    key: str
    value: str = ""
    effect: str = ""


class SelectorRequirement(_Wire, frozen=True):
    """A ``matchExpressions`` or ``matchFields`` entry."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_Wire, frozen=True):
    """One term: all of its requirements must hold; an empty term matches nothing."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(_Wire, frozen=True):
    """Terms of which any may match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_Wire, frozen=True):
    """Required terms only; preferences are read by the placement engine when it scores them."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class PodAffinityTerms(_Wire, frozen=True):
    """Inter-pod (anti-)affinity: kept raw, only whether a hard rule exists is read today."""

    required: tuple[dict[str, Any], ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Wire, frozen=True):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinityTerms | None = None
    pod_anti_affinity: PodAffinityTerms | None = None


class TopologySpreadConstraint(_Wire, frozen=True):
    """``spec.topologySpreadConstraints[]``: only whether it is hard."""

    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"


class PersistentVolumeClaimSource(_Wire, frozen=True):
    """``volumes[].persistentVolumeClaim``."""

    claim_name: str = ""


class Volume(_Wire, frozen=True):
    """A volume that may tie a pod to nodes: a claim or a generic ephemeral volume."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class SchedulingGate(_Wire, frozen=True):
    """``spec.schedulingGates[]``."""

    name: str = ""


class SchedulingGroup(_Wire, frozen=True):
    """``spec.schedulingGroup`` (1.36 and later): the PodGroup, in the pod's namespace. Immutable."""

    pod_group_name: str = ""


class PodResourceClaim(_Wire, frozen=True):
    """``spec.resourceClaims[]``."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Wire, frozen=True):
    """``spec`` of a pod."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: ResourceRequirements | None = None
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    host_network: bool = False


class PodStatus(_Wire, frozen=True):
    """``status`` of a pod."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""


class Pod(_Wire, frozen=True):
    """A Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended and holds nothing on its node."""
        return self.status.phase in ("Succeeded", "Failed")


class NodeSpec(_Wire, frozen=True):
    """``spec`` of a node."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(_Wire, frozen=True):
    """``status`` of a node: what pods may use."""

    allocatable: dict[str, str | int | float] = {}


class Node(_Wire, frozen=True):
    """A Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplate(_Wire, frozen=True):
    """``spec.template`` of a Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class JobGangPolicy(_Wire, frozen=True):
    """``spec.scheduling.schedulingPolicy.gang``; no minCount means the Job's parallelism."""

    min_count: int | None = None


class JobSchedulingPolicy(_Wire, frozen=True):
    """``spec.scheduling.schedulingPolicy``: at most one of the two."""

    basic: dict[str, Any] | None = None
    gang: JobGangPolicy | None = None


class JobScheduling(_Wire, frozen=True):
    """``spec.scheduling`` (1.37 with the gate WorkloadWithJob; dropped by other servers)."""

    scheduling_policy: JobSchedulingPolicy | None = None
    scheduling_constraints: dict[str, Any] | None = None
    disruption_mode: dict[str, Any] | None = None
    resource_claims: tuple[dict[str, Any], ...] = ()


class JobSpec(_Wire, frozen=True):
    """``spec`` of a Job, with the server's defaults for what it leaves out."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    managed_by: str | None = None
    template: PodTemplate = PodTemplate()
    scheduling: JobScheduling | None = None


class JobStatus(_Wire, frozen=True):
    """``status`` of a Job."""

    conditions: tuple[Condition, ...] = ()


class Job(_Wire, frozen=True):
    """A Job."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def finished(self) -> bool:
        """Whether the Job has completed or failed for good."""
        return any(c.type in ("Complete", "Failed") and c.status == "True" for c in self.status.conditions)


class PriorityClass(_Wire, frozen=True):
    """A PriorityClass: only what a PodGroup copies from it."""

    metadata: ObjectMeta
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None
