"""Phalanx beside kube-scheduler's own gang scheduling and what the API server can carry at all.

::

    python -m bench run "37x27 7x333" --nodes 5000 --runs 3

One run is one case for one contender on a control plane of its own (:mod:`bench.run`): a neutral client
(:mod:`bench.load`) creates the objects, the API server's audit log tells the times (:mod:`bench.timing`), and a final
list proves the outcome (:mod:`bench.verify`). :mod:`bench.throughput` is apart from that: it measures ``runtime/``.
"""
