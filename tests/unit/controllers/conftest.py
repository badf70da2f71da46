from __future__ import annotations

import pytest

from runtime.clock import FakeClock
from tests.unit.fakes.apiserver import FakeApiServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> FakeApiServer:
    return FakeApiServer()
