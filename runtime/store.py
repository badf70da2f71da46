"""The local copy of one resource: what the reflector last heard, with indexes.

Objects are immutable and shared; a change is the replacement of one object by another. All methods are
synchronous and run on the event loop's thread, so that a reader between two awaits sees one consistent state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

import structlog

from runtime.objects import Key, Object, key_of

T = TypeVar("T", bound=Object)
EventType = Literal["add", "update", "delete"]
IndexFunction = Callable[[T], Iterable[Hashable]]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Change(NamedTuple, Generic[T]):
    """One difference between two states of the store.

    add: ``old`` is None. update: both. delete: ``old`` is the object the store held, which handlers saw
    last; ``new`` is its last state from the server, or None when the deletion was found out by listing.
    """

    type: EventType
    old: T | None
    new: T | None


class Store(Generic[T]):
    """Objects by (namespace, name), never mixing the states of two uids under one name."""

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}
        self._indexes: dict[str, _Index[T]] = {}

    # -- reading --------------------------------------------------------------------------------------------------

    def get(self, namespace: str | None, name: str) -> T | None:
        """The object of that name; namespace ``""`` or None for cluster-scoped kinds."""
        return self._objects.get((namespace or "", name))

    def get_key(self, key: Key) -> T | None:
        """The object of that key."""
        return self._objects.get(key)

    def values(self, namespace: str | None = None) -> list[T]:
        """All objects, or those of one namespace, as a list of its own."""
        if namespace is None:
            return list(self._objects.values())
        return [obj for (ns, _), obj in self._objects.items() if ns == namespace]

    def keys(self) -> Collection[Key]:
        """All keys, as a view that is good until the next await."""
        return self._objects.keys()

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    # -- indexes --------------------------------------------------------------------------------------------------

    def add_index(self, name: str, fn: IndexFunction[T]) -> None:
        """Keep ``fn(obj)`` as keys for :meth:`by_index`; ``fn`` must depend on the object alone.

        :raises ValueError: for a name that is taken
        """
        if name in self._indexes:
            raise ValueError(f"index {name!r} exists already")
        self._indexes[name] = _Index(name, fn)
        self._indexes[name].put_all(self._objects)

    def by_index(self, name: str, key: Hashable) -> list[T]:
        """The objects filed under ``key``, in no particular order.

        :raises KeyError: for an index nobody added
        """
        keys = self._indexes[name].keys.get(key)
        return [self._objects[k] for k in keys] if keys else []

    def index_keys(self, name: str) -> Collection[Hashable]:
        """The keys under which something is filed, as a view that is good until the next await."""
        return self._indexes[name].keys.keys()

    # -- changing (the reflector only) ----------------------------------------------------------------------------

    def put(self, obj: T) -> tuple[Change[T], ...]:
        """Take the new state of one object; nothing when it is not newer than what is held.

        Another uid under the same name is a deletion and an addition.
        """
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and _same(old, obj) and not _newer(obj, old):
            return ()
        self._set(key, obj)
        return _changes(old, obj)

    def remove_key(self, key: Key, last: T | None = None) -> tuple[Change[T], ...]:
        """Forget the object of that name; ``last`` is its last state, None when unknown or unreadable."""
        old = self._objects.pop(key, None)
        if old is None:
            return ()
        for index in self._indexes.values():
            index.drop(key)
        return (Change("delete", old, last if last is not None and _same(old, last) else None),)

    def replacement(self, objects: Iterable[T], keep: Mapping[Key, str] = {}) -> Generator[None, None, list[Change[T]]]:
        """Take a complete list as the truth, even an older one; the generator returns what differs, what is gone first.

        Others may run whenever it yields: they read the old state until its last step, and must not change it.

        :param keep: keys and uids of what exists on the server although no object is given: what is held of it stays
        """
        new: dict[Key, T] = {}
        for obj in objects:
            new[key_of(obj)] = obj
            yield
        for key, uid in keep.items():
            held = self._objects.get(key)
            if key not in new and held is not None and held.metadata.uid == uid:
                new[key] = held
            yield
        changes: list[Change[T]] = []
        for key, old in self._objects.items():
            if key not in new:
                changes.append(Change("delete", old, None))
            yield
        indexes = {name: index.empty() for name, index in self._indexes.items()}
        for key, obj in new.items():
            held = self._objects.get(key)
            if held is not None and _same(held, obj) and _version(held) == _version(obj):
                new[key] = held
            else:
                changes += _changes(held, obj)
            for index in indexes.values():
                index.put(key, new[key])
            yield
        for name in self._indexes.keys() - indexes.keys():  # added between two steps
            indexes[name] = self._indexes[name].empty()
            indexes[name].put_all(new)
        self._objects, self._indexes = new, indexes
        return changes

    def _set(self, key: Key, obj: T) -> None:
        self._objects[key] = obj
        for index in self._indexes.values():
            index.put(key, obj)


class _Index(Generic[T]):
    """Value -> the store keys filed under it, and back: an entry is dropped without asking the function again."""

    __slots__ = ("_filed", "_fn", "_name", "keys")

    def __init__(self, name: str, fn: IndexFunction[T]) -> None:
        self._name = name
        self._fn = fn
        self._filed: dict[Key, tuple[Hashable, ...]] = {}
        self.keys: dict[Hashable, dict[Key, None]] = {}

    def empty(self) -> _Index[T]:
        """Another one of the same name and function."""
        return _Index(self._name, self._fn)

    def put_all(self, objects: Mapping[Key, T]) -> None:
        for key, obj in objects.items():
            self.put(key, obj)

    def put(self, key: Key, obj: T) -> None:
        try:
            values = tuple(dict.fromkeys(self._fn(obj)))
        except Exception:
            log.exception("an index function failed; the object is not filed", index=self._name, key=key)
            values = ()
        before = self._filed.get(key, ())
        if values == before:
            return
        self._unfile(key, before)
        for value in values:
            self.keys.setdefault(value, {})[key] = None
        if values:
            self._filed[key] = values
        else:
            del self._filed[key]

    def drop(self, key: Key) -> None:
        self._unfile(key, self._filed.pop(key, ()))

    def _unfile(self, key: Key, values: Iterable[Hashable]) -> None:
        for value in values:
            filed = self.keys[value]
            del filed[key]
            if not filed:
                del self.keys[value]


def _same(a: Object, b: Object) -> bool:
    return bool(a.metadata.uid == b.metadata.uid)


def _version(obj: Object) -> str:
    return obj.metadata.resource_version or ""


def _newer(a: Object, b: Object) -> bool:
    """Resource versions of one resource are ordered as numbers; anything else counts as newer when it differs."""
    left, right = _version(a), _version(b)
    try:
        return int(left) > int(right)
    except ValueError:
        return left != right


def _changes(old: T | None, new: T) -> tuple[Change[T], ...]:
    if old is None:
        return (Change("add", None, new),)
    if _same(old, new):
        return (Change("update", old, new),)
    return (Change("delete", old, None), Change("add", None, new))
