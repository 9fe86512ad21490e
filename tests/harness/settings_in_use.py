"""Finds which settings the code of a node reads, by the names in its source.

A setting is read where its whole name is a string, or where an f-string with at least two words of its own makes it, as
`f"{prefix}.segment.bytes"`; a variable that loops over strings stands for these strings only. A topic's config is read
too where the log reads the field of LogConfig that it becomes. What a setting that is read falls back to is read too.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from ottla.broker.config.key import ConfigKey
from ottla.log.config import LogConfig
from tests.harness.sources import nodes_of, tree_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ottla"
OF_A_NODE = (
    *("broker", "groups", "log", "metadata", "replica", "server", "share", "txn"),
    *("cli/serve.py", "cli/server_properties.py"),
)
TABLES = ("broker/config/broker_table.py", "broker/config/topic_table.py", "broker/config/unserved.py")
"""They name settings, and read none."""
ANYTHING = "[a-z.]+"


def trees(places: Iterable[str]) -> Iterator[ast.Module]:
    """The modules in these places, parsed."""
    for place in places:
        path = SOURCE / place
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if module.relative_to(SOURCE).as_posix() not in TABLES:
                yield tree_of(module)


def looped_strings(tree: ast.Module) -> dict[str, str]:
    """The variables that loop over a tuple of strings, each with the expression that matches these strings."""
    found: dict[str, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            entries = node.iter.elts if isinstance(node.iter, ast.Tuple) else []
            texts = [each.value for each in entries if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if entries and len(texts) == len(entries):
                found[node.target.id] = "|".join(map(re.escape, texts))
    return found


def shape_of(text: ast.JoinedStr, looped: Mapping[str, str]) -> str | None:
    """The expression that matches what this f-string makes; None where it has fewer than two words of its own."""
    shape, own = "", 0
    for part in text.values:
        if isinstance(part, ast.Constant):
            shape += re.escape(str(part.value))
            own += len(re.findall(r"[a-z]+", str(part.value)))
        else:
            name = part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else ""
            shape += f"({looped.get(name, ANYTHING)})"
    return shape if own >= 2 else None


@cache
def names_in_source() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """The strings of a node's source, and the shapes of its f-strings."""
    strings: set[str] = set()
    shapes: set[str] = set()
    for tree in trees(OF_A_NODE):
        looped = looped_strings(tree)
        for node in nodes_of(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            elif isinstance(node, ast.JoinedStr) and (shape := shape_of(node, looped)) is not None:
                shapes.add(shape)
    return frozenset(strings), tuple(map(re.compile, sorted(shapes)))


@cache
def fields_of_logs() -> frozenset[str]:
    """The fields of LogConfig that the log reads, under the names of the topic configs that they are."""
    attributes = {node.attr for tree in trees(["log"]) for node in nodes_of(tree) if isinstance(node, ast.Attribute)}
    return frozenset(each.replace("_", ".") for each in LogConfig._fields if each in attributes)


def is_named(name: str) -> bool:
    """Whether the source has this name, or makes it."""
    strings, shapes = names_in_source()
    return name in strings or any(shape.fullmatch(name) for shape in shapes)


def read_settings(*tables: Mapping[str, ConfigKey]) -> set[str]:
    """The names in these tables that the code of a node reads; the table of what others fall back to comes last."""
    read: set[str] = set()
    for table in tables:
        here = {name for name in table if is_named(name) or name in fields_of_logs() or name in read}
        read |= here | {other for name in here for other in table[name].fallbacks}
    return read
