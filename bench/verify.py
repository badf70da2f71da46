"""Proof that a run did what it was to do, from a final list of the whole cluster and the audit log.

A scheduler that is fast because it lost a pod, bound one twice, filled a node beyond what it has or started half a gang
must not win a bench.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.quantity import parse

Obj = Mapping[str, Any]

#: How many of one kind of mismatch are named.
_NAMED = 3


class MismatchError(Exception):
    """The outcome is not what was asked for; the message says in what way."""


def verify_bound(
    pods: Sequence[Obj], nodes: Sequence[Obj], *, namespace: str, groups: int, size: int, binds: Mapping[str, int]
) -> None:
    """See that all pods of a case are bound once, that no node is over its allocatable, and that all gangs are whole.

    :param pods: all pods of the cluster
    :param nodes: all its nodes
    :param namespace: where the pods of the case are, and nothing else
    :param groups: how many gangs there must be; pods without a group are each their own
    :param size: how many pods each must have
    :param binds: accepted binds by name of pod, as the API server logged them
    :raises MismatchError: if anything is not so
    """
    ours = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
    wrong = [
        *_count(ours, groups * size),
        *_unbound(ours, {node["metadata"]["name"] for node in nodes}),
        *_not_once(ours, binds),
        *_partial(ours, groups, size),
        *over_allocatable(pods, nodes),
    ]
    if wrong:
        raise MismatchError("; ".join(wrong))


def verify_refused(pods: Sequence[Obj], *, namespace: str, size: int, binds: Mapping[str, int]) -> None:
    """See that the pods of a gang that cannot fit are all there, and that none of them ever got a node.

    :raises MismatchError: if anything is not so
    """
    ours = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
    bound = [pod["metadata"]["name"] for pod in ours if pod["spec"].get("nodeName")]
    wrong = [*_count(ours, size), *_some("bound, and the gang cannot fit", [*bound, *binds])]
    if wrong:
        raise MismatchError("; ".join(wrong))


def over_allocatable(pods: Iterable[Obj], nodes: Iterable[Obj]) -> list[str]:
    """Return a line about nodes whose pods ask for more cores, memory or places than it has."""
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            used[pod["spec"]["nodeName"]].update(_requests(pod))
    over = []
    for node in nodes:
        allocatable, name = node["status"]["allocatable"], node["metadata"]["name"]
        over += [
            f"{name} ({resource}: {amount} of {have})"
            for resource, amount in used[name].items()
            if amount > (have := _amount(resource, allocatable.get(resource, 0)))
        ]
    return _some("nodes over their allocatable", over)


def _requests(pod: Obj) -> Counter[str]:
    total: Counter[str] = Counter(pods=1)
    for container in pod["spec"]["containers"]:
        for resource, quantity in container.get("resources", {}).get("requests", {}).items():
            total[resource] += _amount(resource, quantity)
    return total


def _amount(resource: str, quantity: str | int) -> int:
    """In thousandths of a core, or in whole units."""
    return parse(quantity, milli=resource == "cpu")


def _count(ours: Sequence[Obj], expected: int) -> list[str]:
    return [] if len(ours) == expected else [f"{len(ours)} pods are there instead of {expected}"]


def _unbound(ours: Sequence[Obj], nodes: set[str]) -> list[str]:
    unbound = [pod["metadata"]["name"] for pod in ours if not pod["spec"].get("nodeName")]
    nowhere = [pod["metadata"]["name"] for pod in ours if pod["spec"].get("nodeName", "") not in {"", *nodes}]
    return [*_some("pods not bound", unbound), *_some("pods bound to a node that is not there", nowhere)]


def _not_once(ours: Sequence[Obj], binds: Mapping[str, int]) -> list[str]:
    twice = [name for name, count in binds.items() if count > 1]
    unlogged = [p["metadata"]["name"] for p in ours if p["spec"].get("nodeName") and p["metadata"]["name"] not in binds]
    gone = sorted(set(binds) - {pod["metadata"]["name"] for pod in ours})
    return [
        *_some("pods bound more than once", twice),
        *_some("pods with a node, but no bind was logged", unlogged),
        *_some("pods bound that are not there any more", gone),
    ]


def _partial(ours: Sequence[Obj], groups: int, size: int) -> list[str]:
    members: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    for pod in ours:
        group = pod["spec"].get("schedulingGroup", {}).get("podGroupName") or pod["metadata"]["name"]
        members[group] += 1
        bound[group] += bool(pod["spec"].get("nodeName"))
    lines = [f"{name} ({bound[name]} of {size} bound)" for name in members if bound[name] != size]
    number = [] if len(members) == groups else [f"{len(members)} gangs are there instead of {groups}"]
    return [*number, *_some("gangs that are not whole", lines)]


def _some(what: str, which: Sequence[str]) -> list[str]:
    """Say how many there are, and name the first."""
    if not which:
        return []
    more = ", …" if len(which) > _NAMED else ""
    return [f"{len(which)} {what}: {', '.join(which[:_NAMED])}{more}"]
