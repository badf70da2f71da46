"""Real kind clusters: nodes that are containers with a kubelet, pods that run.

A node image is pulled where a Docker daemon of the user's can do that, and else built from the Go module proxy and
Debian's packages alone. Where no Docker daemon runs, one is started, and all that it and the kubelets change on the
machine is put back when the last cluster goes.

Read :mod:`provider` first; :mod:`image` builds the node image, :mod:`docker` and :mod:`daemon` are the Docker side.
"""
