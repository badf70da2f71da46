"""Takes a kind cluster apart: ``python -m cluster.kind.undo KIND NAME KUBECONFIG SUPERVISOR``.

Run at a cluster's end by its supervisor, or by whoever finds the supervisor dead; what is not there any more is passed
over. In a Docker daemon of ours, a cluster of the same name that has another supervisor is not touched. Nothing here
may stop at an error: the next step undoes something else.
"""

from __future__ import annotations

import json
import subprocess
import sys

from cluster.kind import daemon
from cluster.procs import Identity

_SECONDS = 60


def main() -> None:
    """Delete the cluster from the daemon it is in, and leave the daemon if it is ours."""
    kind, name, kubeconfig, supervisor = sys.argv[1:]
    user = Identity(**json.loads(supervisor))
    docker = daemon.in_use()
    if docker == daemon.ours() and not daemon.is_user(name, user):
        return
    try:
        done = subprocess.run(
            [kind, "delete", "cluster", "--name", name, "--kubeconfig", kubeconfig],
            env=docker.env(),
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
        how = f"exited with {done.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        how = str(error)
    sys.stderr.write(f"kind delete cluster: {how}\n")
    daemon.release(name, user)


if __name__ == "__main__":
    main()
