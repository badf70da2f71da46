"""Each Deployment of two replicas or more has a PodDisruptionBudget: one of its pods may be down at a time."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from api.wire import ObjectMeta
from runtime import framework as fw

DEPLOYMENTS = fw.Resource("apps", "v1", "deployments", "Deployment")
BUDGETS = fw.Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


class Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any]


def add_to(client: fw.Client, clock: fw.Clock, manager: fw.Manager) -> None:
    deployments = fw.Informer(client, DEPLOYMENTS, Object, clock=clock)
    budgets = fw.Informer(client, BUDGETS, Object, clock=clock)
    events = fw.EventRecorder(client, "example.dev/budgets", clock)

    async def reconcile(key: fw.Key) -> None:
        deployment, budget = deployments.store.get_key(key), budgets.store.get_key(key)
        if deployment is None or deployment.metadata.deletion_timestamp:
            return  # what it owns goes with it
        about, owner = fw.reference(DEPLOYMENTS, deployment), fw.controlled_by(DEPLOYMENTS, deployment)
        holder = budget.metadata.controller if budget else None
        spec = {"maxUnavailable": 1, "selector": deployment.spec["selector"]}
        if budget is None and deployment.spec["replicas"] > 1:
            metadata = {"namespace": key[0], "name": key[1], "ownerReferences": [owner]}
            body = {"apiVersion": BUDGETS.api_version, "kind": BUDGETS.kind, "metadata": metadata, "spec": spec}
            if isinstance(await fw.create_owned(client, BUDGETS, body), fw.Created):
                events.event(about, "Normal", "BudgetCreated", "One pod may be down at a time", "CreateBudget")
        elif budget is None or holder is None or holder.uid != deployment.metadata.uid:
            return  # none is wanted, or it is somebody else's
        elif deployment.spec["replicas"] < 2:
            with contextlib.suppress(fw.NotFound):
                await client.delete(BUDGETS, key[1], key[0], uid=budget.metadata.uid)
        elif budget.spec != spec:
            same = {"op": "test", "path": "/metadata/uid", "value": budget.metadata.uid}
            await client.json_patch(BUDGETS, key[1], key[0], [same, {"op": "replace", "path": "/spec", "value": spec}])
            events.event(about, "Normal", "BudgetRepaired", "Somebody had changed it", "RepairBudget")

    controller: fw.Controller[fw.Key] = fw.Controller("budgets", reconcile, clock=clock)
    for informer in (deployments, budgets):
        manager.add_informer(informer)
        controller.enqueue_on(informer)  # a budget has its Deployment's name: one key for both
    manager.add_controller(controller)
    manager.add_runnable("events", events.run, needs_leader=False)


if __name__ == "__main__":
    program = fw.Program("budgets", "default", reads=(DEPLOYMENTS, BUDGETS), remedies={}, add_to=add_to)
    raise SystemExit(fw.main(program, fw.Settings(kubeconfig=Path(sys.argv[1]))))
