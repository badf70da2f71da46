"""The neutral client against a server that speaks HTTP the way Go's does: lengths, chunks, refusals, a watch."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import load
from bench.load import Binder, Connection, LoadError, Plan, Request
from tests.unit.runtime.pki import self_signed

pytestmark = pytest.mark.anyio


class Server:
    """Answers POSTs, chunked where they are pods, and shows each created Job as two pods to a watch."""

    def __init__(self) -> None:
        self.posts: list[str] = []
        self.tokens: set[str] = set()
        self.pods: asyncio.Queue[str] = asyncio.Queue()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await self._head(reader):
                method, path, _ = head[0].split(" ", 2)
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                self.tokens.add(headers["Authorization"])
                body = await reader.readexactly(int(headers["Content-Length"]))
                if body == b"end":
                    break
                if "watch=1" in path:
                    await self._watch(writer)
                writer.write(self._answer(method, path, body))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> list[str]:
        return (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            name = await self.pods.get()
            line = json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n"
            for part in (line[:10], line[10:]):  # a chunk is not always a line
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        if method == "GET":
            return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        self.posts.append(path)
        if body == b"bad":
            return b"HTTP/1.1 409 Conflict\r\nContent-Length: 7\r\n\r\nalready"
        if path.endswith("/jobs"):
            for i in range(2):
                self.pods.put_nowait(f"{body.decode()}-{i}")
        return b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[Server, Callable[..., Plan]]]:
    certificate, key = self_signed()
    (tmp_path / "c").write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "c")
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]

    def plan(*phases: list[Request], binder: Binder | None = None, connections: int = 4) -> Plan:
        return Plan(f"https://127.0.0.1:{port}", certificate.decode(), "secret", connections, list(phases), binder)

    try:
        yield server, plan
    finally:
        listening.close()


@pytest.fixture(autouse=True)
def _go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))


async def test_phases_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as (server, plan):
        phases = [[Request(f"/{phase}/{i}", b"{}") for i in range(20)] for phase in "ab"]
        outcome = await load.carry_out(plan(*phases))
    assert outcome.requests == 40
    assert server.connections == 4 + 1  # and one that would watch
    assert server.tokens == {"Bearer secret"}
    assert sorted(server.posts) == sorted(request.path for phase in phases for request in phase)
    assert {path[:2] for path in server.posts[:20]} == {"/a"}
    assert capsys.readouterr().out == "ready\n"


async def test_what_follows_comes_after(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, plan):
        requests = [Request(f"/pods/{i}", b"{}", then=Request(f"/bind/{i}", b"{}")) for i in range(10)]
        outcome = await load.carry_out(plan(requests))
    assert outcome.requests == 20
    assert all(server.posts.index(f"/pods/{i}") < server.posts.index(f"/bind/{i}") for i in range(10))


async def test_nothing_is_sent_before_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, plan):
        requests = [Request("/now", b"{}"), Request("/later", b"{}", at=0.05)]
        outcome = await load.carry_out(plan(requests))
    assert server.posts == ["/now", "/later"]
    assert outcome.seconds >= 0.05


async def test_a_refusal_ends_it_with_what_the_server_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, plan):
        with pytest.raises(BaseExceptionGroup) as caught:
            await load.carry_out(plan([Request("/pods", b"bad")]))
    found: BaseException = caught.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, LoadError)
    assert str(found) == "POST /pods: 409 already"


async def test_pods_that_others_create_are_bound_as_they_come(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, plan):
        jobs = [Request("/apis/batch/v1/namespaces/bench/jobs", f"j{i}".encode()) for i in range(3)]
        await load.carry_out(plan(jobs, binder=Binder("bench", [f"node-{i}" for i in range(6)])))
    bound = [path.split("/")[-2] for path in server.posts if path.endswith("/binding")]
    assert sorted(bound) == [f"j{i}-{k}" for i in range(3) for k in range(2)]


async def test_a_connection_that_ends_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, plan):
        connection = Connection(plan())
        await connection.open()
        with pytest.raises(LoadError, match="POST /x: the connection ended"):
            await connection.post(Request("/x", b"end"))
        connection.close()
