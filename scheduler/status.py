"""Writes the conditions the core decided: the latest for each object, retried until it stands or is moot.

A condition is compared with the one last seen and written only where it says something else, so a restarted
scheduler repeats nothing. Objects that are gone or made again are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from api import conditions, v1beta1
from api.model import PodGroup
from api.wire import Condition, Pod
from runtime.client import Client
from runtime.clock import Clock
from runtime.controller import Controller, Result
from runtime.errors import Conflict, NotFound
from runtime.informer import Informer
from runtime.resources import PODS, Resource
from runtime.store import EventType
from runtime.workqueue import RateLimitingQueue
from runtime.writes import apply_condition
from scheduler.core.instructions import Bind, SetGroupCondition, SetPodCondition

PODGROUPS = Resource(v1beta1.GROUP, v1beta1.VERSION, "podgroups", "PodGroup")

#: One field manager per condition type, as server-side apply wants it.
GROUP_MANAGER = "phalanx-scheduler-initially-scheduled"
POD_MANAGER = "phalanx-scheduler-pod-scheduled"

#: (kind, namespace, name).
Target = tuple[Literal["PodGroup", "Pod"], str, str]

WORKERS = 8

#: Seconds between two writes to one pod that change nothing but the message: a large group that waits in a busy
#: cluster would otherwise have all its pods written with each count that changes. The PodGroup's is written at once.
POD_MESSAGE_EVERY = 10.0

#: Seconds for which a condition lets binds go first: people wait for pods, and both wait for the same API server.
BINDS_FIRST = 2.0
#: Seconds between two looks whether they have gone.
_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class _Wanted:
    uid: str
    type: str
    status: str
    reason: str
    message: str
    #: Since when anything is to be written on the object; clock seconds.
    at: float = 0.0


class StatusWriter:
    """Keeps the newest wanted condition per object and writes it from a rate-limited queue.

    :param binding: whether binds are under way
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        pods: Informer[Pod],
        groups: Informer[PodGroup],
        binding: Callable[[], bool] = lambda: False,
    ) -> None:
        self._binding = binding
        self._client = client
        self._clock = clock
        self._pods = pods.store
        self._groups = groups.store
        self._wanted: dict[Target, _Wanted] = {}
        #: When a pod's condition was last written; clock seconds.
        self._written: dict[Target, float] = {}
        pods.add_handler(self._forget)
        self._queue: RateLimitingQueue[Target] = RateLimitingQueue(clock, name="status", base=0.1, cap=30.0)
        self.controller: Controller[Target] = Controller(
            "status", self._write, self._queue, clock=clock, workers=WORKERS
        )

    def set_group(self, wanted: SetGroupCondition) -> None:
        """Want PodGroupInitiallyScheduled to be so."""
        self._want(
            ("PodGroup", wanted.group.namespace, wanted.group.name),
            _Wanted(wanted.group_uid, conditions.INITIALLY_SCHEDULED, wanted.status, wanted.reason, wanted.message),
        )

    def set_pod(self, wanted: SetPodCondition) -> None:
        """Want PodScheduled=False to say so."""
        self._want(
            ("Pod", wanted.namespace, wanted.name),
            _Wanted(wanted.uid, conditions.POD_SCHEDULED, "False", wanted.reason, wanted.message),
        )

    def drop_pod(self, bind: Bind) -> None:
        """Want nothing of a pod any more: it is being bound."""
        self._wanted.pop(("Pod", bind.namespace, bind.name), None)

    def _want(self, target: Target, wanted: _Wanted) -> None:
        message = conditions.truncate(wanted.message, conditions.MAX_MESSAGE_BYTES)
        before = self._wanted.get(target)
        at = before.at if before is not None else self._clock.monotonic()
        self._wanted[target] = _Wanted(wanted.uid, wanted.type, wanted.status, wanted.reason, message, at)
        # Groups first: there are few of them, and people look there.
        self._queue.add(target, 1 if target[0] == "PodGroup" else 0)

    def _forget(self, event: EventType, old: Pod | None, new: Pod | None) -> None:
        if event == "delete" and old is not None:
            self._written.pop(("Pod", old.metadata.namespace, old.metadata.name), None)

    async def _write(self, target: Target) -> Result | None:
        wanted = self._wanted.get(target)
        if wanted is None:
            return None
        first = wanted.at + BINDS_FIRST - self._clock.monotonic()
        if first > 0 and self._binding():
            return Result(requeue_after=min(first, _LOOK))
        kind, namespace, name = target
        obj = (self._groups if kind == "PodGroup" else self._pods).get(namespace, name)
        if obj is None or obj.metadata.uid != wanted.uid or _moot(obj, wanted):
            self._wanted.pop(target, None)
            return None
        current = conditions.find(obj.status.conditions, wanted.type)
        if kind == "Pod" and current is not None and (current.status, current.reason) == ("False", wanted.reason):
            wait = self._written.get(target, -POD_MESSAGE_EVERY) + POD_MESSAGE_EVERY - self._clock.monotonic()
            if wait > 0 and current.message != wanted.message:
                return Result(requeue_after=wait)
        try:
            written = await apply_condition(
                self._client,
                PODGROUPS if kind == "PodGroup" else PODS,
                name,
                namespace,
                {
                    "type": wanted.type,
                    "status": wanted.status,
                    "reason": wanted.reason,
                    "message": wanted.message,
                },
                GROUP_MANAGER if kind == "PodGroup" else POD_MANAGER,
                current=msgspec.to_builtins(current) if current is not None else None,
                uid=wanted.uid,
                # A bind that is newer than our view must not be overwritten.
                resource_version=obj.metadata.resource_version if kind == "Pod" else None,
                force=True,
            )
            if written and kind == "Pod" and self._pods.get(namespace, name) is not None:
                self._written[target] = self._clock.monotonic()
        except NotFound:
            pass
        except Conflict:
            # The uid is another by now, or the write raced with one that is newer: look again.
            if self._wanted.get(target) is wanted:
                raise
        if self._wanted.get(target) is wanted:
            del self._wanted[target]
        return None


def _moot(obj: Pod | PodGroup, wanted: _Wanted) -> bool:
    """Whether the object moved on: a pod has a node, a group's True is terminal."""
    if isinstance(obj, Pod):
        return bool(obj.spec.node_name)
    current: Iterable[Condition] = obj.status.conditions
    return wanted.status == "False" and conditions.is_true(current, wanted.type)
