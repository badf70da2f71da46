"""The one place that touches kr8s: its credentials and URLs, our connection and our way to renew a login.

kr8s replaces its session after any 401 or 403, which cuts running watches and loses answers of requests in flight. Here
the session lives as long as the process and only its Authorization header and TLS context change. Private names relied
on, each with a contract test: ``_instances``, ``_session``, ``_create_session``, ``_check_version``,
``_construct_url``, ``auth._serviceaccount``, ``auth._user``, ``auth._cluster``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import httpx
import kr8s.asyncio

from runtime import kubeconfig as config
from runtime.clock import Clock, SystemClock
from runtime.errors import ConfigError
from runtime.transport import AiohttpTransport, DirectClient

#: Seconds after which the projected ServiceAccount token is read again; the kubelet rotates it well before it expires.
TOKEN_MAX_AGE = 60.0


class FastApi(kr8s.asyncio.Api):
    """kr8s's Api with a session that is never replaced. Made by :func:`connect`; hold it, kr8s does not."""

    def __init__(self, *, user_agent: str, clock: Clock | None = None, **kwargs: Any) -> None:
        super().__init__(bypass_factory=True, **kwargs)
        # kr8s hands any registered Api to whoever asks for "the" Api: ours cannot exec or port-forward.
        for instances in kr8s.asyncio.Api._instances.values():
            for key in [key for key, api in instances.items() if api is self]:
                del instances[key]
        self._user_agent = user_agent
        self._clock = clock or SystemClock()
        self._transport: AiohttpTransport | None = None
        self._token_file: Path | None = None
        self._token_read = 0.0
        #: Counts logins, so that many 401s of one expiry lead to one login.
        self.generation = 0

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self.auth.server)

    async def _check_version(self) -> None:
        """kr8s would GET /version on every await and warn about versions newer than itself."""

    def _construct_url(self, version: str = "v1", base: str = "", namespace: str | None = None, url: str = "") -> str:
        # Whole paths: kr8s would add a slash to them. Made absolute, as httpx takes longest to join two halves.
        if base and not (version or namespace or url):
            return self.server.rstrip("/") + base
        return super()._construct_url(version, base, namespace, url)

    async def _create_session(self) -> None:
        """Make the session once; later calls (kr8s makes them after every 401 or 403) renew credentials in place."""
        context = await self.auth.ssl_context()  # type: ignore[no-untyped-call]
        self._forget_key_files()
        session = self._session
        if session is None or session.is_closed:
            headers = {
                "User-Agent": self._user_agent,
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # unzipping a page of pods costs as much as decoding it
            }
            options: dict[str, Any] = {"base_url": self.auth.server, "timeout": 30.0, "headers": headers}
            if os.environ.get("PHALANX_TRANSPORT") == "kr8s":
                session = httpx.AsyncClient(verify=context, proxy=self.auth.proxy, **options)
            else:
                self._transport = AiohttpTransport(context, proxy=self.auth.proxy)
                session = DirectClient(self._transport, **options)
            self._session = session
        elif self._transport is not None:
            self._transport.ssl_context = context
        if self.auth.token:
            session.headers["Authorization"] = f"Bearer {self.auth.token.strip()}"

    def _forget_key_files(self) -> None:
        """Delete the inline certificates and keys that kr8s wrote to temporary files; the TLS context has them."""
        auth = self.auth
        for section, field, attribute in (
            (auth._user, "client-key-data", "client_key_file"),
            (auth._user, "client-certificate-data", "client_cert_file"),
            (auth._cluster, "certificate-authority-data", "server_ca_file"),
        ):
            if section and field in section and (path := getattr(auth, attribute)):
                Path(str(path)).unlink(missing_ok=True)

    async def login(self) -> None:
        """Read the credentials (kubeconfig, exec plugin or ServiceAccount) and use them from the next request on."""
        await self.auth.reauthenticate()
        if not self.auth.active_context and self.auth.server:
            self._token_file = Path(self.auth._serviceaccount) / "token"
        self._token_read = self._clock.monotonic()
        await self._create_session()
        self.generation += 1

    async def refresh_token(self) -> None:
        """Pick up a rotated ServiceAccount token; one look at the clock unless it is due."""
        if self._token_file is None or self._clock.monotonic() - self._token_read < TOKEN_MAX_AGE:
            return
        self._token_read = self._clock.monotonic()  # first, so that concurrent requests do not all read it
        try:
            token = (await anyio.Path(self._token_file).read_text()).strip()
        except OSError:
            return  # being swapped: the one in use is good for a while, and a 401 reads it again
        if token and token != self.auth.token and self._session is not None:
            self.auth.token = token
            self._session.headers["Authorization"] = f"Bearer {token}"

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.aclose()


async def connect(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    user_agent: str,
    clock: Clock | None = None,
) -> FastApi:
    """Log in without asking the server anything.

    :param kubeconfig: file, or several joined by ``:``; default ``$KUBECONFIG``, ``~/.kube/config``, the ServiceAccount
    :raises ConfigError: naming the file, the field and the remedy
    """
    path = config.check_kubeconfig(kubeconfig, context)
    api = FastApi(
        user_agent=user_agent,
        clock=clock,
        kubeconfig=path,
        context=context,
        serviceaccount=str(config.SERVICE_ACCOUNT),
    )
    try:
        await api.login()
    except Exception as error:
        source = path or f"the ServiceAccount in {config.SERVICE_ACCOUNT}"
        text = f"missing {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        remedy = "try `kubectl get --raw /version` with the same file"
        raise ConfigError(f"cannot log in with {source}: {text}; {remedy}") from error
    return api
