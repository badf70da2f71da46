"""The reconcile framework on kr8s: client, informers, workqueue, controller, manager. Knows nothing of gangs."""
