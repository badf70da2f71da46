from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from runtime.objects import key_of
from runtime.store import Change, Store

from .things import Thing, local


def test_put_orders_by_version_within_a_uid() -> None:
    store: Store[Thing] = Store()
    first, second = local("a", rv=9), local("a", rv=10)
    assert store.put(first) == (Change("add", None, first),)
    assert store.put(first) == (), "a duplicate is nothing"
    assert store.put(second) == (Change("update", first, second),)
    assert store.put(first) == (), "9 is older than 10, also as text"
    assert store.get("ns", "a") is second
    other = local("a", uid="v", rv=3)
    assert store.put(other) == (Change("delete", second, None), Change("add", None, other))


def test_remove() -> None:
    store: Store[Thing] = Store()
    held, last = local("a", rv=1), local("a", rv=2)
    assert store.remove(held) == ()
    store.put(held)
    assert store.remove(last) == (Change("delete", held, last),)
    assert ("ns", "a") not in store
    store.put(held)
    stranger = local("a", uid="v", rv=3)
    assert store.remove(stranger) == (Change("delete", held, None),), "its last state is another object's"


def test_replace_is_the_truth_even_when_older() -> None:
    store: Store[Thing] = Store()
    for name in ("kept", "changed", "older", "gone", "again", "unreadable"):
        store.put(local(name, rv=5))
    new = [
        local("kept", rv=5),
        local("changed", rv=6),
        local("older", rv=4),
        local("again", uid="v", rv=7),
        local("new", rv=8),
    ]
    changes = store.replace(new, keep=[("ns", "unreadable"), ("ns", "never seen")])
    told = sorted((c.type, (c.new or c.old).metadata.name) for c in changes)  # type: ignore[union-attr]
    assert told == [
        ("add", "again"),
        ("add", "new"),
        ("delete", "again"),
        ("delete", "gone"),
        ("update", "changed"),
        ("update", "older"),
    ]
    assert {o.metadata.name for o in store} == {"kept", "changed", "older", "again", "new", "unreadable"}


def test_an_index_that_fails_files_nothing() -> None:
    store: Store[Thing] = Store()
    store.add_index("bad", lambda o: [1 // o.spec.size])
    with capture_logs() as logs:
        store.put(local("a", size=0))
    assert logs[0]["index"] == "bad"
    store.put(local("a", rv=2, size=1))
    assert [key_of(o) for o in store.by_index("bad", 1)] == [("ns", "a")]
    store.put(local("a", rv=3, size=0))
    assert list(store.index_keys("bad")) == []


def test_index_names() -> None:
    store: Store[Thing] = Store()
    store.add_index("x", lambda o: [])
    with pytest.raises(ValueError, match="'x' exists"):
        store.add_index("x", lambda o: [])
    with pytest.raises(KeyError):
        store.by_index("y", 1)
    assert store.by_index("x", "nothing") == []


def test_values_is_a_copy() -> None:
    store: Store[Thing] = Store()
    store.put(local("a"))
    for obj in store.values():
        store.remove(obj)
    assert store.values("ns") == []
    assert len(store) == 0


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "replace"]),
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("uv"), st.integers(0, 3)), min_size=1, max_size=3),
    ),
    max_size=12,
)


@given(operations)
def test_indexes_agree_with_a_scan_and_changes_replay(steps: list[tuple[str, list[tuple[str, str, int]]]]) -> None:
    store: Store[Thing] = Store()
    store.add_index("sizes", lambda o: range(o.spec.size))
    mirror: dict[tuple[str, str], Thing] = {}
    for version, (operation, descriptions) in enumerate(steps, 1):
        objects = [local(name, uid=uid, rv=version, size=size) for name, uid, size in descriptions]
        if operation == "put":
            changes = list(store.put(objects[0]))
        elif operation == "remove":
            changes = list(store.remove(objects[0]))
        else:
            changes = store.replace(objects)
        for change in changes:
            obj = change.new if change.type != "delete" else change.old
            assert obj is not None
            if change.type == "delete":
                assert mirror.pop(key_of(obj)) is obj
            else:
                assert (change.type == "add") == (key_of(obj) not in mirror)
                mirror[key_of(obj)] = obj
        assert {key_of(o): o for o in store} == mirror
        for size in range(3):
            expected = {k for k, o in mirror.items() if o.spec.size > size}
            assert {key_of(o) for o in store.by_index("sizes", size)} == expected
        assert set(store.index_keys("sizes")) == {n for o in mirror.values() for n in range(o.spec.size)}
