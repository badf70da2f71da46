from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from runtime.clock import FakeClock
from tests.unit.fakes.apiserver import FakeApiServer

# A slow machine is not a bug.
settings.register_profile("phalanx", deadline=None)
settings.load_profile("phalanx")


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
