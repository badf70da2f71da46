from __future__ import annotations

import json
from pathlib import Path

from cluster.audit import AuditLog


def line(user: str, name: str, code: int = 201, subresource: str = "binding") -> str:
    event = {
        "verb": "create",
        "user": {"username": user},
        "userAgent": "me/1",
        "objectRef": {"resource": "pods", "namespace": "ns", "name": name, "subresource": subresource},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": "2026-01-01T00:00:00.250000Z",
        "stageTimestamp": "2026-01-01T00:00:01.500000Z",
    }
    return json.dumps({key: value for key, value in event.items() if value}) + "\n"


def log(tmp_path: Path, *lines: str) -> AuditLog:
    file = tmp_path / "audit.log"
    file.write_text("".join(lines))
    return AuditLog(file)


def test_what_a_line_says(tmp_path: Path) -> None:
    (event,) = log(tmp_path, line("system:serviceaccount:ns:sched", "a")).since()
    assert (event.resource, event.namespace, event.name, event.code) == ("pods/binding", "ns", "a", 201)
    assert event.account == "sched"
    assert event.succeeded
    assert event.is_write
    assert event.answered - event.received == 1.25


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    first, second = line("u", "a"), line("u", "b")
    audit = log(tmp_path, first, second[:30])
    events, mark = audit.read()
    assert [event.name for event in events] == ["a"]
    assert mark == len(first)
    with (tmp_path / "audit.log").open("a") as file:
        file.write(second[30:])
    events, mark = audit.read(mark)
    assert [event.name for event in events] == ["b"]
    assert mark == audit.mark()


def test_only_lines_with_a_sign_are_read(tmp_path: Path) -> None:
    audit = log(tmp_path, line("u", "a"), "no JSON at all\n", line("u", "b", subresource="status"))
    assert [event.name for event in audit.read(0, '"binding"')[0]] == ["a"]
    assert [event.name for event in audit.read(0, '"binding"', '"status"')[0]] == ["a", "b"]


def test_of_some_users(tmp_path: Path) -> None:
    audit = log(tmp_path, line("system:a", "a"), line("system:b", "system:a"))
    assert [event.name for event in audit.since(0, "system:a")] == ["a"]


def test_a_refusal_is_no_success(tmp_path: Path) -> None:
    (event,) = log(tmp_path, line("u", "a", code=409)).since()
    assert not event.succeeded
