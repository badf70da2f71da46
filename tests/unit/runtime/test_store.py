from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from runtime.objects import Key, key_of
from runtime.store import Change, Store

from .things import Meta, Thing, local

KEY = ("ns", "a")


def replace(store: Store[Thing], objects: Iterable[Thing], keep: Mapping[Key, str] = {}) -> list[Change[Thing]]:
    """Take a list without a pause."""
    work = store.replacement(objects, keep)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("list[Change[Thing]]", end.value)


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


@pytest.mark.parametrize(("held", "offered", "newer"), [("b", "a", True), ("a", "b", True), ("a", "a", False)])
def test_versions_that_are_no_numbers_are_newer_when_they_differ(held: str, offered: str, newer: bool) -> None:
    store: Store[Thing] = Store()
    first, second = (Thing(Meta("a", "ns", "u", version)) for version in (held, offered))
    store.put(first)
    assert store.put(second) == ((Change("update", first, second),) if newer else ())
    assert store.get_key(KEY) is (second if newer else first)


def test_reading() -> None:
    store: Store[Thing] = Store()
    here, there, everywhere = local("a"), Thing(Meta("a", "other", "v", "1")), Thing(Meta("a", "", "w", "1"))
    assert list(store.keys()) == []
    for obj in (here, there, everywhere):
        store.put(obj)
    assert store.get_key(KEY) is store.get("ns", "a") is here
    assert store.get(None, "a") is store.get("", "a") is everywhere
    assert store.get("ns", "b") is store.get_key(("ns", "b")) is None
    assert store.values() == list(store) == [here, there, everywhere]
    assert store.values("other") == [there]
    assert store.values("") == [everywhere]
    assert list(store.keys()) == [KEY, ("other", "a"), ("", "a")]
    assert KEY in store
    assert ("ns", "b") not in store
    assert len(store) == 3


def test_the_same_state_listed_again_is_no_news() -> None:
    store: Store[Thing] = Store()
    held = local("a", rv=5)
    store.put(held)
    assert replace(store, [local("a", rv=5)]) == []
    assert store.get_key(KEY) is held
    assert replace(store, [local("a", uid="v", rv=5)])[0] == Change("delete", held, None), "the version says nothing"


def test_remove() -> None:
    store: Store[Thing] = Store()
    held, last = local("a", rv=1), local("a", rv=2)
    assert store.remove_key(KEY, held) == ()
    store.put(held)
    assert store.remove_key(KEY, last) == (Change("delete", held, last),)
    assert ("ns", "a") not in store
    store.put(held)
    stranger = local("a", uid="v", rv=3)
    assert store.remove_key(KEY, stranger) == (Change("delete", held, None),), "its last state is another object's"


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
    changes = replace(store, new, keep={("ns", "unreadable"): "u", ("ns", "never seen"): "w"})
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


def test_who_reads_between_two_steps_of_a_replacement_sees_the_old_state() -> None:
    store: Store[Thing] = Store()
    store.add_index("color", lambda o: [o.spec.color])
    old = [local("same", rv=1), local("changed", rv=1, color="red"), local("gone", rv=1), local("kept", rv=1)]
    for obj in old:
        store.put(obj)
    new = [local("same", rv=1), local("changed", rv=2, color="blue"), local("new", rv=2)]
    changes: list[Change[Thing]] = []

    def work() -> Generator[None, None, None]:
        changes.extend((yield from store.replacement(new, {("ns", "kept"): "u"})))

    steps = 0
    for _ in work():
        steps += 1
        if steps == 8:
            store.add_index("size", lambda o: [o.spec.size])
        assert list(store) == old
        assert [o.metadata.name for o in store.by_index("color", "red")] == ["changed"]
        assert store.by_index("color", "blue") == []
    assert steps >= len(old) + len(new), "it can be left after each object"
    assert changes == [
        Change("delete", old[2], None),
        Change("update", old[1], new[1]),
        Change("add", None, new[2]),
    ]
    assert {o.metadata.name: o for o in store} == {"same": old[0], "changed": new[1], "new": new[2], "kept": old[3]}
    assert store.get("ns", "same") is old[0], "shared with who has read it"
    assert store.by_index("color", "red") == []
    assert store.by_index("color", "blue") == [new[1]]
    assert {o.metadata.name for o in store.by_index("size", 0)} == {"same", "changed", "new", "kept"}


def test_an_index_added_between_any_two_steps_of_a_replacement_files_the_new_state() -> None:
    objects = [local("a", rv=2, color="new"), local("b", rv=2, color="new")]
    for moment in range(10):
        store: Store[Thing] = Store()
        store.put(local("a", rv=1, color="old"))
        for step, _ in enumerate(store.replacement(objects)):
            if step == moment:
                store.add_index("color", lambda o: [o.spec.color])
        if step < moment:
            break
        assert list(store.index_keys("color")) == ["new"]
        assert store.by_index("color", "new") == objects
    assert moment > 3


def test_a_replacement_that_is_given_up_changes_nothing() -> None:
    store: Store[Thing] = Store()
    store.put(local("a", rv=1))
    held = list(store)
    work = store.replacement([local("b", rv=2)])
    next(work)
    work.close()
    assert list(store) == held


def test_an_index_that_fails_files_nothing() -> None:
    store: Store[Thing] = Store()
    store.add_index("bad", lambda o: [1 // o.spec.size])
    with capture_logs() as logs:
        store.put(local("a", size=0))
    [line] = logs
    assert (line["index"], line["key"], line["exc_info"]) == ("bad", KEY, True)
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


def test_an_index_holds_what_was_there_before_it() -> None:
    store: Store[Thing] = Store()
    first, second = local("a", color="red"), local("b", color="blue")
    store.put(first)
    store.put(second)
    store.add_index("color", lambda o: [o.spec.color])
    assert store.by_index("color", "red") == [first]
    assert store.by_index("color", "blue") == [second]


def test_an_object_is_filed_again_after_it_was_not() -> None:
    store: Store[Thing] = Store()
    store.add_index("color", lambda o: [o.spec.color, o.spec.color] if o.spec.color else [])
    for rv, color in enumerate(["red", "", "red", "blue"], 1):
        store.put(local("a", rv=rv, color=color))
        assert [o.spec.color for o in store.by_index("color", "red")] == (["red"] if color == "red" else [])
    store.put(local("b", color="blue"))
    store.remove_key(KEY)
    assert [o.metadata.name for o in store.by_index("color", "blue")] == ["b"], "filed twice under one key is once"
    assert list(store.index_keys("color")) == ["blue"]


def test_values_is_a_copy() -> None:
    store: Store[Thing] = Store()
    store.put(local("a"))
    for obj in store.values():
        store.remove_key(key_of(obj))
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
            changes = list(store.remove_key(key_of(objects[0]), objects[0]))
        else:
            changes = replace(store, objects)
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
