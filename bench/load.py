"""The neutral client: creates what it is given, over a fixed number of connections, as fast as they carry it.

A process of its own, the same for all contenders: ``python -m bench.load PLAN``. It opens its connections, says
``ready``, begins when it is sent a line, and ends with one line of JSON. Requests are encoded beforehand and answers
are not decoded, since on a small machine every microsecond here is one that the scheduler and the server lack.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import ssl
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

#: Connections of the creator, for every contender with a scheduler.
CONNECTIONS = 48


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One POST.

    :param name: of the pod that it creates, if it does
    :param at: seconds after the start, not before which it is sent
    :param then: what is sent as soon as it is answered
    """

    path: str
    body: bytes
    name: str = ""
    at: float = 0
    then: Request | None = None


#: Requests that are sent at once; the next phase begins when all are answered.
Phase = list[Request]


class Binder(msgspec.Struct, frozen=True):
    """What binds pods that others create: each, when the watch shows it, to the next of these nodes."""

    namespace: str
    nodes: list[str]


class Plan(msgspec.Struct, frozen=True):
    """All that the process is told."""

    server: str
    ca: str
    token: str
    connections: int
    phases: list[Phase]
    binder: Binder | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What it says at its end: seconds from the first request to the last answer, and its own CPU seconds."""

    seconds: float
    cpu: float
    requests: int


class LoadError(Exception):
    """A request was not answered with success."""


class Connection:
    """One kept-alive HTTP/1.1 connection; one request at a time."""

    def __init__(self, plan: Plan) -> None:
        url = urllib.parse.urlsplit(plan.server)
        self._address = (url.hostname or "127.0.0.1", url.port or 443)
        self._ssl = ssl.create_default_context(cadata=plan.ca)
        self._head = (
            f"Host: {url.netloc}\r\nAuthorization: Bearer {plan.token}\r\nUser-Agent: bench-load\r\n"
            "Accept: application/json\r\nContent-Type: application/json\r\n"
        )
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect, and see that the server lets us in."""
        self._reader, self._writer = await asyncio.open_connection(*self._address, ssl=self._ssl, limit=2**24)
        await self._send("GET", "/version", b"")
        await self._answer("GET /version")

    def close(self) -> None:
        """End it, open or not."""
        if self._writer is not None:
            self._writer.close()

    async def post(self, request: Request) -> None:
        """Send a request and wait for its answer.

        :raises LoadError: if that is no success
        """
        await self._send("POST", request.path, request.body)
        await self._answer(f"POST {request.path}")

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Give the lines of an answer that does not end. No other request can follow."""
        await self._send("GET", path, b"")
        await self._status(f"GET {path}")
        rest = b""
        while chunk := await self._chunk():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line

    async def _send(self, method: str, path: str, body: bytes) -> None:
        assert self._writer is not None
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        await self._writer.drain()

    async def _status(self, what: str) -> tuple[int, bytes]:
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LoadError(f"{what}: the connection ended: {error!r}") from error
        return int(head[9:12]), head

    async def _answer(self, what: str) -> None:
        status, head = await self._status(what)
        body = b""
        if b"transfer-encoding: chunked" in head:
            while chunk := await self._chunk():
                body += chunk
        else:
            _, _, length = head.partition(b"content-length:")
            body = await self._reader.readexactly(int(length.split(b"\r\n", 1)[0] or 0))
        if not 200 <= status < 300:
            raise LoadError(f"{what}: {status} {body.decode(errors='replace')[:500]}")

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readline(), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


async def carry_out(plan: Plan) -> Outcome:
    """Open all connections, wait for the word, and send everything.

    :raises ExceptionGroup: of :class:`LoadError`, if any request was not answered with success
    """
    connections = [Connection(plan) for _ in range(plan.connections)]
    watch = Connection(plan)
    try:
        await asyncio.gather(*(connection.open() for connection in (*connections, watch)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        started, cpu = time.perf_counter(), time.process_time()
        if plan.binder is None:
            await _create(connections, plan.phases, started)
        else:
            await _create_and_bind(connections, watch, plan.phases, plan.binder)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    finally:
        for connection in (*connections, watch):
            connection.close()
    count = sum(1 + (request.then is not None) for phase in plan.phases for request in phase)
    return Outcome(seconds, cpu, count + (len(plan.binder.nodes) if plan.binder else 0))


async def _create(connections: list[Connection], phases: list[Phase], started: float) -> None:
    for phase in phases:
        requests = iter(phase)  # shared: each connection takes the next one
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(_post_all(connection, requests, started))


async def _post_all(connection: Connection, requests: Iterator[Request], started: float) -> None:
    for request in requests:
        if request.at and (early := started + request.at - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        await connection.post(request)
        if request.then is not None:
            await connection.post(request.then)


# -- pods that the Job controller makes ------------------------------------------------------------------------------


class _Metadata(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _Added(msgspec.Struct):
    type: str
    object: _Pod


async def _watch(connection: Connection, binder: Binder, due: asyncio.Queue[Request]) -> None:
    """Queue the bind of each pod that appears, until there are as many as nodes were given."""
    from bench.objects import binding

    nodes = iter(binder.nodes)
    left = len(binder.nodes)
    decoder = msgspec.json.Decoder(_Added)
    async for line in connection.lines(f"/api/v1/namespaces/{binder.namespace}/pods?watch=1&resourceVersion=0"):
        event = decoder.decode(line)
        if event.type == "ADDED":
            due.put_nowait(binding(event.object.metadata.name, next(nodes)))
            left -= 1
            if not left:
                return


async def _create_and_bind(
    connections: list[Connection], watch: Connection, phases: list[Phase], binder: Binder
) -> None:
    """Bind over half of the connections while the others still create, and over all of them after that."""
    due: asyncio.Queue[Request] = asyncio.Queue()
    numbers = itertools.count()

    async def bind(connection: Connection) -> None:
        # Each takes the number of its bind first, so that none waits for a bind that will never be.
        while next(numbers) < len(binder.nodes):
            await connection.post(await due.get())

    half = len(connections) // 2
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch(watch, binder, due))
        for connection in connections[half:]:
            tasks.create_task(bind(connection))
        await _create(connections[:half], phases, time.perf_counter())
        for connection in connections[:half]:
            tasks.create_task(bind(connection))


def main() -> None:
    """Carry out the plan in the file that is the argument."""
    plan = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    gc.freeze()
    gc.disable()  # nothing here is cyclic, and the process ends soon
    try:
        outcome = asyncio.run(carry_out(plan))
    except* (LoadError, OSError) as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        sys.exit(f"{first}")
    print(msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    main()
