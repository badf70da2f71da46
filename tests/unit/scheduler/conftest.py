from __future__ import annotations

from tests.unit.runtime.conftest import anyio_backend, clock, plain_logs, server

__all__ = ["anyio_backend", "clock", "plain_logs", "server"]
