"""Putting a changed function in the place of the live one, in this process.

A function object stays what it is and gets other code, so everybody who imported it, holds it in a
table or inherits it runs the change; nothing is imported again.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from falsifiers.judging.errors import SuiteError
from falsifiers.mutation.operators import FUNCTIONS, Change


def plant(change: Change, root: Path) -> None:
    """Make a change in every live copy of what it is about; raise `SuiteError` if there is none."""
    file = root / change.path
    tree = change.tree(file.read_text(encoding="utf-8"))
    if _is_value(tree, change.owner):
        if change.owner in _read_at_load(tree):
            raise SuiteError(f"{change.id}: it was read when the module was loaded")
        _set_value(tree, change.owner, file)
        return
    new = {(code.co_qualname, code.co_firstlineno): code
           for code in _codes(compile(tree, str(file), "exec", dont_inherit=True))}
    live = [(function, code) for function in _functions(file)
            if (code := new.get((function.__code__.co_qualname, function.__code__.co_firstlineno)))
            and function.__code__.co_qualname == change.owner]
    if not live:
        raise SuiteError(f"{change.id}: no such function is loaded")
    for function, code in live:
        if code.co_freevars != function.__code__.co_freevars:
            raise SuiteError(f"{change.id}: the function would close over other names")
        function.__code__ = code


def _is_value(tree: ast.Module, owner: str) -> bool:
    return any(isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
               and node.targets[0].id == owner for node in tree.body)


def _read_at_load(node: ast.AST) -> set[str]:
    """Return the names that a module reads outside of functions' bodies, as a default say."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        inside: list[ast.AST] = [*node.args.defaults, *filter(None, node.args.kw_defaults),
                                 *getattr(node, "decorator_list", [])]
    else:
        inside = list(ast.iter_child_nodes(node))
    return set().union(*map(_read_at_load, inside))


def _set_value(tree: ast.Module, owner: str, file: Path) -> None:
    """Give a named value of a module its new value, there and wherever it was imported by name."""
    (node,) = [node for node in tree.body if isinstance(node, ast.Assign)
               and isinstance(node.targets[0], ast.Name) and node.targets[0].id == owner]
    homes = [module for module in list(sys.modules.values())
             if getattr(module, "__file__", None) == str(file)]
    if not homes:
        raise SuiteError(f"{file.name}: the module is not loaded")
    for home in homes:
        old = getattr(home, owner)
        new = eval(compile(ast.Expression(node.value), str(file), "eval"), vars(home))
        for module in list(sys.modules.values()):
            if vars(module).get(owner) is old and _of_tree(module, file):
                setattr(module, owner, new)


def _of_tree(module: object, file: Path) -> bool:
    """Return whether a module stands in the same tree as a file."""
    top = file.parents[len(file.parts) - 2 - _depth(file)]
    return str(getattr(module, "__file__", None) or "").startswith(str(top))


def _depth(file: Path) -> int:
    """Return how many parts the path of the tree has that a package's file stands in."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return len(folder.parts) - 1


def _functions(file: Path) -> Iterator[FunctionType]:
    """Yield every live function whose code came from a file."""
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == str(file):
            yield thing


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield every function's code in a module's, at any depth."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)
