"""Native first, measured: does kube-controller-manager make the Workloads and PodGroups of Jobs itself?

No API says which gates a controller-manager has. So a suspended probe Job is made in our namespace, and either a
Workload controlled by it appears, or kube-controller-manager is seen to have dealt with the Job (it writes the
condition Suspended, after it would have made the Workload) and there is none. Until then nothing is assumed.

While it makes them, a second Workload for the same Job would make it fall back to scheduling pod by pod.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from api import names
from controllers.resources import WORKLOADS
from runtime.backoff import Repeats
from runtime.client import Client
from runtime.clock import Clock, move_on_after
from runtime.errors import AlreadyExists, ApiError, NotFound, explain
from runtime.resources import JOBS
from runtime.writes import controller_uid

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PROBE = "phalanx-probe-native-jobs"
#: What tells our probe from a stranger's Job of that name.
PROBE_LABEL = f"{names.GROUP}/probe"
#: Seconds given to kube-controller-manager after which its silence is told; it is asked on.
PATIENCE = 10.0
POLL = 1.0
#: Seconds between two attempts while measuring is refused.
RETRY = 30.0
#: Seconds that the clean-up may hold up our own end.
CLEAN_UP = 3.0


class ProbeError(Exception):
    """The probe cannot be made, for a reason that is not the API server's."""


async def measure(client: Client, clock: Clock, found: Callable[[bool], Any]) -> None:
    """Measure until it is known, tell ``found``, and return. Refusals are logged and tried again."""
    repeats = Repeats(clock, every=600.0)
    while True:
        try:
            native = await _probe(client, clock)
        except (ApiError, ProbeError) as error:
            line = f"cannot measure whether kube-controller-manager makes the groups of Jobs: {explain(error)}"
            if repeats.allows(line):
                log.warning(line, until_then="a group is made once a pod of its Job waits for it")
            await clock.sleep(RETRY)
            continue
        if native:
            log.info("kube-controller-manager makes the Workloads and PodGroups of Jobs itself: we make none for them")
        else:
            log.info("kube-controller-manager makes no Workloads and PodGroups for Jobs: we make them")
        found(native)
        return


async def _probe(client: Client, clock: Clock) -> bool:
    uid = await _create(client, clock)
    try:
        return await _watch(client, clock, uid)
    finally:
        # Also when cancelled: a probe left behind is harmless, but it is litter.
        with move_on_after(clock, CLEAN_UP, shield=True):
            try:
                await _delete(client, uid)
            except ApiError as error:
                log.warning(explain(error), job=PROBE)


async def _create(client: Client, clock: Clock) -> str:
    """Make a new probe and return its uid. One left behind says nothing: it is dealt with only while new."""
    for _ in range(5):
        try:
            made = await client.create(JOBS, _body(), names.SYSTEM_NAMESPACE)
            return str(made["metadata"]["uid"])
        except NotFound:
            raise ProbeError(
                f"namespace {names.SYSTEM_NAMESPACE} does not exist; install the manifests, which have it"
            ) from None
        except AlreadyExists:
            try:
                old = (await client.get(JOBS, PROBE, names.SYSTEM_NAMESPACE))["metadata"]
            except NotFound:
                continue
            if PROBE_LABEL not in old.get("labels", {}):
                raise ProbeError(
                    f"Job {names.SYSTEM_NAMESPACE}/{PROBE} exists and is not ours; delete or rename it"
                ) from None
            await _delete(client, old["uid"])
            await clock.sleep(POLL)
    raise ProbeError(f"Job {names.SYSTEM_NAMESPACE}/{PROBE} of an earlier run does not go away")


async def _watch(client: Client, clock: Clock, uid: str) -> bool:
    started, told = clock.monotonic(), False
    while True:
        # In this order: what has dealt with the Job has made the Workload before.
        dealt_with = _suspended(await client.get(JOBS, PROBE, names.SYSTEM_NAMESPACE))
        workloads = await client.list_all(WORKLOADS, namespace=names.SYSTEM_NAMESPACE)
        if any(controller_uid(workload) == uid for workload in workloads):
            return True
        if dealt_with:
            return False
        if not told and clock.monotonic() - started > PATIENCE:
            told = True
            log.warning(
                "kube-controller-manager does not deal with Jobs; is it running? waiting for it",
                probe=f"{names.SYSTEM_NAMESPACE}/{PROBE}",
            )
        await clock.sleep(PATIENCE if told else POLL)


async def _delete(client: Client, uid: str) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(JOBS, PROBE, names.SYSTEM_NAMESPACE, uid=uid, propagation="Background")


def _suspended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any(c.get("type") == "Suspended" and c.get("status") == "True" for c in conditions)


def _body() -> dict[str, Any]:
    """A Job that never has a pod, that no policy of ours marks, and that would be allowed to have one."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": PROBE,
            "labels": {PROBE_LABEL: "native-jobs", "app.kubernetes.io/part-of": "phalanx"},
            "annotations": {names.POLICY_ANNOTATION: "none"},
        },
        "spec": {
            "suspend": True,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [
                        {
                            "name": "never-run",
                            "image": "registry.k8s.io/pause:3.10",
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                }
            },
        },
    }
