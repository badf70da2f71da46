"""The provider that makes nothing: a cluster that is there already, and stays as it is.

It is asked for its version and whether it answers. Down removes what Phalanx keeps of it on this machine, nothing in
the cluster itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from cluster import build, nodes, recipes
from cluster.client import Client
from cluster.errors import ClusterError, SpecError
from cluster.events import Report
from cluster.kubeconfig import Access
from cluster.link import Link
from cluster.provider import Endpoint
from cluster.spec import ClusterSpec
from cluster.state import write_private


class Existing:
    """See the module's description."""

    fake_nodes = False

    def prepare(self, spec: ClusterSpec, report: Report) -> None:
        """See to it that there is a kubeconfig, and a kubectl to read it with."""
        _kubeconfigs(spec)
        _kubectl(spec, report)

    def start(self, spec: ClusterSpec, link: Link, report: Report) -> Endpoint:
        """Take a copy of the kubeconfig's current context, and see whether the cluster is what it should be."""
        kubectl = _kubectl(spec, report)
        target = link.layout.kubeconfig
        write_private(target, _flattened(kubectl, _kubeconfigs(spec)))
        access = Access.read(target)
        if not (access.token or access.certificate):
            raise ClusterError(
                f"the current context of {_kubeconfigs(spec)} has neither a token nor a client certificate; "
                "Phalanx cannot use plugins and passwords"
            )
        with Client(access, timeout=15) as client:
            version = _version(client, access.server)
            minor = ".".join(version.split(".")[:2])
            if minor != spec.release.minor:
                raise ClusterError(
                    f"the cluster at {access.server} is Kubernetes {version}, not {spec.release.minor} as asked for"
                )
            count = len(nodes.list_nodes(client))
        # Which gates are on there is not for us to know.
        link.request(facts={"profile": "unknown"})
        return Endpoint(kubernetes=version, kubeconfig=target, kubectl=kubectl, nodes=count)


def _kubeconfigs(spec: ClusterSpec) -> str:
    """Return what stands for KUBECONFIG: one path, or several."""
    if spec.kubeconfig is not None:
        if not spec.kubeconfig.is_file():
            raise SpecError(f"there is no kubeconfig {spec.kubeconfig}")
        return str(spec.kubeconfig.absolute())
    if named := os.environ.get("KUBECONFIG"):
        return named
    raise SpecError("provider existing needs to be told which cluster: give --kubeconfig, or set KUBECONFIG")


def _kubectl(spec: ClusterSpec, report: Report) -> Path:
    if found := shutil.which("kubectl"):
        return Path(found)
    return build.ensure([recipes.kubernetes(spec.release)], report)["kubectl"]


def _flattened(kubectl: Path, kubeconfigs: str) -> str:
    """Return the current context as a kubeconfig of its own, with all that it names in it."""
    done = subprocess.run(
        [kubectl, "config", "view", "--raw", "--minify", "--flatten"],
        env=os.environ | {"KUBECONFIG": kubeconfigs},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"{kubeconfigs} is not a kubeconfig with a current context: {done.stderr.strip()}")
    return done.stdout


def _version(client: Client, server: str) -> str:
    """Return the version of an API server that is ready."""
    try:
        if client.raw("GET", "/readyz")[0] != 200:
            raise ClusterError(f"the API server at {server} is not ready")
        said = json.loads(client.raw("GET", "/version")[1])["gitVersion"]
    except (OSError, ValueError, KeyError) as error:
        raise ClusterError(f"no API server answers at {server}: {error}") from error
    match = re.match(r"v(\d+\.\d+\.\d+)", said)
    if match is None:
        raise ClusterError(f"the API server at {server} says it is version {said!r}")
    return match[1]
