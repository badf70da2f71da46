"""What an API server did not keep of an object it accepted.

A field behind a gate that is off is dropped in silence, with 201. So each answer to a create is compared with
what was sent, and what is missing is written on the object itself as an annotation: a JSON object from the
field of the group's template to its value, such as ``{"preemptionPolicy": "Never"}``. Nobody else could know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api import names
from api.model import PodGroup, PodGroupTemplateSpec, Workload
from api.v1beta1 import to_wire

Fields = Mapping[str, Any]


def template_of(obj: Workload | PodGroup) -> dict[str, Any]:
    """What makes up the group, in wire form: a PodGroup's own fields, or those of a Workload's template."""
    spec = to_wire(obj)["spec"]
    source = spec if isinstance(obj, PodGroup) else next(iter(spec.get("podGroupTemplates", ())), {})
    return {key: value for key, value in source.items() if key in _FIELDS}


_FIELDS = frozenset(field.alias for field in PodGroupTemplateSpec.model_fields.values() if field.alias is not None)


def dropped(sent: Workload | PodGroup, stored: Workload | PodGroup) -> dict[str, Any]:
    """Fields of the template that were sent and are not, or not wholly, in the answer."""
    kept = template_of(stored)
    return {key: value for key, value in template_of(sent).items() if not _covers(kept.get(key), value)}


def _covers(kept: Any, sent: Any) -> bool:
    """Whether all that was sent is there. A changed value counts as kept: a decision, not an omission."""
    if isinstance(sent, dict):
        return isinstance(kept, dict) and all(key in kept and _covers(kept[key], sent[key]) for key in sent)
    if isinstance(sent, list):
        return isinstance(kept, list) and len(kept) >= len(sent)
    return kept is not None


def annotation(fields: Fields) -> str:
    """The annotation's value; the same fields give the same text."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def recorded(obj: Workload | PodGroup) -> dict[str, Any]:
    """What was recorded as dropped from this object; nothing where the annotation is absent or unreadable."""
    try:
        fields = json.loads(obj.metadata.annotations.get(names.DROPPED_FIELDS_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def patch(obj: Workload | PodGroup, fields: Fields) -> list[dict[str, Any]]:
    """JSON patch that records ``fields`` on just this object."""
    key = names.DROPPED_FIELDS_ANNOTATION
    ops: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": obj.metadata.uid}]
    if obj.metadata.annotations:
        path = f"/metadata/annotations/{key.replace('/', '~1')}"
        ops.append({"op": "add", "path": path, "value": annotation(fields)})
    else:
        ops.append({"op": "add", "path": "/metadata/annotations", "value": {key: annotation(fields)}})
    return ops
