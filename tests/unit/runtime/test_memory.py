from __future__ import annotations

import asyncio
import gc
import ssl
import sys
from asyncio import sslproto

import pytest

from runtime import memory


@pytest.mark.anyio
async def test_a_tls_connection_has_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what asyncio calls it; if it is called otherwise one day, this says so."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    memory.tune_tls()
    loop = asyncio.get_running_loop()
    made = sslproto.SSLProtocol(loop, asyncio.Protocol(), ssl.create_default_context(), None, server_hostname="host")
    view = made.get_buffer(-1)
    assert len(view) == memory.TLS_BUFFER
    assert sys.getsizeof(view.obj) <= 1.1 * memory.TLS_BUFFER
    made.connection_lost(None)


def test_what_was_imported_is_set_aside() -> None:
    before = gc.get_threshold()
    try:
        memory.tune_gc()
        assert gc.get_threshold() == memory.THRESHOLDS
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
