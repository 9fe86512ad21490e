"""APIs are named (`ApiKey.FETCH`), not numbered: a bare number is no API key, wherever it would be taken for one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.protocol.apis import ApiKey
from tests.harness.sources import FORM, nodes_of, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parent.parent
GENERATED = TOP / "src" / "ottla" / "protocol" / "messages"
BY_KEY = {"APIS", "SPECS", "ADVERTISED", "FLEXIBLE_SINCE", "_served"}
"""Tables by API key."""
TAKES_KEY = {"RequestHeader": 0, "Call": 0, "Request": 1, "version_of": 0, "Posted": 1, "ApiSpec": 0}
"""Calls, and which of their arguments is an API key."""


def is_key(node: ast.expr) -> bool:
    """Whether this is called an API key."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lower().endswith("api_key")


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def numbers(node: ast.AST | None) -> list[int]:
    """The bare numbers that this is, or that it holds as elements or keys."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return [value]
        case ast.Tuple(elts=elements) | ast.Set(elts=elements) | ast.List(elts=elements):
            return [value for each in elements for value in numbers(each)]
        case ast.Dict(keys=keys):
            return [value for each in keys for value in numbers(each)]
        case ast.Call(func=ast.Name("frozenset" | "set" | "dict"), args=[inside]):
            return numbers(inside)
        case _:
            return []


def looked_up(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(where, what) of everything that is looked up or found in something, or compared with it."""
    for node in nodes_of(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                for one, other in zip((left, *others), others, strict=False):
                    yield other, one
                    yield one, other
            case ast.Subscript(value=where, slice=what):
                yield where, what
            case ast.Call(func=ast.Attribute(value=where, attr="get"), args=[what, *_]):
                yield where, what
            case ast.Match(subject=what, cases=cases):
                yield from ((each.pattern.value, what) for each in cases if isinstance(each.pattern, ast.MatchValue))
            case _:
                pass


def bare_keys(tree: ast.Module) -> Iterator[int]:
    """The lines at which a bare number is an API key."""
    by_key: set[str] = set()
    for where, what in looked_up(tree):
        if is_key(what):
            by_key.add(name_of(where))
            if numbers(where):
                yield what.lineno
        elif name_of(where) in BY_KEY and numbers(what):
            yield what.lineno
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=func, args=arguments) if name_of(func) in TAKES_KEY:
                at = TAKES_KEY[name_of(func)]
                if any(number >= 0 for number in numbers(arguments[at] if at < len(arguments) else None)):
                    yield node.lineno
            case ast.Call(keywords=keywords):
                yield from (each.value.lineno for each in keywords if each.arg == "api_key" and numbers(each.value))
            case _:
                pass
    yield from named_by_hand(tree, by_key)


def named_by_hand(tree: ast.Module, by_key: set[str]) -> Iterator[int]:
    """Constants of a module that give an API its number once more, or list numbers among which API keys are found."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = list(zip(names, values, strict=False))
            case ast.Assign(targets=[name], value=value) | ast.AnnAssign(target=name, value=ast.expr() as value):
                pairs = [(name, value)]
            case _:
                continue
        for name, value in pairs:
            said = name_of(name).strip("_").removesuffix("_KEY")
            is_a_key = said in ApiKey.__members__ and numbers(value) == [ApiKey[said]]
            if is_a_key or (name_of(name) in by_key and numbers(value)):
                yield node.lineno


@pytest.mark.slow("tests/test_api_keys.py::test_numbers_are_found")
def test_apis_are_named() -> None:
    found: list[str] = []
    for room in ("src", "tools", "bench"):
        for path in sorted((TOP / room).rglob("*.py")):
            if GENERATED not in path.parents:
                found += [f"{path.relative_to(TOP)}:{line}" for line in sorted({*bare_keys(tree_of(path))})]
    assert not found, "a bare number is an API key"


@pytest.mark.parametrize(
    "source",
    [
        "x = header.api_key == 18",
        "x = api_key in (17, 18)",
        "x = APIS[18].name",
        "x = self._served.get(18)",
        "x = RequestHeader(18, 4, 1)",
        "x = connection.version_of(18)",
        "x = wait(api_key=18)",
        "API_VERSIONS_KEY = 18",
        "PRODUCE, FETCH = 0, 1",
        "ONES = {17, 18}\nx = request.api_key in ONES",
        "SINCE = {17: 1}\nx = SINCE.get(call.api_key)",
        "match api_key:\n    case 18:\n        pass",
    ],
)
def test_numbers_are_found(source: str) -> None:
    assert list(bare_keys(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["x = header.api_version == 3", "FETCH = 4", "x = Call(-1, 0, '', '', b)", "X = {17: 1}"]
)
def test_other_numbers_are_left_alone(source: str) -> None:
    assert not list(bare_keys(ast.parse(source)))
