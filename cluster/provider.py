"""What makes a control plane, apart from what its users see.

A provider turns a spec into a reachable API server; :mod:`cluster.handle` does the rest the same way for all:
it claims the name, starts the supervisor, adds fake nodes, waits until the cluster is usable, and gives out a
``Cluster``. A new provider is a module with a class of this shape, and one line each in :func:`provider` and in
:data:`cluster.spec.NODES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cluster.errors import SpecError
from cluster.events import Report
from cluster.link import Link
from cluster.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A control plane that answers.

    :param kubernetes: its exact version
    :param kubeconfig: cluster administrator's; with the credentials in the file
    :param audit_log: where the API server writes it, if we know
    :param nodes: how many real nodes it has
    """

    kubernetes: str
    kubeconfig: Path
    kubectl: Path
    audit_log: Path | None = None
    ports: dict[str, int] = field(default_factory=dict)
    nodes: int = 0


class Provider(Protocol):
    """Makes control planes of one kind. Stateless: all it starts is registered with the link it is given."""

    @property
    def fake_nodes(self) -> bool:
        """Whether nodes are objects that kwok keeps alive, so that any number can be added."""
        ...

    def prepare(self, spec: ClusterSpec, report: Report) -> None:
        """Do what takes long and is kept for the next cluster (builds); nothing to undo if it fails.

        :raises UnavailableError: if this machine cannot have such a cluster
        """
        ...

    def start(self, spec: ClusterSpec, link: Link, report: Report) -> Endpoint:
        """Start the control plane: processes by ``link.run``, all else with a ``cleanup`` registered first.

        Returns when the API server answers ``/readyz`` and real nodes are Ready. On any error the caller ends what
        was started.
        """
        ...


def provider(name: str) -> Provider:
    """Return the provider called ``name``.

    :raises SpecError: if there is none
    """
    # Imported here: a provider may need what others do not.
    if name == "modules":
        from cluster.modules import Modules

        return Modules()
    if name == "kind":
        from cluster.kind.provider import Kind

        return Kind()
    if name == "existing":
        from cluster.existing import Existing

        return Existing()
    raise SpecError(f"there is no cluster provider {name!r}")
