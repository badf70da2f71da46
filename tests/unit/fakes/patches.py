"""The patch formats the fake API server understands: enough of each, no more."""

from __future__ import annotations

import copy
from typing import Any


class PatchError(Exception):
    """The server would answer 422."""


def json_patch(document: Any, ops: list[dict[str, Any]]) -> Any:
    document = copy.deepcopy(document)
    for op in ops:
        tokens = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
        parent = document
        for token in tokens[:-1]:
            try:
                parent = parent[int(token)] if isinstance(parent, list) else parent[token]
            except (KeyError, IndexError) as error:
                raise PatchError(f"{op['op']} operation does not apply: doc is missing path: {op['path']}") from error
        last = tokens[-1]
        index = len(parent) if last == "-" else int(last) if isinstance(parent, list) else last
        exists = index < len(parent) if isinstance(parent, list) else index in parent
        if op["op"] == "add":
            if isinstance(parent, list):
                parent.insert(index, op["value"])
            else:
                parent[index] = op["value"]
            continue
        if not exists:
            raise PatchError(f"{op['op']} operation does not apply: doc is missing key: {op['path']}")
        if op["op"] == "test":
            if parent[index] != op["value"]:
                raise PatchError(f"testing value {op['path']} failed")
        elif op["op"] == "replace":
            parent[index] = op["value"]
        elif op["op"] == "remove":
            del parent[index]
    return document


def merge_patch(target: Any, patch: Any, *, strategic: bool = False) -> Any:
    """RFC 7396; strategic: conditions merge by type."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key == "conditions":
            merged = {item["type"]: item for item in result.get(key) or []}
            for item in value:
                merged[item["type"]] = {**merged.get(item["type"], {}), **item}
            result[key] = list(merged.values())
        else:
            result[key] = merge_patch(result.get(key), value, strategic=strategic)
    return result


class ApplyConflictError(Exception):
    """The server would answer 409 and name the owner."""


def apply_conditions(
    conditions: list[dict[str, Any]],
    owners: dict[str, str],
    applied: list[dict[str, Any]],
    manager: str,
    *,
    force: bool,
) -> list[dict[str, Any]]:
    """Server-side apply of a condition list: a map by type, one owner each; what a manager leaves out is removed."""
    current = {item["type"]: item for item in conditions}
    wanted = {item["type"]: item for item in applied}
    for kind, item in wanted.items():
        owner = owners.get(kind)
        if kind in current and owner not in {None, manager} and current[kind] != item and not force:
            text = f'conflict with "{owner}": .status.conditions[type="{kind}"]'
            raise ApplyConflictError(f"Apply failed with 1 conflict: {text}")
    for kind in [kind for kind, owner in owners.items() if owner == manager and kind not in wanted]:
        current.pop(kind, None)
        del owners[kind]
    for kind, item in wanted.items():
        current[kind] = item
        owners[kind] = manager
    return list(current.values())
