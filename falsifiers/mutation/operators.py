"""Operator-level changes of a module's source: each one small, each a mutant.

A change swaps one comparison, arithmetic or boolean operator, negates a condition, moves a constant
by one, returns None, or deletes a statement. What has no part in a verdict is left alone:
annotations, docstrings, decorators, assertions, `strict=` and the text of messages.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

Address = tuple[tuple[str, int | None], ...]
"""Fields and places in them that lead from the module to a node."""
SWAPS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,), ast.Mult: (ast.FloorDiv,), ast.Div: (ast.Mult,), ast.Mod: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mult,), ast.Pow: (ast.Mult,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,)}
UNTOUCHED = ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords",
             "defaults", "kw_defaults")
"""Fields of definitions and annotations that are no part of a function's work."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Change:
    """One mutant of a module."""

    path: str
    """The module's file, from the root of the tree."""
    owner: str
    """The function or `Class.method` that it is in, or the name of a value of the module."""
    before: str
    after: str
    line: int
    address: Address
    new: ast.AST
    nth: int = 1
    """Which of those with the same words in one owner it is."""

    @property
    def id(self) -> str:
        """What a person calls it by, the same wherever the function stands in its file."""
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.path} {self.owner}: {self.before} -> {self.after}{again}"

    @property
    def module(self) -> str:
        """The dotted name by which the tree imports the file."""
        return ".".join(Path(self.path).with_suffix("").parts)

    def tree(self, source: str) -> ast.Module:
        """Return the module with this change made."""
        module = ast.parse(source)
        *way, (field, place) = self.address
        node: ast.AST = module
        for name, at in way:
            node = getattr(node, name) if at is None else getattr(node, name)[at]
        new = copy.deepcopy(self.new)
        if place is None:
            setattr(node, field, new)
        else:
            getattr(node, field)[place] = new
        return ast.fix_missing_locations(module)


def changes(path: str, root: Path) -> list[Change]:
    """Return every change of a module's functions, methods and named numbers, in order."""
    module = ast.parse((root / path).read_text(encoding="utf-8"))
    found, seen = list[Change](), Counter[tuple[str, str, str]]()
    for owner, address, node in _owners(module):
        for change in _walk(path, owner, address, node, []):
            words = (owner, _short(change.before), _short(change.after))
            seen[words] += 1
            found.append(replace(change, before=words[1], after=words[2], nth=seen[words]))
    return found


def _owners(module: ast.Module) -> Iterator[tuple[str, Address, ast.AST]]:
    """Yield each outermost function or method, and each value with a name of the module."""
    waiting: list[tuple[str, Address, ast.Module | ast.ClassDef]] = [("", (), module)]
    while waiting:
        prefix, address, home = waiting.pop(0)
        for place, node in enumerate(home.body):
            here = (*address, ("body", place))
            if isinstance(node, FUNCTIONS):
                yield prefix + node.name, here, node
            elif isinstance(node, ast.ClassDef):
                waiting.append((f"{prefix}{node.name}.", here, node))
            elif isinstance(node, ast.Assign) and home is module and len(node.targets) == 1 \
                    and isinstance(node.targets[0], ast.Name) and not _is_type(node.value):
                yield node.targets[0].id, here, node


def _is_type(value: ast.expr) -> bool:
    """Return whether a value of the module is a name for a type, which no work depends on."""
    return isinstance(value, ast.Subscript) or (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))


def _walk(path: str, owner: str, address: Address, node: ast.AST,
          above: list[ast.AST]) -> Iterator[Change]:
    """Yield the changes at a node and below it."""
    for before, after, field, place, new in _at(node, above):
        where = address if field == "" else (*address, (field, place))
        yield Change(path, owner, before, after, getattr(node, "lineno", 0), where, new)
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED and not isinstance(node, ast.Call):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_idle(child):
                yield from _walk(path, owner, (*address, (field, place)), child, [*above, node])


def _is_idle(node: ast.AST) -> bool:
    """Return whether a node is text, an assertion, a docstring, or how strict a `zip` is."""
    return isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom) or \
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or \
        (isinstance(node, ast.keyword) and node.arg == "strict")


Found = Iterator[tuple[str, str, str, int | None, ast.AST]]
"""What stands there, what will, the field to set ("" is the node itself), its place, and with."""


def _at(node: ast.AST, above: list[ast.AST]) -> Found:
    """Yield the changes of one node."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            yield from _swapped(node, op, "ops", place)
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        yield from _swapped(node, node.op, "op", None)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield words(node), words(node.operand), "", None, node.operand
    elif isinstance(node, ast.Constant):
        yield from _moved(node, above[-1])
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield from _negated(node.test, "test", None)
    elif isinstance(node, ast.comprehension):
        for place, test in enumerate(node.ifs):
            yield from _negated(test, "ifs", place)
    yield from _dropped(node)


def _swapped(node: ast.AST, op: ast.AST, field: str, place: int | None) -> Found:
    for kind in SWAPS.get(type(op), ()):
        new = copy.deepcopy(node)
        if place is None:
            setattr(new, field, kind())
        else:
            getattr(new, field)[place] = kind()
        yield words(node), words(new), field, place, kind()


def _negated(test: ast.expr, field: str, place: int | None) -> Found:
    """Negate a condition that no swap of its own operator negates."""
    plain = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    if not plain and not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        new = ast.UnaryOp(ast.Not(), test)
        yield f"if {words(test)}", f"if {words(new)}", field, place, new


def _moved(node: ast.Constant, parent: ast.AST) -> Found:
    """Move a number by one and turn a truth over; the words are those of what holds it."""
    value = node.value
    if not isinstance(value, bool | int | float):
        return
    new = ast.Constant(not value if isinstance(value, bool) else value + 1)
    shown = copy.deepcopy(parent)
    for child in ast.walk(shown):
        if ast.dump(child, include_attributes=True) == ast.dump(node, include_attributes=True):
            child.value = new.value  # type: ignore[attr-defined]
    yield words(parent).strip(), words(shown).strip(), "", None, new


def _dropped(node: ast.AST) -> Found:
    """Delete a statement with an effect, or return nothing."""
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield words(node), "return None", "value", None, ast.Constant(None)
    kept = isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript)
                                                for t in node.targets)
    acts = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield
                                                     | ast.YieldFrom)
    if kept or acts or isinstance(node, ast.AugAssign | ast.Delete | ast.Raise | ast.Continue
                                  | ast.Break):
        yield " ".join(words(node).split()), "pass", "", None, ast.Pass()


def words(node: ast.AST) -> str:
    """Return a node's source, `'...'` for what Pythons write in different ways: formatted text."""
    class Plain(ast.NodeTransformer):
        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
            return ast.Constant("...")

    return ast.unparse(Plain().visit(copy.deepcopy(node)))


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}..."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
