"""Docstrings of public functions name the errors that the functions raise, or a base class of these.

`python -m tests.test_errors_named` prints what is missing. Functions without a docstring are overrides, or say enough
by their names. Left out: commands, the demo and simulations, whose docstrings are help texts and descriptions.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.harness.sources import FORM, nodes_of, tree_of
from tests.test_tidy import TOP, Function, sources

pytestmark = FORM

LEFT_OUT = {"cli", "demo", "sim"}
SAID_BY_ALL = {"AssertionError", "NotImplementedError", "StopIteration"}


def name_of(expression: ast.expr) -> str:
    return ast.unparse(expression).rsplit(".", 1)[-1].split("[")[0]


@cache
def bases() -> dict[str, set[str]]:
    """The names of the base classes of every class of the project."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources("src"):
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name] |= {name_of(base) for base in node.bases}
    return dict(found)


def line_of(error: str) -> set[str]:
    """This class and the ones above it, without Exception."""
    return {error}.union(*(line_of(base) for base in bases().get(error, ()))) - {"Exception", "BaseException"}


def caught_by(node: ast.Try) -> set[str]:
    types = [handler.type for handler in node.handlers if handler.type]
    return {name_of(each) for kind in types for each in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}


def raised(node: ast.AST, caught: frozenset[str] = frozenset()) -> Iterator[str]:
    """The public classes that this statement raises itself, unless it catches them."""
    if isinstance(node, ast.Lambda | ast.ClassDef | Function):
        return
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        error = name_of(node.exc.func)
        if error[0].isupper() and not line_of(error) & (caught | SAID_BY_ALL):
            yield error
    inner = caught | caught_by(node) if isinstance(node, ast.Try) else caught
    tried = node.body if isinstance(node, ast.Try) else []
    for child in ast.iter_child_nodes(node):
        yield from raised(child, frozenset(inner if child in tried else caught))


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)
            else:
                yield node


def unnamed() -> list[str]:
    return [
        f"{path.relative_to(TOP)}:{node.lineno} {node.name}: {error}"
        for path in sources("src")
        if path.relative_to(TOP).parts[2] not in LEFT_OUT
        for node in public(tree_of(path).body)
        if (said := ast.get_docstring(node))
        for error in sorted({each for statement in node.body for each in raised(statement)})
        if not any(each in said for each in line_of(error))
    ]


def test_docstrings_name_the_errors() -> None:
    assert not unnamed(), "name the errors that it raises"


if __name__ == "__main__":
    print("\n".join(unnamed()))
