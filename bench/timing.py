"""When a run began and ended: the API server's own times, from its audit log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from bench.verify import MismatchError
from cluster.audit import Audited

#: Texts of which each line that matters here has one.
SIGNS = ('"verb":"create"', '"subresource":"status"')

#: What the creator creates.
CREATED = frozenset({"pods", "podgroups", "workloads", "jobs"})


def first_create(events: Sequence[Audited], namespace: str) -> float:
    """Return when the first object of the case was asked for (seconds since the epoch).

    :raises MismatchError: if none was
    """
    created = [event.received for event in events if _created(event, namespace, CREATED)]
    if not created:
        raise MismatchError("the audit log shows no create")
    return min(created)


def binds(events: Sequence[Audited], namespace: str) -> dict[str, list[float]]:
    """Return when binds were accepted, by name of pod."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.resource == "pods/binding" and event.namespace == namespace and event.succeeded:
            found[event.name].append(event.answered)
    return dict(found)


def all_bound(events: Sequence[Audited], namespace: str) -> float:
    """Return the seconds from the first create received to the last bind answered."""
    answered = [moment for moments in binds(events, namespace).values() for moment in moments]
    if not answered:
        raise MismatchError("the audit log shows no bind")
    return max(answered) - first_create(events, namespace)


def verdict(events: Sequence[Audited], namespace: str) -> float:
    """Return the seconds from the last pod created to the first status of a group or a pod written after it.

    What was written before the gang was there was no verdict on it. That the status says "does not fit" is for the
    caller to see; the log does not have it.
    """
    created = [event for event in events if _created(event, namespace, {"pods"})]
    if not created:
        raise MismatchError("the audit log shows no create of a pod")
    last = max(created, key=lambda event: event.answered)
    told = [
        event.answered
        for event in events
        if event.resource in ("podgroups/status", "pods/status")
        and event.namespace == namespace
        and event.succeeded
        and event.received >= last.received
    ]
    if not told:
        raise MismatchError("the audit log shows no status")
    return max(0.0, min(told) - last.answered)


def group_latencies(events: Sequence[Audited], namespace: str, groups: Mapping[str, str]) -> list[float]:
    """Return for each group the seconds from its last pod's create received to its last bind answered.

    :param groups: the group of each pod, by names
    """
    created: defaultdict[str, float] = defaultdict(float)
    bound: defaultdict[str, float] = defaultdict(float)
    for event in events:
        # A create is logged without a name where the client leaves it to the server.
        if event.name in groups and _created(event, namespace, {"pods"}):
            created[groups[event.name]] = max(created[groups[event.name]], event.received)
    for name, moments in binds(events, namespace).items():
        if name in groups:
            bound[groups[name]] = max(bound[groups[name]], *moments)
    return [bound[group] - created[group] for group in created if group in bound]


def bind_counts(events: Sequence[Audited], namespace: str) -> Counter[str]:
    """Return how often each pod was bound."""
    return Counter({name: len(moments) for name, moments in binds(events, namespace).items()})


def _created(event: Audited, namespace: str, resources: frozenset[str] | set[str]) -> bool:
    return event.verb == "create" and event.resource in resources and event.namespace == namespace and event.succeeded
