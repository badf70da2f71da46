"""Logs and traces.

One trace leads from the user's ``kubectl apply`` to the last bind without any annotation: its id is the
digits of the root object's uid and its root span id a hash of that, so every process derives the same two.
Without an exporter a span costs one attribute look-up.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import msgspec
import structlog
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

_NOTHING: AbstractContextManager[Span] = nullcontext(trace.INVALID_SPAN)
_MASK_64 = (1 << 64) - 1


class _State:
    """The tracer once :func:`setup` found an exporter; None otherwise."""

    tracer: trace.Tracer | None = None
    provider: Any = None


#: (trace id, span id) the next span must carry: how the derived root span itself is written.
_forced: ContextVar[tuple[int, int] | None] = ContextVar("forced_ids", default=None)


def trace_id_for(uid: str) -> int:
    """The hex digits of a Kubernetes uid as 128 bits; of any other text, a hash of it. Never 0."""
    digits = uid.replace("-", "")
    try:
        value = int(digits, 16) if len(digits) == 32 else 0
    except ValueError:
        value = 0
    return value or int.from_bytes(hashlib.sha256(b"trace:" + uid.encode()).digest()[:16], "big") or 1


def root_span_id(uid: str) -> int:
    """The first 8 bytes of sha256(uid). Never 0."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") or 1


def span(name: str, **attributes: Any) -> AbstractContextManager[Span]:
    """A span under the current one."""
    if _State.tracer is None:
        return _NOTHING
    return _State.tracer.start_as_current_span(name, attributes=attributes)


def span_for(uid: str, name: str, *, links: tuple[str, ...] = (), **attributes: Any) -> AbstractContextManager[Span]:
    """A span in the trace of ``uid``, under its derived root.

    :param links: W3C ``traceparent`` values to link to; malformed ones are ignored
    """
    if _State.tracer is None:
        return _NOTHING
    parent = SpanContext(
        trace_id_for(uid), root_span_id(uid), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    context = trace.set_span_in_context(NonRecordingSpan(parent))
    linked = [trace.Link(found) for found in map(parse_traceparent, links) if found is not None]
    return _State.tracer.start_as_current_span(name, context=context, attributes=attributes, links=linked)


def record_root(uid: str, name: str, *, start: int, end: int, **attributes: Any) -> None:
    """Write the derived root span itself: once, by the process that knows when the work is complete.

    :param start: nanoseconds since the epoch, as ``end``
    """
    if _State.tracer is None:
        return
    token = _forced.set((trace_id_for(uid), root_span_id(uid)))
    try:
        root = _State.tracer.start_span(
            name,
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            start_time=start,
            attributes=attributes,
        )
    finally:
        _forced.reset(token)
    root.end(end_time=end)


def parse_traceparent(value: str) -> SpanContext | None:
    """Read a W3C ``traceparent``; None when it is not one."""
    parts = value.strip().split("-")
    if len(parts) != 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None
    try:
        found = SpanContext(
            int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=TraceFlags(int(parts[3], 16))
        )
    except ValueError:
        return None
    return found if found.is_valid else None


def setup(
    service: str,
    *,
    otlp_endpoint: str | None = None,
    json_logs: bool | None = None,
    level: str = "INFO",
) -> None:
    """Configure logs, and traces if there is somewhere to send them.

    :param otlp_endpoint: base URL of an OTLP/HTTP collector; default ``$OTEL_EXPORTER_OTLP_ENDPOINT``
    :param json_logs: one JSON object a line; default: unless stderr is a terminal
    """
    _setup_logs(sys.stderr.isatty() is False if json_logs is None else json_logs, level)
    endpoint = otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint:
        _setup_traces(service, endpoint)


def shutdown() -> None:
    """Send what is buffered (blocks; the exporter's own time-outs bound it) and stop tracing."""
    provider, _State.provider, _State.tracer = _State.provider, None, None
    if provider is not None:
        provider.shutdown()


def use_provider(provider: Any) -> None:
    """Trace with this SDK provider; its id generator must be :func:`id_generator`'s for :func:`record_root` to hold."""
    _State.provider = provider
    _State.tracer = provider.get_tracer("phalanx")


def id_generator() -> Any:
    """An SDK id generator that obeys :func:`record_root`."""
    # The SDK takes 0.2 s to import: only when something is exported.
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Generator(RandomIdGenerator):
        def generate_span_id(self) -> int:
            forced = _forced.get()
            return forced[1] if forced else super().generate_span_id()

        def generate_trace_id(self) -> int:
            forced = _forced.get()
            return forced[0] if forced else super().generate_trace_id()

    return Generator()


def _setup_traces(service: str, endpoint: str) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}), id_generator=id_generator())
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use_provider(provider)


def _add_trace(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if _State.tracer is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            event["trace_id"] = f"{context.trace_id:032x}"
            event["span_id"] = f"{context.span_id:016x}"
    return event


def _readable_key(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    key = event.get("key")
    if isinstance(key, tuple):
        event["key"] = "/".join(str(part) for part in key if part)
    return event


def _setup_logs(json_logs: bool, level: str) -> None:
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _add_trace,
        _readable_key,
    ]
    render: list[structlog.typing.Processor]
    if json_logs:
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        render = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(serializer=_dump),
        ]
    else:
        shared.append(structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False))
        colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        # Not rich's tracebacks: one takes the event loop for a second.
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=48, exception_formatter=plain)]
    # Libraries log through the standard library: one format for all.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "aiohttp.access", "kr8s"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _dump(event: Any, **_options: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Add these fields to every log line of the block."""
    with structlog.contextvars.bound_contextvars(**values):
        yield
