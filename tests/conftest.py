"""Options of the test run: pytest reads them here whatever tests it is given."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--provider",
        default="modules",
        choices=["modules", "kind", "existing"],
        help="who makes the clusters (existing: the one that --kubeconfig or KUBECONFIG names)",
    )
