"""The wire structs: what the garbage collector has to do with them."""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from api.wire import Job, Node, Pod
from bench.stub import pod


def _followed(obj: Any) -> list[Any]:
    """What the collector follows of an object and all that it refers to."""
    found, seen = [], {id(type(obj))}
    left = [obj]
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if gc.is_tracked(thing):
            found.append(thing)
        left += gc.get_referents(thing)
        left += [getattr(thing, name) for name in getattr(thing, "__struct_fields__", ())]
    return found


def test_the_collector_stops_following_what_was_read() -> None:
    """It would stand still for a tenth of a second in a cluster of thirty thousand pods."""
    claims = [{"name": "c", "resourceClaimName": "c"}]
    rules = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rules}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod(1)["spec"] | {"affinity": affinity}}
    job = {"metadata": {"name": "j"}, "spec": {"template": template}, "status": {"conditions": [{"type": "Complete"}]}}
    node = {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a"}]}, "status": {"allocatable": {"cpu": "8"}}}
    whole = pod(1)
    whole["spec"] |= {"affinity": affinity, "resourceClaims": claims, "schedulingGates": [{"name": "g"}]}
    made = [
        msgspec.json.decode(msgspec.json.encode(body), type=kind)
        for kind, body in ((Pod, whole), (Job, job), (Node, node))
    ]
    gc.collect()
    assert [_followed(each) for each in made] == [[], [], []]
