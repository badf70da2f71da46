"""What the framework needs to know of an object, and how bytes become one.

A kind is a msgspec struct (hot core kinds), a pydantic model (our own kinds), plain ``dict``, or anything
for which the caller brings a ``Callable[[bytes], T]``. The framework itself reads only ``metadata``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from runtime.resources import Resource

#: (namespace, name); the namespace of a cluster-scoped object is "".
Key = tuple[str, str]


class Metadata(Protocol):
    """The four fields the framework reads."""

    @property
    def name(self) -> str | None:
        """Unique within namespace and kind."""

    @property
    def namespace(self) -> str | None:
        """Empty or None for cluster-scoped kinds."""

    @property
    def uid(self) -> str | None:
        """Unique for all time."""

    @property
    def resource_version(self) -> str | None:
        """Opaque, but ordered as a number within one resource."""


class Object(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> Any:
        """A :class:`Metadata`."""


T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=Object)


def key_of(obj: Object) -> Key:
    """The store key of an object."""
    metadata: Metadata = obj.metadata
    return metadata.namespace or "", metadata.name or ""


def reference(resource: Resource, obj: Object) -> dict[str, str]:
    """``v1 ObjectReference``: what an Event regards."""
    namespace, name = key_of(obj)
    metadata: Metadata = obj.metadata
    found = {"apiVersion": resource.api_version, "kind": resource.kind, "namespace": namespace, "name": name}
    return found | {"uid": metadata.uid or ""}


def controlled_by(resource: Resource, obj: Object) -> dict[str, Any]:
    """One entry of ``metadata.ownerReferences``: ``obj`` controls what carries it, which goes with it."""
    metadata: Metadata = obj.metadata
    identity = {"name": metadata.name or "", "uid": metadata.uid or ""}
    return {"apiVersion": resource.api_version, "kind": resource.kind, **identity, "controller": True}


class Meta(msgspec.Struct, gc=False, rename="camel", frozen=True):
    """The least that identifies an object, readable even when its kind's decoder refuses it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Peek(msgspec.Struct, gc=False, frozen=True):
    """An object reduced to :class:`Meta`."""

    metadata: Meta = Meta()


class Undecodable(Exception):  # noqa: N818
    """The bytes are an object, but not of the kind asked for."""


def decoder_for(type_: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """How to decode ``type_``: ``None`` or ``dict``, a msgspec struct, a pydantic model, or a callable on bytes.

    The function returned raises :class:`Undecodable`, whatever the library below raises.
    """
    if type_ is None or isinstance(type_, type):
        return _of_type(type_)
    return _of_callable(type_)  # not cached: it may be a method, and keep alive whose it is


@functools.lru_cache(maxsize=256)
def _of_type(type_: type | None) -> Callable[[bytes | msgspec.Raw], Any]:
    if type_ is not None and hasattr(type_, "model_validate_json"):
        return _of_callable(type_.model_validate_json)
    if type_ is not None and type_ is not dict and not issubclass(type_, msgspec.Struct):
        return _of_callable(type_)
    decode = msgspec.json.Decoder(dict[str, Any] if type_ in (None, dict) else type_).decode
    # The second for JSON that is nested without end.
    return _checked(decode, (msgspec.MsgspecError, RecursionError))


def _of_callable(fn: Callable[[bytes], Any]) -> Callable[[bytes | msgspec.Raw], Any]:
    return _checked(lambda data: fn(bytes(data)), (Exception,))


def _checked(
    decode: Callable[[Any], Any], expected: tuple[type[Exception], ...]
) -> Callable[[bytes | msgspec.Raw], Any]:
    def checked(data: bytes | msgspec.Raw) -> Any:
        try:
            return decode(data)
        except expected as error:
            raise Undecodable(str(error)) from error

    return checked


peek: Callable[[bytes | msgspec.Raw], Peek] = decoder_for(Peek)
