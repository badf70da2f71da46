"""What a pod takes from a node, as integers.

CPU in thousandths of a core, memory and storage in bytes, everything else in whole units; each pod also takes
one of the node's ``pods``. Semantics: upstream's effective requests with init and restartable init containers,
pod-level resources and overhead (KEP-753, KEP-2837).
"""

from __future__ import annotations

from collections.abc import Mapping

from api.quantity import MAX_VALUE, parse
from api.wire import Container, PodSpec

CPU = "cpu"
PODS = "pods"

Amounts = dict[str, int]


def amounts(quantities: Mapping[str, str | int | float]) -> Amounts:
    """Parse a map of quantities to integers."""
    return {name: parse(value, milli=name == CPU) for name, value in quantities.items()}


def of_pod(spec: PodSpec) -> Amounts:
    """Everything the pod needs from its node while it starts or runs, whichever is more."""
    running: Amounts = {PODS: 1}
    for container in spec.containers:
        _add(running, _of_container(container))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.init_containers:
        need = _of_container(container)
        if container.restart_policy == "Always":
            _add(sidecars, need)
            _raise_to(starting, sidecars)
        else:
            _add(need, sidecars)
            _raise_to(starting, need)
    _add(running, sidecars)
    _raise_to(running, starting)
    if spec.resources is not None:
        running.update(amounts({**spec.resources.limits, **spec.resources.requests}))
    _add(running, amounts(spec.overhead))
    return {name: min(value, MAX_VALUE) for name, value in running.items() if value > 0}


def _of_container(container: Container) -> Amounts:
    # The API server fills requests from limits at creation; static pods and old objects may lack that.
    resources = container.resources
    return amounts({**resources.limits, **resources.requests} if resources.limits else resources.requests)


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, value in floor.items():
        total[name] = max(total.get(name, 0), value)
