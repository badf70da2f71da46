"""The folders are the import packages, so nobody else may provide their names; the lock covers what we declare."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from cli.manifests import manifests

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
LOCKED = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_other_distribution_provides_our_packages():
    top_levels = {d.name: {Path(str(f)).parts[0] for f in d.files or ()} for d in distributions()}
    assert "kr8s" in top_levels, "looks into the environment that the lock made"
    taken = {name: found & OURS for name, found in top_levels.items() if found & OURS}
    assert {canonical(name) for name in taken} <= {"phalanx"}, taken


def test_all_packages_are_shipped():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert folders == OURS


def test_what_is_declared_is_locked():
    groups = PROJECT["dependency-groups"]
    declared = [*PROJECT["project"]["dependencies"], *(d for g in groups.values() for d in g if isinstance(d, str))]
    names = {canonical(re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0]) for line in declared}
    assert names <= {canonical(name) for name in LOCKED}


def test_the_lock_names_no_index():
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_manifests_are_found():
    assert (manifests() / "overlays" / "demo" / "kustomization.yaml").is_file()
