"""What kind is told: its configuration for a spec. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster.components import AUDIT_POLICY
from cluster.errors import SpecError
from cluster.spec import ClusterSpec, join

#: Where the control-plane node sees the audit policy, and the cluster's folder of logs.
NODE_POLICY = "/etc/kubernetes/phalanx"
NODE_LOGS = "/var/log/phalanx"

_POLICY_FILE = "audit-policy.yaml"
_KUBEADM = "kubeadm.k8s.io/v1beta4"


def kind_name(cluster: str) -> str:
    """Return what kind, and with it the node containers, call a cluster of ours."""
    return f"phalanx-{cluster}"


def write(spec: ClusterSpec, data: Path, logs: Path) -> Path:
    """Write kind's configuration and all that it mounts; return the configuration's path.

    :param data: the folder to write to
    :param logs: where the audit log is to be, on this machine
    """
    policy = data / "node"
    policy.mkdir(parents=True, exist_ok=True)
    (policy / _POLICY_FILE).write_text(AUDIT_POLICY)
    # The API server appends to what is there: like this, the file belongs to whoever started the cluster.
    (logs / "audit.log").touch(mode=0o600)
    target = data / "kind.yaml"
    target.write_text(yaml.safe_dump(render(spec, policy, logs), sort_keys=False))
    return target


def render(spec: ClusterSpec, policy: Path, logs: Path) -> dict[str, Any]:
    """Return kind's configuration.

    :param policy: the folder with the audit policy, on this machine
    :param logs: the folder of the audit log, on this machine
    :raises SpecError: if the spec asks for what kind does not have
    """
    if flags := spec.flags.get("kwok"):
        raise SpecError(f"a kind cluster has real nodes and no kwok, so kwok cannot be given {', '.join(flags)}")
    mounts = [
        {"hostPath": str(policy), "containerPath": NODE_POLICY, "readOnly": True},
        {"hostPath": str(logs), "containerPath": NODE_LOGS},
    ]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": kind_name(spec.name),
        # Of nodes and kube-proxy; the control plane's are among its flags.
        "featureGates": spec.gates("*"),
        "networking": {"apiServerAddress": "127.0.0.1", "disableDefaultCNI": True},
        "kubeadmConfigPatches": [
            yaml.safe_dump(_cluster_configuration(spec), sort_keys=False),
            # The kubelet would not start where the kernel has only cgroup v1.
            yaml.safe_dump({"kind": "KubeletConfiguration", "failCgroupV1": False}),
        ],
        "nodes": [
            {"role": "control-plane", "extraMounts": mounts},
            *({"role": "worker"} for _ in range(spec.node_count)),
        ],
    }


def _cluster_configuration(spec: ClusterSpec) -> dict[str, Any]:
    """Return the patch of kubeadm's; a list in it takes the place of kind's, so it has what kind's has, too."""
    runtime_config = spec.release.profiles[spec.profile].runtime_config
    apiserver = [
        f"--audit-policy-file={NODE_POLICY}/{_POLICY_FILE}",
        f"--audit-log-path={NODE_LOGS}/audit.log",
        # A test may read an entry as soon as its request is answered.
        "--audit-log-mode=blocking",
        *([f"--runtime-config={join(runtime_config)}"] if runtime_config else []),
    ]
    # Kubernetes' default, 20 requests a second for each controller, is what tests would wait for.
    controller_manager = ["--enable-hostpath-provisioner=true", "--kube-api-qps=1000", "--kube-api-burst=2000"]
    volumes = [
        _volume("audit-policy", NODE_POLICY, read_only=True),
        _volume("audit-log", NODE_LOGS, read_only=False),
    ]
    return {
        "kind": "ClusterConfiguration",
        "apiVersion": _KUBEADM,
        "apiServer": {"extraArgs": _arguments(spec, "kube-apiserver", apiserver), "extraVolumes": volumes},
        "controllerManager": {"extraArgs": _arguments(spec, "kube-controller-manager", controller_manager)},
        "scheduler": {"extraArgs": _arguments(spec, "kube-scheduler", [])},
        # A cluster does not outlive its machine, so what fsync would save is worth nothing.
        "etcd": {"local": {"extraArgs": _arguments(spec, "etcd", ["--unsafe-no-fsync=true"])}},
    }


def _arguments(spec: ClusterSpec, component: str, defaults: list[str]) -> list[dict[str, str]]:
    """Return a component's flags as kubeadm takes them, the spec's merged in."""
    pairs = (flag.removeprefix("--").partition("=") for flag in spec.argv(component, defaults))
    return [{"name": name, "value": value if equals else "true"} for name, equals, value in pairs]


def _volume(name: str, path: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "name": name,
        "hostPath": path,
        "mountPath": path,
        "readOnly": read_only,
        "pathType": "DirectoryOrCreate",
    }
