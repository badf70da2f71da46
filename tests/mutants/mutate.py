"""Small faults, planted one at a time in a syntax tree.

What is planted: comparisons, boolean and arithmetic operators swapped; numbers one more and one less; True and False
exchanged; conditions negated; calls, assignments to attributes or items, deletions, raises and early returns left out;
None returned; break and continue exchanged; an except clause or the body of a finally left out; an argument left out.
What is not: annotations, decorators, docstrings, bases, assertions, texts, and objects made while a module is imported.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.USub: ast.UAdd,
}
_NOT_CODE = {"annotation", "returns", "decorator_list", "bases", "type_params"}
_LONGEST = 110


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: ``node.field`` becomes ``value``."""

    module: str
    function: str
    what: str
    node: ast.AST
    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.module}:{self.function}:{self.what}"

    def plant(self) -> None:
        """Change the tree, for good."""
        setattr(self.node, self.field, self.value)


def mutants_of(module: str, tree: ast.Module) -> list[Mutant]:
    """All faults that can be planted in ``tree``, each with a name that outlives a change elsewhere."""
    found: list[Mutant] = []
    names: Counter[tuple[str, str]] = Counter()
    for function, node, parent in _code(tree, tree, ""):
        for what, owner, field, value in _faults(node, parent):
            names[function, what] += 1
            nth = names[function, what]
            found.append(Mutant(module, function, f"{what} #{nth}" if nth > 1 else what, owner, field, value))
    return found


def _code(node: ast.AST, parent: ast.AST, function: str) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    yield function or "<module>", node, parent
    for field, value in ast.iter_fields(node):
        if field in _NOT_CODE or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Assert) and not _alias(child, function):
                named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                yield from _code(child, node, f"{function}.{child.name}".lstrip(".") if named else function)  # type: ignore[attr-defined]


def _alias(node: ast.AST, function: str) -> bool:
    """``Handler = Callable[...]``, ``T = TypeVar(...)``, ``log = get_logger(...)``: objects made at import."""
    if function or not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return isinstance(node.value, ast.Call | ast.Attribute | ast.Subscript | ast.BinOp)


Fault = tuple[str, ast.AST, str, Any]


def _faults(node: ast.AST, parent: ast.AST) -> Iterator[Fault]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield _swap(node, "ops", [other()])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield _swap(node, "op", _OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.USub()):
            yield _swap(node, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _swap(node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.Constant(value=bool()):
            yield _swap(node, "value", not node.value, shown=parent)
        case ast.Constant(value=int() | float() as number):
            for neighbour in (number + 1, number - 1):
                yield _swap(node, "value", neighbour, shown=parent)
        case ast.Return(value=value) if value is not None and not (isinstance(value, ast.Constant) and not value.value):
            yield _swap(node, "value", None)
        case ast.Call():
            yield from _dropped_arguments(node)
        case ast.Try():
            yield from _dropped_clauses(node)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and _plain(node.test):
        yield f"condition {_text(node.test)} → not", node, "test", ast.UnaryOp(ast.Not(), node.test)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield from _dropped_statements(node, field, block)


def _dropped_statements(node: ast.AST, field: str, block: list[ast.stmt]) -> Iterator[Fault]:
    for at, statement in enumerate(block):
        other: ast.stmt = ast.Pass()
        match statement:
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                pass
            case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target, value=ast.expr()) if isinstance(
                target, ast.Attribute | ast.Subscript | ast.Tuple
            ):
                pass
            case ast.Return(value=None):
                pass
            case ast.Break():
                other = ast.Continue()
            case ast.Continue():
                other = ast.Break()
            case _:
                continue
        what = f"{_text(statement)} → {_text(other)}" if not isinstance(other, ast.Pass) else f"− {_text(statement)}"
        yield what, node, field, [*block[:at], other, *block[at + 1 :]]


def _dropped_arguments(call: ast.Call) -> Iterator[Fault]:
    # The last one only: without an earlier one, most calls are no calls at all and tell nothing of the tests.
    if (
        call.args
        and not isinstance(call.args[-1], ast.Starred)
        and (call.args[1:] or isinstance(call.func, ast.Attribute))
    ):
        yield _swap(call, "args", call.args[:-1])
    for at, keyword in enumerate(call.keywords):
        if keyword.arg is not None:
            yield (
                f"− {keyword.arg}= of {_text(call)}",
                call,
                "keywords",
                [*call.keywords[:at], *call.keywords[at + 1 :]],
            )


def _dropped_clauses(node: ast.Try) -> Iterator[Fault]:
    for at, handler in enumerate(node.handlers):
        what = f"− except {_text(handler.type) if handler.type else ''}"
        if len(node.handlers) > 1:
            yield what, node, "handlers", [*node.handlers[:at], *node.handlers[at + 1 :]]
        else:
            yield what, handler, "body", [ast.Raise()]
    if len(node.finalbody) > 1:
        yield "− finally", node, "finalbody", [ast.Pass()]


def _plain(test: ast.expr) -> bool:
    """Not already negated by a swap further down."""
    return not isinstance(test, ast.Constant | ast.Compare | ast.UnaryOp)


def _swap(node: ast.AST, field: str, value: Any, *, shown: ast.AST | None = None) -> Fault:
    """A fault told by what stands around it, before and after."""
    shown = node if shown is None or isinstance(shown, ast.arguments) else shown
    old, before = getattr(node, field), _text(shown)
    setattr(node, field, value)
    after = _text(shown)
    setattr(node, field, old)
    return f"{before} → {after}", node, field, value


def _text(node: ast.AST) -> str:
    lines = ast.unparse(ast.fix_missing_locations(node)).splitlines()
    text = " ".join((lines[0] if hasattr(node, "body") else " ".join(lines)).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
