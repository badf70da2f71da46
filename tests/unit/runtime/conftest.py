from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from blockbuster import blockbuster_ctx
from hypothesis import settings

from runtime.clock import FakeClock
from tests.unit.fakes.apiserver import FakeApiServer

# A slow machine is not a bug.
settings.register_profile("runtime", deadline=None)
settings.load_profile("runtime")


@pytest.fixture(autouse=True)
def loop_never_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call that blocks the event loop fails the test; logging in reads files, at the start and after a 401."""
    if request.node.path.name == "test_seam.py":
        yield
        return
    with blockbuster_ctx("runtime"):
        yield


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Rendering a traceback reads source files, which is not what the tests are about."""
    structlog.configure(processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer()])
    yield
    structlog.reset_defaults()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> FakeApiServer:
    return FakeApiServer()
