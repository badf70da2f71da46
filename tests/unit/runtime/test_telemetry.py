from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runtime import telemetry
from runtime.telemetry import parse_traceparent, record_root, root_span_id, span, span_for, trace_id_for

UID = "0a1b2c3d-1111-4222-8333-444455556666"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=telemetry.id_generator())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.use_provider(provider)
    yield exporter
    telemetry.shutdown()


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_derived_ids() -> None:
    assert f"{trace_id_for(UID):032x}" == UID.replace("-", "")
    assert f"{root_span_id(UID):016x}" == hashlib.sha256(UID.encode()).hexdigest()[:16]


@given(st.text(max_size=40))
def test_derived_ids_are_valid_for_any_uid(uid: str) -> None:
    assert 0 < trace_id_for(uid) < 2**128
    assert 0 < root_span_id(uid) < 2**64


def test_nil_uid_has_a_valid_trace() -> None:
    assert trace_id_for("00000000-0000-0000-0000-000000000000") > 0


def test_without_an_exporter_spans_are_nothing() -> None:
    first, second = span_for(UID, "a", n=1), span("b")
    assert first is second, "one shared object, nothing allocated"
    with first as found:
        found.set_attribute("x", 1)
        assert not found.get_span_context().is_valid
    record_root(UID, "root", start=1, end=2)


def test_two_processes_make_one_trace(spans: InMemorySpanExporter) -> None:
    link = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with span_for(UID, "reconcile job", key="ns/train", links=(link, "junk")), span("create workload"):
        pass
    with span_for(UID, "cycle"):
        pass
    record_root(UID, "Job ns/train", start=10, end=20, pods=4)
    child, parent, cycle, root = spans.get_finished_spans()
    assert {s.context.trace_id for s in (child, parent, cycle, root)} == {trace_id_for(UID)}  # type: ignore[union-attr]
    assert parent.parent is not None
    assert parent.parent.span_id == root_span_id(UID) == root.context.span_id  # type: ignore[union-attr]
    assert child.parent.span_id == parent.context.span_id  # type: ignore[union-attr]
    assert cycle.parent.span_id == root.context.span_id  # type: ignore[union-attr]
    assert root.parent is None
    assert (root.start_time, root.end_time, dict(root.attributes or {})) == (10, 20, {"pods": 4})
    assert len(parent.links) == 1
    assert parent.context.span_id != root.context.span_id  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["", "00-x-y-z", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "a-b-c", "00-1-2-3"])
def test_malformed_traceparents(value: str) -> None:
    assert parse_traceparent(value) is None


def test_setup_traces_only_with_an_endpoint(monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    telemetry.setup("test")
    assert telemetry._State.tracer is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    telemetry.setup("test")
    assert telemetry._State.tracer is not None
    telemetry.shutdown()
    assert telemetry._State.tracer is None


def test_json_logs(monkeypatch: pytest.MonkeyPatch, logging_restored: None, spans: InMemorySpanExporter) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    telemetry.setup("test", json_logs=True)
    log = structlog.get_logger("x")
    with telemetry.log_context(reconcile_id=7), span_for(UID, "s"):
        log.info("bound", key=("ns", "train"), odd=frozenset())
    logging.getLogger("asyncio").warning("slow %s", "callback")
    log.debug("hidden")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    first, second, third = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert first["message"] == "bound"
    assert (first["key"], first["reconcile_id"], first["level"]) == ("ns/train", 7, "info")
    assert first["trace_id"] == UID.replace("-", "")
    assert second["message"] == "slow callback", "libraries log in the same format"
    assert "boom" in third["exception"]


def test_console_logs(monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    telemetry.setup("test", json_logs=False)
    structlog.get_logger("x").warning("caches are complete", key=("", "node-1"), objects=3)
    line = stderr.getvalue()
    assert "caches are complete" in line
    assert "key=node-1" in line
    assert "\x1b[" not in line, "no colours where nobody sees them"
