"""An API server that only answers, fast enough not to be what is measured.

A bare ``asyncio.Protocol`` in a process of its own, on loopback, without TLS. It knows four answers: an endless watch
of pods (one HTTP chunk an event, as the real one sends them), an empty list, 201 for any POST, and ``/stats`` with the
CPU seconds it has used. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

#: Different pods in the stream; each comes again and again with a new resourceVersion.
PODS = 2000
#: Events handed to the socket at once.
BATCH = 16
FIRST_VERSION = 1_000_000_000
_VERSION = "0123456789"  # as long as a version is, so that the size of a chunk is known beforehand


def pod(number: int) -> dict[str, Any]:
    """A pod of an Indexed Job as a 1.37 API server shows it after its start: 6 to 10 kB, managedFields included."""
    name = f"train-{number // 100:02d}-{number % 100}-{number * 7919 % 99991:05x}"
    job = f"train-{number // 100:02d}"
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ]
    environment: list[dict[str, Any]] = [
        {"name": f"SETTING_{index}", "value": f"value-{index}-of-{job}"} for index in range(8 + number % 24)
    ]
    environment.append(
        {
            "name": "JOB_COMPLETION_INDEX",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}},
        }
    )
    labels = {
        "batch.kubernetes.io/controller-uid": f"{number // 100:08x}-5b1c-4c0e-9a55-6d1f0e8b7a11",
        "batch.kubernetes.io/job-completion-index": str(number % 100),
        "batch.kubernetes.io/job-name": job,
        "phalanx.dev/gang": "job",
        "team": "research",
    }
    container = {
        "name": "main",
        "image": "registry.example.com/research/train:2030.1.4@sha256:" + "3f" * 32,
        "command": ["python", "-m", "train", "--config", f"/data/configs/{job}.yaml", "--index", str(number % 100)],
        "env": environment,
        "resources": {
            "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
            "requests": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
        },
        "ports": [{"name": "rendezvous", "containerPort": 29500, "protocol": "TCP"}],
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2030-01-01T10:00:00Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "generateName": f"{job}-{number % 100}-",
            "namespace": f"team-{number % 20}",
            "uid": f"{number:08x}-1d2f-4a7e-8b0c-2f6a9c3d4e5f",
            "resourceVersion": _VERSION,
            "generation": 1,
            "creationTimestamp": "2030-01-01T10:00:00Z",
            "labels": labels,
            "annotations": {
                "batch.kubernetes.io/job-completion-index": str(number % 100),
                "cni.example.com/addresses": '{"eth0":["10.128.3.17"],"ib0":["192.168.40.17"],"ib1":["192.168.41.7"]}',
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": job,
                    "uid": labels["batch.kubernetes.io/controller-uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "managedFields": [_managed("kube-controller-manager", container), _managed("kubelet", container, "status")],
        },
        "spec": {
            "volumes": [
                {"name": "data", "nfs": {"server": "nfs.example.com", "path": "/export/data", "readOnly": True}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "200Gi"}},
                {
                    "name": "kube-api-access-x7k2p",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {
                                "configMap": {
                                    "name": "kube-root-ca.crt",
                                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                                }
                            },
                            {
                                "downwardAPI": {
                                    "items": [
                                        {
                                            "path": "namespace",
                                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                                        }
                                    ]
                                }
                            },
                        ],
                        "defaultMode": 420,
                    },
                },
            ],
            "initContainers": [{**container, "name": "fetch", "env": environment[:3], "ports": []}],
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "nodeSelector": {"accelerator": "h100"},
            "serviceAccountName": "train",
            "serviceAccount": "train",
            "nodeName": f"node-{number % 500:04d}",
            "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
            "schedulerName": "phalanx",
            "schedulingGroup": {"podGroupName": f"{job}-928b294e1317"},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
            ],
            "priority": 1000,
            "priorityClassName": "research",
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "hostIP": "10.0.3.17",
            "podIP": "10.128.3.17",
            "podIPs": [{"ip": "10.128.3.17"}],
            "startTime": "2030-01-01T10:00:00Z",
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"running": {"startedAt": "2030-01-01T10:00:07Z"}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example.com/research/train:2030.1.4",
                    "imageID": "registry.example.com/research/train@sha256:" + "3f" * 32,
                    "containerID": "containerd://" + "9a" * 32,
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }


def _managed(manager: str, container: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    if subresource:
        kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
        parts: dict[str, Any] = {"f:type": {}, "f:status": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}}
        conditions = {f'k:{{"type":"{kind}"}}': {".": {}, **parts} for kind in kinds}
        fields: dict[str, Any] = {
            "f:status": {"f:conditions": conditions, "f:containerStatuses": {}, "f:phase": {}, "f:podIPs": {}}
        }
    else:
        variables: dict[str, Any] = {
            f'k:{{"name":"{e["name"]}"}}': {".": {}, "f:name": {}, "f:value": {}} for e in container["env"]
        }
        parts = {"f:image": {}, "f:command": {}, "f:env": {".": {}, **variables}, "f:resources": {}, "f:name": {}}
        fields = {
            "f:metadata": {"f:labels": {".": {}}, "f:ownerReferences": {".": {}}, "f:generateName": {}},
            "f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}, **parts}}, "f:restartPolicy": {}},
        }
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2030-01-01T10:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return entry | ({"subresource": subresource} if subresource else {})


def compact(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def chunks() -> list[tuple[bytes, bytes]]:
    """What stands before and behind the resourceVersion of each event, HTTP chunk framing included."""
    made = []
    for number in range(PODS):
        line = compact({"type": "MODIFIED", "object": pod(number)}) + b"\n"
        before, after = line.split(_VERSION.encode())
        made.append((b"%x\r\n" % len(line) + before, after + b"\r\n"))
    return made


def response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nDate: Tue, 01 Jan 2030 10:00:00 GMT\r\n"
        b"Audit-Id: 8d1f6d0e-7c41-4f62-a7a1-0a7a9a3d7f10\r\nCache-Control: no-cache, private\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (status, len(body), body)
    )


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
CREATED = response(b"201 Created", compact({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}))
LIST = response(
    b"200 OK",
    compact({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "999999999"}, "items": []}),
)
VERSION = response(b"200 OK", compact({"major": "1", "minor": "35", "gitVersion": "v1.35.0"}))


class Stub(asyncio.Protocol):
    """One connection."""

    def __init__(self, events: list[tuple[bytes, bytes]]) -> None:
        self._events = events
        self._buffer = b""
        self._number = -1  # of the next event; negative: no watch
        self._paused = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(buffer) < end + 4 + size:
                break
            buffer = buffer[end + 4 + size :]
            self._answer(head.split(b"\r\n", 1)[0])
        self._buffer = buffer

    def _answer(self, line: bytes) -> None:
        if line.startswith(b"post"):
            self._transport.write(CREATED)
        elif b"watch=true" in line:
            self._transport.write(STREAM)
            self._number = 0
            self._pump()
        elif b"/stats" in line:
            self._transport.write(response(b"200 OK", compact({"cpu": time.process_time()})))
        else:
            self._transport.write(VERSION if b"/version" in line else LIST)

    def _pump(self) -> None:
        if self._paused or self._number < 0 or self._transport.is_closing():
            return
        parts: list[bytes] = []
        for number in range(self._number, self._number + BATCH):
            before, after = self._events[number % PODS]
            parts += (before, b"%d" % (FIRST_VERSION + number), after)
        self._number += BATCH
        self._transport.write(b"".join(parts))
        asyncio.get_running_loop().call_soon(self._pump)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._number = -1


async def main() -> None:
    events = chunks()
    sizes = [len(before) + len(after) for before, after in events]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(events), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    facts = {"port": port, "smallest": min(sizes), "mean": sum(sizes) // len(sizes), "largest": max(sizes)}
    print(json.dumps(facts), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
