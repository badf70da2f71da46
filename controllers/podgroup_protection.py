"""Lets go of PodGroups in deletion that only pods which were never bound still name.

Upstream's finalizer stays while any live pod names the group, pending ones too. A Job that is suspended and resumed
then waits for ever: its new pods keep the old group, whose name the new group needs. So on native sources ours
removes that finalizer, in this one case only: live pods name the group, and none of them was ever bound. All other
cases are upstream's own controller's, and no finalizer is ever added.

The scheduler binds no member of a group in deletion, but a bind that it had begun before may still land. So the
group is left for a moment after it was first seen in deletion, and the bound pods are listed from the API server
right before the removal.
"""

from __future__ import annotations

import structlog

from api import names
from api.membership import GroupKey, named_group
from api.model import PodGroup
from api.wire import Pod
from controllers.pods import BY_GROUP, was_bound
from controllers.resources import PODGROUPS
from runtime.client import Client
from runtime.clock import Clock
from runtime.controller import Controller, Result
from runtime.errors import Invalid, NotFound
from runtime.informer import Informer
from runtime.objects import Key
from runtime.resources import PODS
from runtime.store import EventType
from runtime.workqueue import RateLimitingQueue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Seconds for which a bind that was begun before the group's deletion may still be on its way.
BIND_IN_FLIGHT = 1.0

_BOUND_AND_LIVE = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def held_by_unbound_only(group: PodGroup, pods: list[Pod], scheduler_names: frozenset[str]) -> bool:
    """Whether the group's deletion waits for nothing but pods of ours that were never bound. Pure.

    Another scheduler may have a bind under way for much longer than ours: its groups are not our business.

    :param pods: those that name the group
    """
    if group.metadata.deletion_timestamp is None or names.PROTECTION_FINALIZER not in group.metadata.finalizers:
        return False
    live = [pod for pod in pods if not pod.terminal]
    ours = all(pod.spec.scheduler_name in scheduler_names for pod in live)
    return bool(live) and ours and not any(was_bound(pod) for pod in live)


class ProtectionController:
    """The reconciler of PodGroups in deletion."""

    def __init__(
        self,
        client: Client,
        *,
        pod_groups: Informer[PodGroup],
        pods: Informer[Pod],
        clock: Clock,
        scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME}),
    ) -> None:
        self._scheduler_names = scheduler_names
        self._client = client
        self._pod_groups = pod_groups
        self._pods = pods
        self._clock = clock
        #: Group uid -> when it was first seen in deletion: our clock, as the server's may differ.
        self._seen: dict[str, float] = {}
        queue: RateLimitingQueue[Key] = RateLimitingQueue(clock, name="podgroup-protection", base=0.1, cap=60.0)
        self.controller: Controller[Key] = Controller("podgroup-protection", self.reconcile, queue, clock=clock)
        pod_groups.add_handler(self._forget)
        self.controller.enqueue_on(pod_groups, predicate=_leaving)
        self.controller.enqueue_on(pods, self._group_in_deletion)

    async def reconcile(self, key: Key) -> Result | None:
        """Remove the finalizer of one group, if that is ours to do."""
        group = self._pod_groups.store.get_key(key)
        if group is None:
            return None
        named = GroupKey(*key)
        if not held_by_unbound_only(group, self._pods.store.by_index(BY_GROUP, named), self._scheduler_names):
            return None
        since = self._seen.setdefault(group.metadata.uid, self._clock.monotonic())
        left = since + BIND_IN_FLIGHT - self._clock.monotonic()
        if left > 0:
            return Result(requeue_after=left)
        if await self._any_bound(named):
            return None  # its event is on the way, and upstream's controller takes over from there
        await self._remove_finalizer(group)
        return None

    async def _any_bound(self, group: GroupKey) -> bool:
        """Ask the API server, not the cache. No selector finds a group's pods, so all bound ones are read."""
        pages = self._client.list_pages(PODS, namespace=group.namespace, field_selector=_BOUND_AND_LIVE, type=Pod)
        async for page in pages:
            if any(named_group(pod) == group for pod in page.items):
                return True
        return False

    async def _remove_finalizer(self, group: PodGroup) -> None:
        metadata = group.metadata
        path = f"/metadata/finalizers/{metadata.finalizers.index(names.PROTECTION_FINALIZER)}"
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
            {"op": "test", "path": path, "value": names.PROTECTION_FINALIZER},
            {"op": "remove", "path": path},
        ]
        key = (metadata.namespace, metadata.name)
        try:
            await self._client.json_patch(PODGROUPS, metadata.name, metadata.namespace, ops)
        except NotFound:
            return
        except Invalid as error:
            if error.causes:
                raise
            return  # a test failed: the group has changed, and its event brings it here again
        log.info("PodGroup let go: none of the pods that name it was ever bound", key=key)

    def _group_in_deletion(self, pod: Pod) -> Key | None:
        named = named_group(pod)
        if named is None:
            return None
        key = (named.namespace, named.name)
        group = self._pod_groups.store.get_key(key)
        return key if group is not None and group.metadata.deletion_timestamp is not None else None

    def _forget(self, event: EventType, old: PodGroup | None, new: PodGroup | None) -> None:
        if event == "delete" and old is not None:
            self._seen.pop(old.metadata.uid, None)


def _leaving(event: EventType, old: PodGroup | None, new: PodGroup | None) -> bool:
    return new is not None and new.metadata.deletion_timestamp is not None
