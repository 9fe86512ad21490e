"""Reads the project's files once for all tests of their form, which run in one process for that (`FORM`)."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

FORM = pytest.mark.xdist_group("form")


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree, which stays: the garbage collector does not look at it, which took three times as long as
    to make it."""
    gc.disable()
    try:
        return ast.parse(text_of(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """The nodes of a tree in the order of `ast.walk`, which takes longer than most of what is done with them; without
    those that say whether a name is loaded or stored."""
    found: list[ast.AST] = [tree]
    for node in found:
        for value in node.__dict__.values():
            if isinstance(value, list):
                found.extend(each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return found


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand by themselves; expressions, where none can be, are not gone through."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant) and isinstance(tree.value.value, str):
        yield tree.value
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        inside = getattr(tree, block, ())
        for node in inside if isinstance(inside, list) else ():
            yield from docstrings(node)
