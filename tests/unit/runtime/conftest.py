from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def loop_never_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call that blocks the event loop fails the test.

    Logging in reads files, at the start and after a 401; the metrics of the process itself come from /proc, as what a
    test knows of its sockets.
    """
    if request.node.path.name in ("test_seam.py", "test_probes.py", "test_transport.py"):
        yield
        return
    with blockbuster_ctx("runtime"):
        yield
