"""As much of an API client as it takes to bring a cluster up: JSON over one kept-alive connection.

Not for use by anything that works *on* a cluster. One client is for one thread.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import tempfile
import urllib.parse
from types import TracebackType
from typing import Any

from cluster.errors import ApiError, ClusterError
from cluster.kubeconfig import Access


class Client:
    """Talks to one API server.

    :raises OSError: from :meth:`raw`, if it cannot be reached
    """

    def __init__(self, access: Access, timeout: float = 30) -> None:
        self._server = access.server
        url = urllib.parse.urlsplit(access.server)
        context = ssl.create_default_context(cadata=access.ca)
        if access.certificate:
            # The ssl module takes client certificates only from files.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
                pem.write(access.certificate + access.key)
                pem.flush()
                context.load_cert_chain(pem.name)
        self._connection = http.client.HTTPSConnection(
            url.hostname or "127.0.0.1", url.port, timeout=timeout, context=context
        )
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens a new one."""
        self._connection.close()

    def raw(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send one request and return status and body, whatever they are."""
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise ConnectionError(str(error)) from error

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send one request and return the object in the answer.

        :raises ApiError: for any status but 2xx
        :raises ClusterError: if the server cannot be reached
        """
        try:
            status, data = self.raw(method, path, body)
        except OSError as error:
            raise ClusterError(f"the API server at {self._server} does not answer: {error}") from error
        answer: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            answer = json.loads(data)
        if not 200 <= status < 300:
            raise ApiError(status, str(answer.get("message") or data.decode(errors="replace")[:300]))
        return answer
