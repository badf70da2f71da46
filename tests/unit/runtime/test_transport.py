"""What httpx cannot see of our transport: what becomes of its connections."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from runtime.transport import AiohttpTransport

from .pki import self_signed
from .things import until

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def never_says_goodbye(directory: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """A TLS server that begins an endless answer and then neither reads nor writes; its URL, and who trusts it."""
    certificate, key = self_signed()
    (directory / "cert").write_bytes(certificate)
    (directory / "key").write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "cert", directory / "key")
    kept: list[ssl.SSLSocket] = []

    def serve() -> None:
        connection, _ = listener.accept()
        answering = context.wrap_socket(connection, server_side=True)
        kept.append(answering)
        answering.recv(65536)
        answering.sendall(HEAD + b"2\r\n{}\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            trust = ssl.create_default_context(cadata=certificate.decode())
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", trust
        finally:
            thread.join()
            for connection in kept:
                connection.close()


def sockets_to(url: str) -> int:
    """How many sockets of this process are connected to that URL's port: the kernel's view."""
    port, found = httpx.URL(url).port, 0
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                found += copy.family == socket.AF_INET and copy.getpeername()[1] == port
        except OSError:
            continue  # closed meanwhile, or not connected
    return found


async def test_a_watch_given_up_leaves_no_socket(tmp_path: Path) -> None:
    """TLS would wait for the other side to say goodbye, longer than a process that stops can."""
    with never_says_goodbye(tmp_path) as (url, trust):
        async with httpx.AsyncClient(transport=AiohttpTransport(trust)) as client:
            async with client.stream("GET", url, timeout=httpx.Timeout(30, pool=None)) as response:
                assert await anext(response.aiter_bytes()) == b"{}"
                assert sockets_to(url) == 1
            await until(lambda: not sockets_to(url), seconds=5)
