// The program that a pod sandbox runs, in the place of pause v3.10.2 of registry.k8s.io.
module phalanx.dev/cluster/pause

go 1.26.0
