"""How each component is started: pure functions from a spec, paths and ports to command lines.

Everything listens on 127.0.0.1 only. Each component has an identity of its own (a bearer token), so that the
audit log tells who did what as it would on a real cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.kubeconfig import Access
from cluster.paths import Layout
from cluster.pki import Pki
from cluster.spec import ClusterSpec, join
from cluster.state import write_private

HERE = Path(__file__).parent

#: Who the components are to the API server: user name and groups. kwok does what every kubelet may, on all
#: nodes.
IDENTITIES: Mapping[str, tuple[str, str]] = {
    "admin": ("kubernetes-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kwok": ("kwok", "system:masters"),
}

#: Ports a control plane needs, by what listens there.
PORTS = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

#: How long a node's lease is valid (kwok renews it four times as often) and how late it may be before the
#: node counts as not ready: long, since a busy machine delays everything, and a fake node never dies by
#: itself.
_LEASE_SECONDS = 120
_NODE_GRACE = "5m0s"

#: What touches nodes: the second annotates each, thousands of them for a good while.
_OF_NODES = ("node-lifecycle-controller", "ttl-controller")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the command lines are made of."""

    spec: ClusterSpec
    layout: Layout
    programs: Mapping[str, Path]
    ports: Mapping[str, int]
    pki: Pki
    tokens: Mapping[str, str] = field(default_factory=lambda: {name: secrets.token_urlsafe(24) for name in IDENTITIES})

    @property
    def server(self) -> str:
        """Where the API server answers."""
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"

    def access(self, identity: str) -> Access:
        """Return how ``identity`` reaches the API server."""
        return Access(server=self.server, ca=self.pki.ca.read_text(), token=self.tokens[identity])

    def kubeconfig(self, identity: str) -> Path:
        """Return where the kubeconfig of ``identity`` is."""
        return self.layout.kubeconfig if identity == "admin" else self.layout.data / f"{identity}.kubeconfig"

    def write_files(self) -> None:
        """Write all that the components read: tokens, kubeconfigs, audit policy."""
        rows = []
        for name, (user, groups) in IDENTITIES.items():
            rows.append(f'{self.tokens[name]},{user},{user},"{groups}"')
            self.access(name).write(self.kubeconfig(name), self.spec.name, name)
        write_private(self.layout.data / "tokens.csv", "\n".join(rows) + "\n")
        write_private(self.layout.data / "audit-policy.yaml", AUDIT_POLICY)

    def argv(self, component: str) -> list[str]:
        """Return the command line of a component, the spec's overrides merged in."""
        defaults = {
            "etcd": self._etcd,
            "kube-apiserver": self._apiserver,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
            "kwok": self._kwok,
        }[component]()
        return self.spec.argv(component, [str(self.programs[component]), *defaults])

    def _etcd(self) -> list[str]:
        client = f"http://127.0.0.1:{self.ports['etcd']}"
        peer = f"http://127.0.0.1:{self.ports['etcd-peer']}"
        return [
            f"--data-dir={self.layout.data / 'etcd'}",
            "--name=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}",
            # A cluster does not outlive its machine, so what fsync would save is worth nothing.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--log-level=warn",
        ]

    def _serving(self, component: str) -> list[str]:
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports[component]}",
            f"--tls-cert-file={self.pki.serving}",
            f"--tls-private-key-file={self.pki.serving_key}",
        ]

    def _apiserver(self) -> list[str]:
        runtime_config = self.spec.release.profiles[self.spec.profile].runtime_config
        return [
            *self._serving("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self.ports['etcd']}",
            f"--token-auth-file={self.layout.data / 'tokens.csv'}",
            # Also what makes the API server publish the CA that the other components look for.
            f"--client-ca-file={self.pki.ca}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--advertise-address=127.0.0.1",
            # No Service ever routes to this API server, and 127.0.0.1 may not be an endpoint.
            "--endpoint-reconciler-type=none",
            f"--service-account-issuer=https://kubernetes.default.svc.{self.spec.name}",
            f"--service-account-signing-key-file={self.pki.service_account_key}",
            f"--service-account-key-file={self.pki.service_account_public}",
            f"--audit-policy-file={self.layout.data / 'audit-policy.yaml'}",
            f"--audit-log-path={self.layout.audit_log}",
            # A test may read an entry as soon as its request is answered, and looks for all of them in one file: at
            # the server's own 100 MB, a quarter of an hour of load, it would begin another.
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=4000",
            # It taints new nodes until somebody reports them Ready, and without kwok nobody does.
            *([] if self.spec.kwok else ["--disable-admission-plugins=TaintNodesByCondition"]),
            *([f"--runtime-config={join(runtime_config)}"] if runtime_config else []),
        ]

    def _client(self, component: str) -> list[str]:
        path = self.kubeconfig(component)
        return [
            *self._serving(component),
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            # There is only one, and an election takes seconds.
            "--leader-elect=false",
        ]

    def _controller_manager(self) -> list[str]:
        off = ("node-ipam-controller", *(() if self.spec.kwok else _OF_NODES))
        return [
            *self._client("kube-controller-manager"),
            "--controllers=" + ",".join(("*", *(f"-{name}" for name in off))),
            "--use-service-account-credentials=true",
            # The default, 20 requests a second for each controller, would be what every test waits for: the
            # start takes five seconds longer, and a Job of 1000 pods a minute.
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            f"--service-account-private-key-file={self.pki.service_account_key}",
            f"--root-ca-file={self.pki.ca}",
            f"--cluster-signing-cert-file={self.pki.ca}",
            f"--cluster-signing-key-file={self.pki.ca_key}",
            f"--node-monitor-grace-period={_NODE_GRACE}",
        ]

    def _scheduler(self) -> list[str]:
        return self._client("kube-scheduler")

    def _kwok(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('kwok')}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--config={HERE / 'kwok' / 'node.yaml'}",
            f"--config={HERE / 'kwok' / 'pod.yaml'}",
            "--cidr=10.64.0.0/10",
            "--node-ip=127.0.0.1",
            f"--node-lease-duration-seconds={_LEASE_SECONDS}",
            f"--server-address=127.0.0.1:{self.ports['kwok']}",
        ]
