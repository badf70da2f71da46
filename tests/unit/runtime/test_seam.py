"""The contract with kr8s: each private name the seam relies on, and what it is for."""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import kr8s
import kr8s.asyncio
import pytest
import yaml

import runtime.kr8s_seam
import runtime.kubeconfig
from runtime.client import Client
from runtime.clock import FakeClock, SystemClock
from runtime.errors import ConfigError, Forbidden, Unauthorized, Unreachable
from runtime.informer import Informer
from runtime.kr8s_seam import TOKEN_MAX_AGE, FastApi, connect
from runtime.resources import PODS
from runtime.transport import AiohttpTransport
from tests.unit.fakes.apiserver import FakeApiServer, Response, status

from .pki import self_signed
from .things import THINGS, Recorder, Thing, running, thing, until

pytestmark = pytest.mark.anyio


def kubeconfig(path: Path, url: str, **user: Any) -> Path:
    cluster = user.pop("cluster", {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "t1"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def serving(tmp_path: Path) -> tuple[ssl.SSLContext, bytes]:
    """A server's TLS context with a new certificate, and that certificate: its own authority."""
    certificate, key = self_signed()
    (tmp_path / "cert").write_bytes(certificate)
    (tmp_path / "key").write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    return context, certificate


def trusting(tmp_path: Path, url: str, authority: bytes) -> Path:
    """A kubeconfig that knows the server by this authority."""
    cluster = {"certificate-authority-data": base64.b64encode(authority).decode()}
    return kubeconfig(tmp_path / "config", url, token="t", cluster=cluster)


@asynccontextmanager
async def connected(server: FakeApiServer, tmp_path: Path, **user: Any) -> AsyncIterator[Client]:
    async with server.serve() as url:
        api = await connect(kubeconfig(tmp_path / "config", url, **user), user_agent="phalanx/test")
        try:
            yield Client(api, clock=SystemClock())
        finally:
            await api.aclose()


# -- names ------------------------------------------------------------------------------------------------------------


def test_it_stays_small() -> None:
    assert len(inspect.getsource(runtime.kr8s_seam).splitlines()) <= 150


def test_private_names_that_are_overridden_exist() -> None:
    for name in ("_create_session", "_check_version", "_construct_url"):
        theirs, ours = getattr(kr8s.asyncio.Api, name), getattr(FastApi, name)
        assert theirs is not ours
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    assert inspect.iscoroutinefunction(kr8s.asyncio.Api._create_session)
    assert inspect.iscoroutinefunction(kr8s.asyncio.Api._check_version)


def test_private_names_that_are_read_exist(tmp_path: Path) -> None:
    api = kr8s.asyncio.Api(bypass_factory=True, kubeconfig=str(tmp_path / "none"))
    assert api._session is None
    for name in ("_serviceaccount", "_user", "_cluster"):
        assert hasattr(api.auth, name)
    for name in ("token", "server", "active_context", "client_key_file", "client_cert_file", "server_ca_file", "proxy"):
        assert hasattr(api.auth, name)
    assert inspect.iscoroutinefunction(api.auth.ssl_context)
    assert inspect.iscoroutinefunction(api.auth.reauthenticate)
    parameters = inspect.signature(api.call_api).parameters
    assert {"method", "version", "base", "raise_for_status", "stream", "kwargs"} <= set(parameters)
    assert any(found is api for group in kr8s.asyncio.Api._instances.values() for found in group.values())


async def test_kr8s_never_hands_ours_to_others(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        gc.collect()
        registered = [api for group in kr8s.asyncio.Api._instances.values() for api in group.values()]
        assert client.api not in registered


async def test_connecting_asks_the_server_nothing(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        await client.api  # type: ignore[misc]
        assert server.requests == []


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["aiohttp", "kr8s"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PHALANX_TRANSPORT", request.param)
    return str(request.param)


@pytest.fixture
def our_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what kr8s's own transport cannot do: a bound on a whole exchange, and another TLS context."""
    monkeypatch.delenv("PHALANX_TRANSPORT", raising=False)


async def test_both_transports(server: FakeApiServer, tmp_path: Path, transport: str) -> None:
    async with connected(server, tmp_path) as client:
        assert isinstance(client.api._session._transport, AiohttpTransport) is (transport == "aiohttp")  # type: ignore[attr-defined]
        made = await client.create(THINGS, thing("a", color="red"), "ns")
        assert made["metadata"]["uid"]
        assert (await client.get(THINGS, "a", "ns", Thing)).spec.color == "red"
        assert server.requests[-1].path == "/apis/test.dev/v1/namespaces/ns/things/a", "no slash is added"
        assert server.tokens[-1] == "Bearer t1"
        seen = Recorder()
        informer = Informer(client, THINGS, Thing, clock=client.clock)
        informer.add_handler(seen)
        async with running(informer.run):
            await until(informer.synced.is_set)
            await until(lambda: server.watches)
            server.put(THINGS, thing("b"))
            await until(lambda: len(seen.events) == 2)
            server.end_watches("reset")
            server.put(THINGS, thing("c"))
            await until(lambda: len(seen.events) == 3)
        assert seen.summary == ["add a", "add b", "add c"]


async def test_refused_is_not_ambiguous_and_reset_is(server: FakeApiServer, tmp_path: Path, transport: str) -> None:
    async with connected(server, tmp_path) as client:
        server.fail("reset", verb="POST")
        with pytest.raises(Unreachable) as lost:
            await client.create(THINGS, thing("a"), "ns")
        assert lost.value.ambiguous
        assert len(server.seen("POST")) == 1, "a write is sent once"
    api = await connect(tmp_path / "config", user_agent="phalanx/test")
    with pytest.raises(Unreachable) as refused:
        await Client(api, clock=SystemClock()).create(THINGS, thing("a"), "ns")
    assert not refused.value.ambiguous
    assert refused.value.server == server.url
    await api.aclose()


async def test_a_silent_server_times_out(server: FakeApiServer, tmp_path: Path, transport: str) -> None:
    async with connected(server, tmp_path) as client:
        gate = asyncio.Event()

        async def hang(request: Any) -> Any:
            await gate.wait()
            return Response(200, {}, b"{}")

        server.handle = hang  # type: ignore[method-assign]
        with pytest.raises(Unreachable) as caught:
            await client.request("GET", THINGS.path(), timeout=0.05)
        gate.set()
        assert caught.value.ambiguous
        assert caught.value.status == 0


@pytest.mark.usefixtures("our_transport")
async def test_a_trickling_answer_is_bounded_as_a_whole(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:

        async def drip() -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        async def handle(request: Any) -> Any:
            return Response(200, {}, chunks=drip())

        server.handle = handle  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await client.request("GET", THINGS.path(), timeout=0.2)


async def test_many_at_once(server: FakeApiServer, tmp_path: Path) -> None:
    for n in range(60):
        server.put(PODS, {"metadata": {"name": f"p{n}", "namespace": "ns"}})
    async with connected(server, tmp_path) as client:
        await asyncio.gather(*(client.bind("ns", f"p{n}", "", "node") for n in range(60)))
    assert {o["spec"]["nodeName"] for o in server.objects[PODS.path()].values()} == {"node"}


async def test_a_server_below_a_path(server: FakeApiServer, tmp_path: Path, transport: str) -> None:
    async with server.serve() as url:
        api = await connect(kubeconfig(tmp_path / "config", f"{url}/clusters/one/"), user_agent="phalanx/test")
        server.fail(Response(200, {}, b"{}"))
        await Client(api, clock=SystemClock()).request("GET", THINGS.path(), params={"limit": "1"})
        await api.aclose()
    assert server.requests[-1].path == f"/clusters/one{THINGS.path()}"
    assert server.requests[-1].params == {"limit": "1"}


async def test_no_cookie_is_kept(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_TRANSPORT", raising=False)
    async with connected(server, tmp_path) as client:
        server.fail(Response(200, {"set-cookie": "a=b; Path=/"}, b"{}"))
        await client.request("GET", THINGS.path())
        assert not client.api._session.cookies  # type: ignore[attr-defined]
        assert not client.api._session.build_request("GET", THINGS.path()).headers.get("cookie")  # type: ignore[attr-defined]


# -- credentials ------------------------------------------------------------------------------------------------------


async def test_one_login_for_many_401s(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        logins = 0
        original = client.api.login

        async def login() -> None:
            nonlocal logins
            logins += 1
            kubeconfig(tmp_path / "config", server.url, token="t2")
            await original()

        client.api.login = login  # type: ignore[method-assign]

        def check(_request: Any) -> Response:
            if server.tokens[-1] == "Bearer t2":
                return Response(200, {}, b"{}")
            return status(401, "Unauthorized")

        server.fail(check, times=1000)
        await asyncio.gather(*(client.request("GET", THINGS.path("ns", f"x{n}")) for n in range(25)))
        assert logins == 1
        assert len(server.requests) <= 50


async def test_a_second_401_is_an_error(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        server.fail(status(401, "Unauthorized"), times=1000)
        with pytest.raises(Unauthorized):
            await client.request("GET", THINGS.path())
        assert len(server.requests) == 2


async def test_a_403_disturbs_nobody(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        lines: list[bytes] = []

        async def watch() -> None:
            await client.watch_lines(THINGS, lines.append, resource_version=str(server.version))

        async with running(watch):
            await until(lambda: server.watches)
            server.fail(status(403, "Forbidden", "exceeded quota: things"), verb="POST")
            session = client.api._session  # type: ignore[attr-defined]
            with pytest.raises(Forbidden):
                await client.create(THINGS, thing("a"), "ns")
            assert len(server.seen("POST")) == 1, "one attempt"
            assert client.api.generation == 1, "no login"
            assert client.api._session is session  # type: ignore[attr-defined]
            server.put(THINGS, thing("b"))
            await until(lambda: lines)
            assert len(server.seen("GET", watch=True)) == 1


async def test_a_watch_survives_stock_kr8s_calls_and_a_login(server: FakeApiServer, tmp_path: Path) -> None:
    async with connected(server, tmp_path) as client:
        lines: list[bytes] = []

        async def watch() -> None:
            await client.watch_lines(THINGS, lines.append, resource_version=str(server.version))

        async with running(watch):
            await until(lambda: server.watches)
            server.fail(status(403, "Forbidden", "no"), verb="POST", times=10)
            pod_class: Any = kr8s.asyncio.objects.Pod
            pod = pod_class({"metadata": {"name": "p", "namespace": "ns"}, "spec": {}}, api=client.api)
            with pytest.raises(kr8s.ServerError):
                await pod.create()
            await client.api.login()
            server.put(THINGS, thing("b"))
            await until(lambda: lines)
            assert len(server.seen("GET", watch=True)) == 1


async def test_inline_key_material_leaves_no_files(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    certificate, key = self_signed()
    encoded = {"client-certificate-data": certificate, "client-key-data": key}
    user: dict[str, Any] = {name: base64.b64encode(value).decode() for name, value in encoded.items()}
    user["cluster"] = {"certificate-authority-data": base64.b64encode(certificate).decode()}
    async with connected(server, tmp_path, **user) as client:
        await client.api.login()
        assert list((tmp_path / "tmp").iterdir()) == []


async def test_tls(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    context, certificate = serving(tmp_path)
    server.put(THINGS, thing("a"))
    async with server.serve(context) as url:
        for trust, works in ((certificate, True), (self_signed()[0], False)):
            cluster = {"certificate-authority-data": base64.b64encode(trust).decode()}
            config = kubeconfig(tmp_path / "config", url, token="t", cluster=cluster)
            api = await connect(config, user_agent="phalanx/test")
            client = Client(api, clock=SystemClock())
            if works:
                assert (await client.get(THINGS, "a", "ns", Thing)).metadata.name == "a"
            else:
                with pytest.raises(Unreachable, match=r"(?i)certificate") as caught:
                    await client.get(THINGS, "a", "ns")
                assert not caught.value.ambiguous
            await api.aclose()


@pytest.mark.usefixtures("our_transport")
async def test_a_login_takes_new_certificates_into_use(server: FakeApiServer, tmp_path: Path) -> None:
    context, certificate = serving(tmp_path)

    async with server.serve(context) as url:
        api = await connect(trusting(tmp_path, url, self_signed()[0]), user_agent="phalanx/test")
        client = Client(api, clock=SystemClock())
        trusting(tmp_path, url, certificate)
        await api.login()
        assert (await client.list_page(THINGS)).items == []
        await api.aclose()


@pytest.mark.usefixtures("our_transport")
async def test_a_new_certificate_authority_is_read_when_the_server_is_not_known(
    server: FakeApiServer, tmp_path: Path
) -> None:
    context, certificate = serving(tmp_path)

    async with server.serve(context) as url:
        api = await connect(trusting(tmp_path, url, self_signed()[0]), user_agent="phalanx/test")
        client = Client(api, clock=SystemClock())
        with pytest.raises(Unreachable, match=r"(?i)certificate") as caught:
            await client.list_page(THINGS)
        assert caught.value.untrusted
        trusting(tmp_path, url, certificate)
        await asyncio.gather(*(client.list_page(THINGS) for _ in range(10)))
        logins = api.generation
        await client.list_page(THINGS)
        assert api.generation == logins
        await api.aclose()


async def test_the_service_account_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    (tmp_path / "ca.crt").write_bytes(self_signed()[0])
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(runtime.kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    api = await connect(user_agent="phalanx/test", clock=clock)
    assert api.server == "https://10.0.0.1:443"
    assert isinstance(api._session, httpx.AsyncClient)
    headers = api._session.headers
    assert headers["authorization"] == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    clock.tick(TOKEN_MAX_AGE - 1)
    await api.refresh_token()
    assert headers["authorization"] == "Bearer first"
    clock.tick(2)
    await api.refresh_token()
    assert headers["authorization"] == "Bearer second"
    await api.aclose()


# -- kubeconfig -------------------------------------------------------------------------------------------------------


def broken(**changes: Any) -> str:
    document: dict[str, Any] = {
        "current-context": "ctx",
        "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://localhost:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    return json.dumps({**document, **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("a: [1", ["not YAML", "line"]),
        ("- list", ["not a mapping"]),
        (broken(contexts="x"), ["contexts is not a list"]),
        (broken(**{"current-context": ""}), ["current-context", "--context", "['ctx']"]),
        (broken(**{"current-context": "typo"}), ["'typo'", "--context", "['ctx']"]),
        (broken(contexts=[{"name": "ctx", "context": {"user": "u"}}]), ["contexts[ctx].context.cluster", "fill it in"]),
        (broken(clusters=[]), ["contexts[ctx].context.cluster names 'c'"]),
        (broken(users=[{"name": "w", "user": {}}]), ["contexts[ctx].context.user names 'u'", "['w']"]),
        (broken(clusters=[{"name": "c", "cluster": {"server": "h"}}]), ["clusters[c].cluster.server", "https://"]),
        (broken(clusters=[{"name": "c", "cluster": None}]), ["clusters[c].cluster.server"]),
        (broken(users=[{"name": "u", "user": {"client-key-data": "!!"}}]), ["users[u].user.client-key-data", "base64"]),
        (broken(users=[{"name": "u", "user": {"client-key-data": "aGk="}}]), ["client-key-data", "PEM"]),
        (broken(users=[{"name": "u", "user": {"client-key": "gone.pem"}}]), ["client-key points at gone.pem"]),
        (
            broken(users=[{"name": "u", "user": {"exec": {"command": "no-such-plugin"}}}]),
            ["exec.command 'no-such-plugin'", "PATH"],
        ),
        (broken(users=[{"name": "u", "user": {"username": "a", "password": "b"}}]), ["cannot log in", "password"]),
    ],
)
async def test_a_bad_kubeconfig_is_explained(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        await connect(path, user_agent="phalanx/test")
    for word in [str(path), *words]:
        assert word in str(caught.value)


async def test_a_missing_kubeconfig_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere does not exist; check --kubeconfig"):
        await connect("/nowhere", user_agent="phalanx/test")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(runtime.kubeconfig, "SERVICE_ACCOUNT", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no cluster to talk to.*pass --kubeconfig FILE"):
        await connect(user_agent="phalanx/test")


async def test_several_files_merge(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text(broken(users=[]))
    second.write_text(broken(**{"current-context": "other"}))
    api = await connect(f"{first}:{tmp_path / 'absent'}:{second}", user_agent="phalanx/test")
    assert api.server == "https://localhost:1"
    assert api.auth.token == "t"
    await api.aclose()
