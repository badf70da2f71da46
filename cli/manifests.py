"""Where the manifests are: beside the packages in a checkout, inside this one when installed."""

from __future__ import annotations

from pathlib import Path


def manifests() -> Path:
    """Return the folder of the manifests we ship."""
    package = Path(__file__).parent
    installed = package / "_manifests"
    return installed if installed.is_dir() else package.parent / "manifests"
