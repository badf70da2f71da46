"""One reconciler a module: Job -> Workload -> PodGroup, and the protection of PodGroups in deletion."""
