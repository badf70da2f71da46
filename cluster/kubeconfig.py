"""Writes and reads kubeconfig files: one cluster, one user, one context."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ClusterError
from cluster.state import write_private


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server as somebody: a bearer token, or a client certificate and key (PEM)."""

    server: str
    ca: str
    token: str = ""
    certificate: str = ""
    key: str = ""

    def write(self, path: Path, cluster: str, user: str) -> None:
        """Write it as a kubeconfig, mode 0600."""
        who: dict[str, str] = {}
        if self.token:
            who["token"] = self.token
        if self.certificate:
            who["client-certificate-data"] = _encode(self.certificate)
            who["client-key-data"] = _encode(self.key)
        context = f"phalanx-{cluster}" if user == "admin" else f"phalanx-{cluster}-{user}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": f"phalanx-{cluster}",
                    "cluster": {"server": self.server, "certificate-authority-data": _encode(self.ca)},
                }
            ],
            "users": [{"name": context, "user": who}],
            "contexts": [{"name": context, "context": {"cluster": f"phalanx-{cluster}", "user": context}}],
            "current-context": context,
        }
        write_private(path, yaml.safe_dump(document, sort_keys=False))

    @classmethod
    def read(cls, path: Path) -> Access:
        """Read the current context of a kubeconfig whose credentials are in the file itself.

        :raises ClusterError: if it is not one
        """
        try:
            document = yaml.safe_load(path.read_text())
            context = _named(document["contexts"], document["current-context"])["context"]
            cluster = _named(document["clusters"], context["cluster"])["cluster"]
            user = _named(document["users"], context["user"])["user"]
            return cls(
                server=cluster["server"],
                ca=_decode(cluster["certificate-authority-data"]),
                token=user.get("token", ""),
                certificate=_decode(user.get("client-certificate-data", "")),
                key=_decode(user.get("client-key-data", "")),
            )
        except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise ClusterError(f"{path} is not a kubeconfig that Phalanx can use: {error!r}") from error


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((item for item in items if item["name"] == name), {})


def _encode(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


def _decode(data: str) -> str:
    return base64.b64decode(data).decode()
