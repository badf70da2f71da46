"""The scheduler process."""

from __future__ import annotations

from api import names, v1beta1
from runtime.client import Client
from runtime.clock import Clock
from runtime.manager import Manager
from runtime.process import Program
from runtime.resources import JOBS, NODES, PODS
from scheduler.core.core import Core
from scheduler.shell import Shell
from scheduler.status import PODGROUPS


def program(scheduler_names: frozenset[str]) -> Program:
    """Return the scheduler of pods that name one of these."""

    def add_to(client: Client, clock: Clock, manager: Manager) -> None:
        Shell(client, clock, Core(scheduler_names)).add_to(manager)

    reads = (PODGROUPS, PODS, NODES, JOBS)
    return Program("phalanx-scheduler", names.SYSTEM_NAMESPACE, reads, v1beta1.REMEDIES, add_to)
