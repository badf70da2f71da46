"""``scheduling.k8s.io/v1beta1`` (Kubernetes 1.37 with the gate GenericWorkload): wire form to hub and back.

The hub has this version's shape, so both ways are the models' own (de)serialisation.
"""

from __future__ import annotations

from typing import Any

from api.model import PodGroup, Workload

GROUP = "scheduling.k8s.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

#: What an operator does where the API server does not serve it.
REMEDIES = {
    API_VERSION: "turn on the feature gate GenericWorkload and serve scheduling.k8s.io/v1beta1 on the API server "
    "(--feature-gates=GenericWorkload=true --runtime-config=scheduling.k8s.io/v1beta1=true)"
}


def workload(data: bytes) -> Workload:
    """Decode a Workload.

    :raises pydantic.ValidationError: naming the field, when the object is not of this version's shape.
    """
    return Workload.model_validate_json(data)


def pod_group(data: bytes) -> PodGroup:
    """Decode a PodGroup.

    :raises pydantic.ValidationError: naming the field, when the object is not of this version's shape.
    """
    return PodGroup.model_validate_json(data)


def to_wire(obj: Workload | PodGroup) -> dict[str, Any]:
    """Return the object as it is sent: no unset fields, and no status, which has writes of its own."""
    body = obj.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"status"})
    return {"apiVersion": API_VERSION, "kind": type(obj).__name__, **body}
