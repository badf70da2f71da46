"""The filters of kube-scheduler that do not depend on room, evaluated for one signature over all nodes at once.

Node selector and required affinity, taints with unschedulable (a pod with spec.nodeName is bound already). Each
filter answers with the nodes it refuses and the words kube-scheduler users know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from api.wire import NodeSelectorTerm, SelectorRequirement, Taint, Toleration
from scheduler.core.nodes import UNSCHEDULABLE_TAINT, Bools, NodeTable
from scheduler.core.signature import Signature

NODE_SELECTOR = "no match for the pod's node selector or affinity"
UNSCHEDULABLE = "unschedulable (cordoned)"


def static(table: NodeTable, signature: Signature) -> tuple[Bools, list[tuple[str, Bools]]]:
    """Return which nodes pass, and for each reason the nodes it is the first to refuse.

    Nodes that no longer exist pass nothing and are in no reason.
    """
    left = table.present.copy()
    refused: list[tuple[str, Bools]] = []

    def refuse(reason: str, bad: Bools) -> None:
        hit = left & bad
        if hit.any():
            refused.append((reason, hit))
            np.logical_and(left, ~bad, out=left)

    if signature.node_selector or signature.affinity is not None:
        refuse(NODE_SELECTOR, ~_selected(table, signature))
    for index, taints in table.taint_classes.items():
        taint = _first_untolerated(taints, signature.tolerations)
        if taint is not None:
            refuse(_taint_reason(taint), table.taint_class == index)
    return left, refused


def _named(table: NodeTable, wanted: Sequence[str]) -> Bools:
    mask = np.zeros(len(table), dtype=np.bool_)
    rows = [table.rows[name] for name in wanted if name in table.rows]
    mask[rows] = True
    return mask


def _selected(table: NodeTable, signature: Signature) -> Bools:
    mask = np.ones(len(table), dtype=np.bool_)
    for key, value in signature.node_selector:
        column = table.column(key)
        mask &= column.codes[: len(table)] == column.values.get(value, -2)
    if signature.affinity is not None:
        any_term = np.zeros(len(table), dtype=np.bool_)
        for term in signature.affinity:
            any_term |= _term(table, term)
        mask &= any_term
    return mask


def _term(table: NodeTable, term: NodeSelectorTerm) -> Bools:
    if not term.match_expressions and not term.match_fields:
        return np.zeros(len(table), dtype=np.bool_)
    mask = np.ones(len(table), dtype=np.bool_)
    for requirement in term.match_expressions:
        mask &= _requirement(table, requirement)
    for requirement in term.match_fields:
        named = _named(table, requirement.values)
        mask &= named if requirement.operator == "In" else ~named
    return mask


def _requirement(table: NodeTable, requirement: SelectorRequirement) -> Bools:
    column = table.column(requirement.key)
    codes = column.codes[: len(table)]
    match requirement.operator:
        case "Exists":
            return codes >= 0
        case "DoesNotExist":
            return codes < 0
        case "In" | "NotIn":
            wanted = [column.values[v] for v in requirement.values if v in column.values]
            inside = np.isin(codes, wanted)
            return inside if requirement.operator == "In" else ~inside
        case "Gt" | "Lt":
            wanted = [
                code
                for value, code in column.values.items()
                if _compares(value, requirement.operator, requirement.values)
            ]
            return np.isin(codes, wanted)
        case _:
            # An operator of a newer API: refuse rather than misplace.
            return np.zeros(len(table), dtype=np.bool_)


def _compares(value: str, operator: str, bounds: Sequence[str]) -> bool:
    try:
        left, right = int(value), int(bounds[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def _first_untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    return next((taint for taint in taints if not any(_tolerates(t, taint) for t in tolerations)), None)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    operator = toleration.operator or "Equal"
    if toleration.key and toleration.key != taint.key:
        return False
    if operator == "Exists":
        return True
    if operator == "Equal":
        return bool(toleration.key) and toleration.value == taint.value
    # Lt and Gt (numeric tolerations, 1.35 alpha): both sides must be integers.
    return _compares(taint.value, operator, [toleration.value])


def _taint_reason(taint: Taint) -> str:
    if taint == UNSCHEDULABLE_TAINT:
        return UNSCHEDULABLE
    value = f"={taint.value}" if taint.value else ""
    return f"untolerated taint {{{taint.key}{value}:{taint.effect}}}"
