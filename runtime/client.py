"""The verbs of the Kubernetes API over one :class:`~runtime.exchange.Exchange`.

Objects go in as anything msgspec can encode, or as bytes, and come out as the type asked for; see
:func:`runtime.objects.decoder_for`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import anyio.lowlevel
import msgspec
import structlog

from runtime.errors import Unreadable, payload
from runtime.exchange import JSON, SLICE, Exchange
from runtime.objects import Key, Undecodable, decoder_for, peek
from runtime.resources import PODS, Resource

T = TypeVar("T")
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML

#: Seconds without a byte after which a watch counts as dead: bookmarks come about every 60 s.
WATCH_IDLE = 75.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    resource_version: str
    #: "" on the last page.
    continue_token: str = ""
    #: Keys and uids of objects that are there but that the decoder refused.
    undecodable: Mapping[Key, str] = field(default_factory=dict)


class _ListMeta(msgspec.Struct, gc=False):
    resourceVersion: str = ""  # noqa: N815 - the server's spelling
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, gc=False):
    metadata: _ListMeta
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_decode_list: Callable[[bytes], _List] = decoder_for(_List)


class Client(Exchange):
    """Typed requests; all raise :class:`~runtime.errors.ApiError`."""

    # -- reading --------------------------------------------------------------------------------------------------

    @overload
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: None = None,
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]: ...
    @overload
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: type[T] | Callable[[bytes], T] = ...,
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> T: ...
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        type: Any = None,  # noqa: A002 - reads best at the call
        *,
        subresource: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Read one object from the API server (not from a cache).

        :raises NotFound:
        """
        path = resource.path(namespace, name, subresource)
        return _read("GET", path, type, await self.request("GET", path, timeout=timeout))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        limit: int | None = 500,
        continue_token: str = "",
        resource_version: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        type: Any = None,  # noqa: A002
        timeout: float = 60.0,
    ) -> Page[Any]:
        """Read one page.

        :param resource_version: None or "" reads the newest state; another value means "not older than"
        :raises Gone: the continue token has expired: start again
        :raises Unreadable: the body is no list at all
        """
        params = _selectors(field_selector, label_selector)
        if limit:
            params["limit"] = str(limit)
        if continue_token:
            params["continue"] = continue_token
        elif resource_version:
            # Without the match, limit and a version together mean "exactly then": history, and soon 410.
            params |= {"resourceVersion": resource_version, "resourceVersionMatch": "NotOlderThan"}
        path = resource.path(namespace)
        body = await self.request("GET", path, params=params, timeout=timeout)
        try:
            envelope = _decode_list(body)
        except Undecodable as error:
            raise Unreadable(f"it is not a list: {error}", "GET", path) from error
        if not envelope.kind.endswith("List"):  # a Status, say, that came as a success
            raise Unreadable(f"it is not a list but a {envelope.kind or 'thing without a kind'}", "GET", path)
        decode, items = decoder_for(type), []
        undecodable: dict[Key, str] = {}
        slice_end = self.clock.monotonic() + SLICE
        for raw in envelope.items or ():
            try:
                items.append(decode(raw))
            except Undecodable as error:
                try:
                    meta = peek(raw).metadata
                except Undecodable as nothing:
                    raise Unreadable(f"an item of the list has no metadata: {nothing}", "GET", path) from error
                key = (meta.namespace, meta.name)
                undecodable[key] = meta.uid
                log.error("skipping an object that cannot be read", resource=resource.key, key=key, error=str(error))
            if self.clock.monotonic() > slice_end:
                await anyio.lowlevel.checkpoint()
                slice_end = self.clock.monotonic() + SLICE
        return Page(items, envelope.metadata.resourceVersion, envelope.metadata.continue_, undecodable)

    async def list_pages(self, resource: Resource, **options: Any) -> AsyncIterator[Page[Any]]:
        """Iterate over all pages; the options are those of :meth:`list_page`."""
        token = ""
        while True:
            page = await self.list_page(resource, continue_token=token, **options)
            yield page
            token = page.continue_token
            if not token:
                return

    async def list_all(self, resource: Resource, **options: Any) -> list[Any]:
        """Read a whole list; the options are those of :meth:`list_page`."""
        return [item async for page in self.list_pages(resource, **options) for item in page.items]

    async def watch_lines(
        self,
        resource: Resource,
        on_line: Callable[[bytes], None],
        *,
        resource_version: str,
        namespace: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        timeout_seconds: int | None = None,
        idle_timeout: float = WATCH_IDLE,
        on_open: Callable[[], None] | None = None,
    ) -> None:
        """Watch until the server ends the stream; bookmarks are asked for.

        :param on_line: called for each complete line, synchronously; what it raises ends the watch and is passed on
        :param on_open: called once when the server has accepted
        :param idle_timeout: seconds without a byte after which a half-open connection is given up
        :raises Unreachable: connection lost or idle; resume at the last version seen
        """
        params = _selectors(field_selector, label_selector)
        params |= {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        if timeout_seconds:
            params["timeoutSeconds"] = str(timeout_seconds)
        await self.stream(resource.path(namespace), params, on_line, idle_timeout=idle_timeout, on_open=on_open)

    # -- writing --------------------------------------------------------------------------------------------------

    async def _write(
        self,
        verb: str,
        path: str,
        body: object,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        type: Any = None,  # noqa: A002
        timeout: float = 30.0,
    ) -> Any:
        answer = await self.request(
            verb, path, params=params, body=payload(body), content_type=content_type, timeout=timeout
        )
        return _read(verb, path, type, answer)

    async def create(
        self,
        resource: Resource,
        body: object,
        namespace: str | None = None,
        *,
        type: Any = None,  # noqa: A002
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Any:
        """POST an object; the answer is what the server stored (fields it does not know are gone).

        :raises AlreadyExists:
        """
        params = _options(dry_run, field_manager)
        return await self._write("POST", resource.path(namespace), body, params=params, type=type)

    async def replace(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """PUT a whole object; with ``metadata.resourceVersion`` set, only over that version.

        :raises Conflict: it changed since
        """
        return await self._write("PUT", resource.path(namespace, name, subresource), body, type=type)

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        ops: Sequence[Mapping[str, Any]],
        subresource: str | None = None,
        *,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """RFC 6902; a failed ``test`` answers 422 :class:`~runtime.errors.Invalid`."""
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, ops, content_type=JSON_PATCH, type=type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        strategic: bool = False,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """Merge patch (lists are replaced whole), or strategic merge patch (core kinds only: lists merge by key)."""
        path = resource.path(namespace, name, subresource)
        content_type = STRATEGIC_PATCH if strategic else MERGE_PATCH
        return await self._write("PATCH", path, body, content_type=content_type, type=type)

    async def apply(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: object,
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        type: Any = None,  # noqa: A002
    ) -> Any:
        """Server-side apply: fields this manager set before and leaves out now are removed.

        :raises Conflict: another manager owns a field, unless ``force``
        """
        params = {"fieldManager": field_manager}
        if force:
            params["force"] = "true"
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, body, content_type=APPLY_PATCH, params=params, type=type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: str | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete one object, with ``uid`` only that one and not a later one of the same name.

        :param propagation: Background, Foreground or Orphan
        :param grace_period: seconds, pods only
        :raises NotFound:
        :raises Conflict: another uid is there now
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        path = resource.path(namespace, name)
        await self.request("DELETE", path, params=_options(dry_run), body=msgspec.json.encode(options))

    async def bind(self, namespace: str, name: str, uid: str, node: str, *, timeout: float = 30.0) -> None:
        """Bind a pod to a node, only while it is the pod of that uid.

        :raises Conflict: bound already, gated, terminating, or another uid
        """
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name, "namespace": namespace, "uid": uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
        )
        await self.request("POST", PODS.path(namespace, name, "binding"), body=body, timeout=timeout)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod through the API that honours PodDisruptionBudgets.

        :raises TooManyRequests: a budget allows no disruption now
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self.request("POST", PODS.path(namespace, name, "eviction"), body=msgspec.json.encode(body))


def _selectors(field_selector: str | None, label_selector: str | None) -> dict[str, str]:
    params = {}
    if field_selector:
        params["fieldSelector"] = field_selector
    if label_selector:
        params["labelSelector"] = label_selector
    return params


def _options(dry_run: bool, field_manager: str | None = None) -> dict[str, str]:
    params = {}
    if dry_run:
        params["dryRun"] = "All"
    if field_manager:
        params["fieldManager"] = field_manager
    return params


def _read(verb: str, path: str, type_: Any, body: bytes) -> Any:
    """Decode an answer.

    :raises Unreadable: a write may have been carried out
    """
    try:
        return decoder_for(type_)(body)
    except Undecodable as error:
        raise Unreadable(str(error), verb, path) from error
