"""What the tests use to act on a cluster: requests as administrator, and the objects they speak about.

Apart from the product's own client on purpose: a fault in that one must not hide from the tests.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cluster.kubeconfig import Access

T = TypeVar("T")

Obj = dict[str, Any]

#: Path prefix of each resource we use.
PREFIXES = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "namespaces": "/api/v1",
    "configmaps": "/api/v1",
    "deployments": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "jobs": "/apis/batch/v1",
    "podgroups": "/apis/scheduling.k8s.io/v1beta1",
    "workloads": "/apis/scheduling.k8s.io/v1beta1",
    "events": "/apis/events.k8s.io/v1",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1",
}


def until(check: Callable[[], T], timeout: float = 30, what: str = "", every: float = 0.1) -> T:
    """Poll until ``check`` gives something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (result := check()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or check}"
        time.sleep(every)
    return result


class KubeError(Exception):
    """A refused request."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status = status


class Kube:
    """Requests to one API server, from any thread."""

    def __init__(self, kubeconfig: Path) -> None:
        access = Access.read(kubeconfig)
        url = urllib.parse.urlsplit(access.server)
        self._address = (url.hostname or "127.0.0.1", url.port or 443)
        self._context = ssl.create_default_context(cadata=access.ca)
        if access.certificate:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
                pem.write(access.certificate + access.key)
                pem.flush()
                self._context.load_cert_chain(pem.name)
        self._headers = {"Accept": "application/json"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def __enter__(self) -> Kube:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of all threads."""
        while self._connections:
            self._connections.pop().close()
        self._local = threading.local()

    def connect(self, timeout: float = 60) -> http.client.HTTPSConnection:
        """A connection of one's own."""
        return http.client.HTTPSConnection(*self._address, timeout=timeout, context=self._context)

    def open(self, path: str, timeout: float) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        """Begin a GET whose answer is read as it comes."""
        connection = self.connect(timeout)
        connection.request("GET", path, headers=self._headers)
        return connection, connection.getresponse()

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Obj:
        """One request; the object in the answer.

        :raises KubeError: for any status but 2xx
        :raises OSError: without an answer
        """
        data = None if body is None else json.dumps(body).encode()
        fresh = not hasattr(self._local, "connection")
        try:
            status, answer = self._send(method, path, data, content_type)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            # A kept connection may have been closed meanwhile; what was not answered is sent again if it can be.
            if fresh or method == "POST":
                raise ConnectionError(f"{method} {path}: {error!r}") from error
            status, answer = self._send(method, path, data, content_type)
        try:
            result: Obj = json.loads(answer)
        except ValueError:
            result = {"message": answer.decode(errors="replace")}
        if not 200 <= status < 300:
            raise KubeError(method, path, status, str(result.get("message")))
        return result

    def _send(self, method: str, path: str, data: bytes | None, content_type: str) -> tuple[int, bytes]:
        if not hasattr(self._local, "connection"):
            self._local.connection = self.connect()
            self._connections.append(self._local.connection)
        connection: http.client.HTTPSConnection = self._local.connection
        sock = connection.sock
        if sock is not None and (sock.fileno() < 0 or select.select([sock], [], [], 0)[0]):
            connection.close()  # the server has ended it meanwhile; a new one is opened
        connection.request(method, path, data, {**self._headers, "Content-Type": content_type})
        response = connection.getresponse()
        return response.status, response.read()

    def _drop(self) -> None:
        if hasattr(self._local, "connection"):
            self._local.connection.close()
            del self._local.connection

    # --- verbs ------------------------------------------------------------------------------------------

    def get(self, resource: str, name: str, namespace: str | None = None) -> Obj:
        return self.request("GET", path(resource, namespace, name))

    def find(self, resource: str, name: str, namespace: str | None = None) -> Obj | None:
        """The object, or None."""
        try:
            return self.get(resource, name, namespace)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def list(self, resource: str, namespace: str | None = None, **selectors: str) -> list[Obj]:
        """All objects; ``selectors``: labelSelector, fieldSelector."""
        query = f"?{urllib.parse.urlencode(selectors)}" if selectors else ""
        items: list[Obj] = self.request("GET", path(resource, namespace) + query)["items"]
        return items

    def create(self, resource: str, body: Obj, namespace: str | None = None, *, dry_run: bool = False) -> Obj:
        return self.request("POST", path(resource, namespace) + ("?dryRun=All" if dry_run else ""), body)

    def patch(self, resource: str, name: str, namespace: str | None, body: Obj, subresource: str = "") -> Obj:
        """Merge patch."""
        where = path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", where, body, "application/merge-patch+json")

    def delete(self, resource: str, name: str, namespace: str | None = None, **options: Any) -> None:
        """Delete; gone already is fine. ``options``: those of DeleteOptions."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        try:
            self.request("DELETE", path(resource, namespace, name), body)
        except KubeError as error:
            if error.status != 404:
                raise

    def clear(self, resource: str, namespace: str, **options: Any) -> None:
        """Delete all objects of a resource in a namespace."""
        self.request("DELETE", path(resource, namespace), {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    # --- what tests do often ----------------------------------------------------------------------------

    def finish(self, namespace: str, names: Iterable[str], how: str = "succeeded") -> None:
        """Let pods end; ones that are gone are passed over."""
        for name in names:
            try:
                self.patch("pods", name, namespace, {"metadata": {"annotations": {"phalanx.dev/finish": how}}})
            except KubeError as error:
                if error.status != 404:
                    raise

    def bound(self, namespace: str, **selectors: str) -> list[str]:
        """Names of the pods that have a node, the ended ones included."""
        pods = self.list("pods", namespace, **selectors)
        return sorted(pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName"))

    def cordon(self, node: str, on: bool = True) -> None:
        self.patch("nodes", node, None, {"spec": {"unschedulable": on or None}})

    def events_about(self, namespace: str, kind: str, name: str) -> list[Obj]:
        """Events regarding one object."""
        events = self.list("events", namespace)
        return [e for e in events if (e["regarding"]["kind"], e["regarding"]["name"]) == (kind, name)]


def path(resource: str, namespace: str | None = None, name: str = "") -> str:
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{PREFIXES[resource]}{inside}/{resource}" + (f"/{name}" if name else "")


# --- objects --------------------------------------------------------------------------------------------


def pod(
    name: str,
    *,
    cpu: str = "1",
    memory: str = "128Mi",
    group: str | None = None,
    scheduler: str = "phalanx",
    selector: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Obj:
    whole: Obj = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}},
        ],
        **spec,
    }
    if group is not None:
        whole["schedulingGroup"] = {"podGroupName": group}
    if selector:
        whole["nodeSelector"] = dict(selector)
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def pod_group(name: str, minimum: int, **spec: Any) -> Obj:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec},
    }


def job(
    name: str,
    parallelism: int,
    *,
    completions: int | None = None,
    cpu: str = "1",
    memory: str = "128Mi",
    selector: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    indexed: bool = True,
    **spec: Any,
) -> Obj:
    template: Obj = {
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}},
        ],
    }
    if selector:
        template["nodeSelector"] = dict(selector)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "parallelism": parallelism,
            "completions": parallelism if completions is None else completions,
            "template": {"spec": template},
            **spec,
        },
    }


def node(name: str, *, cpu: str = "8", memory: str = "32Gi", pods: int = 110, labels: Mapping[str, str]) -> Obj:
    """A fake node; `Cluster.add_nodes` numbers its own, which is for one thread at a time."""
    offers = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, **labels},
        },
        "status": {"capacity": offers, "allocatable": offers},
    }


def condition(obj: Obj, type_: str) -> Obj | None:
    found = [c for c in obj.get("status", {}).get("conditions") or () if c["type"] == type_]
    return found[0] if found else None


def initially_scheduled(group: Obj | None) -> tuple[str, str, str]:
    """Status, reason and message of a PodGroup's condition; empty where there is none."""
    found = condition(group, "PodGroupInitiallyScheduled") if group else None
    return (found["status"], found["reason"], found.get("message", "")) if found else ("", "", "")
