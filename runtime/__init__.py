"""The reconcile framework on kr8s: client, informers, workqueue, controller, manager; knows no gangs."""
