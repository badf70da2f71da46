"""Writes that are safe to repeat.

A create may find the name taken by our own earlier attempt, by a stranger or by an object on its way out; a
lost answer says nothing about what happened. Both are settled by reading back, never by assuming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.client import Client
from runtime.errors import AlreadyExists, ApiError, NotFound, TerminalError
from runtime.resources import Resource

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Created:
    """Ours, by this call."""

    obj: Json


@dataclass(frozen=True, slots=True)
class Exists:
    """Ours already: from an earlier call, or from this one if its answer was lost.

    Its content may differ from the body.
    """

    obj: Json


@dataclass(frozen=True, slots=True)
class Foreign:
    """The name belongs to an object somebody else controls, or nobody: left alone."""

    obj: Json


@dataclass(frozen=True, slots=True)
class Terminating:
    """The name is held by an object in deletion: wait until it is gone. ``ours`` tells whose it is."""

    obj: Json
    ours: bool


Outcome = Created | Exists | Foreign | Terminating


def controller_uid(obj: Mapping[str, Any]) -> str | None:
    """The uid of the controlling owner of an object as decoded from JSON."""
    for owner in (obj.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid"))
    return None


async def create_owned(
    client: Client,
    resource: Resource,
    body: Mapping[str, Any],
    *,
    owner_uid: str | None = None,
    namespace: str | None = None,
) -> Outcome:
    """Create an object under its fixed name, with a controlling owner; see :func:`runtime.objects.controlled_by`.

    :param owner_uid: the owner's; that of the controlling owner in ``body`` if left out
    :param namespace: that of ``body`` if left out
    :raises ApiError: refused, or unknown whether it was carried out and not there (yet): try again later
    """
    metadata = body.get("metadata") or {}
    name, namespace = metadata.get("name"), namespace or metadata.get("namespace")
    owner_uid = owner_uid or controller_uid(body)
    if not name or not owner_uid:
        missing = "metadata.ownerReferences with a controller" if name else "metadata.name"
        raise TerminalError(f"create_owned needs {missing}; {resource.key} has none")
    tried_again = False
    while True:
        failure: ApiError
        try:
            return Created(await client.create(resource, body, namespace))
        except ApiError as error:
            if not (isinstance(error, AlreadyExists) or error.ambiguous):
                raise
            failure = error
        try:
            return _whose(await client.get(resource, name, namespace), owner_uid)
        except NotFound:
            # Gone between the two requests: free now. After a lost answer the create may still be under way:
            # no second one.
            if tried_again or not isinstance(failure, AlreadyExists):
                raise failure from None
            tried_again = True


def _whose(found: Json, owner_uid: str) -> Outcome:
    ours = controller_uid(found) == owner_uid
    if found["metadata"].get("deletionTimestamp"):
        return Terminating(found, ours)
    return Exists(found) if ours else Foreign(found)


_MEANING = ("type", "status", "reason", "message", "observedGeneration")


def same_condition(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two conditions say the same; times do not count, absent and empty are one."""
    return all((a.get(field) or "") == (b.get(field) or "") for field in _MEANING)


async def apply_condition(
    client: Client,
    resource: Resource,
    name: str,
    namespace: str | None,
    condition: Mapping[str, Any],
    field_manager: str,
    *,
    current: Mapping[str, Any] | None = None,
    uid: str | None = None,
    resource_version: str | None = None,
    force: bool = False,
) -> bool:
    """Set one condition by server-side apply on /status; use one field manager for each condition type.

    :param condition: type, status, reason, message (and observedGeneration); ``lastTransitionTime`` is set here
    :param current: the condition of that type as last seen, None if there is none; nothing is written when
        it says the same
    :param uid: refuse an object made again under the same name
    :param resource_version: refuse an object that changed since
    :returns: whether a request was made
    :raises Conflict: another manager owns a field of it
    :raises Invalid: the object of that name has another uid
    """
    if current is not None and same_condition(current, condition):
        return False
    wanted = {key: value for key, value in condition.items() if value is not None}
    if current is not None and current.get("status") == wanted.get("status") and current.get("lastTransitionTime"):
        wanted["lastTransitionTime"] = current["lastTransitionTime"]
    else:
        wanted["lastTransitionTime"] = rfc3339(client)
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if uid:
        metadata["uid"] = uid
    if resource_version:
        metadata["resourceVersion"] = resource_version
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "status": {"conditions": [wanted]},
    }
    await client.apply(resource, name, namespace, body, field_manager=field_manager, force=force, subresource="status")
    return True


def rfc3339(client: Client) -> str:
    """The client's wall clock as ``meta/v1 Time``: whole seconds, UTC."""
    return client.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
