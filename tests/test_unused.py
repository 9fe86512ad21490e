"""Nothing stands in src that nobody uses. A ratchet: the exceptions below only ever get fewer.

Used is what src, tools or bench use: what only a test needs stands with the tests.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from keyword import iskeyword
from pathlib import Path

import pytest
from vulture import Vulture

from ottla.cli.nouns import NOUNS
from tests.harness.sources import FORM, nodes_of, text_of, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parent.parent
SOURCE = TOP / "src"
GENERATED = SOURCE / "ottla" / "protocol" / "messages"
REGISTERED = ["@*.command", "@*.callback", "@*.fixture"]
"""Decorators that hand a function to somebody who calls it."""

FROM_OUTSIDE = {
    "ottla/expressions.py": ("log_errors max_mem", "RE2's options"),
    # Kafka's tables, whole
    "ottla/broker/config/values.py": ("DYNAMIC_BROKER_LOGGER", "where a configured value comes from"),
    "ottla/broker/api_spec.py": ("acl", "what an authorizer is asked; a test holds it against the handlers"),
    "ottla/broker/api/k*.py": ("SPEC", "tools/write_api_table.py copies it"),
    "ottla/protocol/acls.py": ("[A-Z_]+", "operations and resource types"),
    "ottla/log/answers.py": ("REPLICATION LOG_END", "who appends, who reads"),
    "ottla/protocol/errors.py": ("[A-Z_]+ _value_", "error codes, and what Enum calls a value"),
    "ottla/protocol/records/compression.py": ("SNAPPY", "codecs"),
    "ottla/share/standing.py": ("[A-Z]+", "states of a record"),
    # found by name or position
    "ottla/broker/*.py": ("([a-z]+_)+(in|out|requests)", "counters: the metrics page reads them by name"),
    "ottla/cli/*.py": ("[A-Z]+ demo", "choices on the command line, and commands"),
    "ottla/protocol/wire.py": ("read_[a-z_]+", "generated modules ask for them, those that are left out too"),
    "ottla/server/figures.py": ("num_log_segments", "figures are rendered by name"),
    "ottla/spark/codec/*_kernels.py": ("[A-Za-z_]+", "compiled by name"),
    "ottla/spark/logs/line.py": ("level_text", "rows are made by position"),
    "ottla/spark/reader/options.py": ("times_ms", "matched by position"),
    "ottla/spark/report/charts.py": ("detail", "the page's template reads it"),
    "ottla/spark/running/micro_batches.py": ("__call__", "the protocol of a function"),
    # what a library calls or reads
    "ottla/cli/deliveries.py": ("emit", "logging"),
    "ottla/cli/[ot]*.py": ("__(signature|annotations)__", "inspect"),
    "ottla/metadata/sqlite.py": ("text_factory", "sqlite3"),
    "ottla/server/connection.py": (
        "connection_made eof_received get_buffer buffer_updated pause_writing exc sizehint",
        "asyncio's BufferedProtocol",
    ),
    "ottla/client/__init__.py": ("__getattr__", "the import of a name"),
    "ottla/testing/__init__.py": ("__getattr__", "the import of a name"),
    "ottla/server/logs.py": ("default_(time|msec)_format converter raiseExceptions", "logging"),
    "ottla/server/tls.py": (
        "connection_made get_buffer buffer_updated pause_writing exc sizehint",
        "asyncio's BufferedProtocol",
    ),
    "ottla/server/peers.py": (
        "connection_made eof_received get_buffer buffer_updated sizehint",
        "asyncio's BufferedProtocol",
    ),
    "ottla/spark/codec/native.py": ("linkage", "llvmlite"),
    "ottla/spark/format.py": ("stream(Reader|Writer)", "Spark's DataSource"),
    "ottla/cli/[cl]*.py": ("check_hostname verify_mode", "ssl"),
    "ottla/client/set_up.py": ("check_hostname", "ssl"),
    "ottla/console/serving.py": ("minimum_version", "ssl"),
    "ottla/server/tls_settings.py": ("check_hostname (minimum|maximum)_version", "ssl"),
    "ottla/spark/platform/client_properties.py": ("check_hostname", "ssl"),
    "ottla/spark/reader/source.py": (
        "initialOffset latestOffset reportLatestOffset getDefaultReadLimit prepareForTriggerAvailableNow",
        "Spark's DataSourceStreamReader",
    ),
    "ottla/spark/tracker/processor.py": ("handle(InputRows|ExpiredTimer)", "Spark's StatefulProcessor"),
    "pyspark_ottla/__init__.py": ("DefaultSource", "Spark"),
    # for users
    "ottla/kmq/client.py": ("markers_lost", "workers of a queue"),
    "ottla/kmq/markers.py": ("decode_key", "readers of a markers topic"),
    "ottla/testing/cluster.py": ("wait_in_sync metrics_of", "users' tests"),
    "ottla/testing/embedded.py": ("restart client_arguments java_properties", "users' tests"),
    # several nodes, transactions, authentication: what is there before its callers
    "ottla/protocol/records/control.py": ("build_marker_batch", "the end of a transaction"),
}
"""Files of src: names in them (expressions) that something outside uses, and what that is."""

STARTED = {"ottla.__main__", "ottla.sim.__main__", "ottla.demo.member", "ottla.testing.plugin", "ottla.schemas.worker"}
STARTED |= {"ottla.spark.codec.decode_kernels", "ottla.spark.codec.encode_kernels", "ottla.spark.running.python_daemon"}
STARTED |= {f"ottla.cli.{noun.replace('-', '_')}" for noun in NOUNS}
"""Modules that Python and pytest run, or that are imported by name."""


@cache
def texts() -> dict[Path, str]:
    """Everything that may use what is in src; of generated modules only what they import and read."""
    paths = sorted(path for room in ("src", "tools", "bench") for path in (TOP / room).rglob("*.py"))
    read = {path: text_of(path) for path in paths}
    return {path: gist(text) if GENERATED in path.parents else text for path, text in read.items()}


def gist(text: str) -> str:
    """What a generated module uses, in a hundredth of its length."""
    imported = re.findall(r"^from [^(]*?(?:\(.*?\)|$)", text, re.MULTILINE | re.DOTALL)
    used = {*re.findall(r"\w+", " ".join(imported)), *re.findall(r"\bself\.\w+", text)}
    return "\n".join((*imported, *sorted(each for each in used if not iskeyword(each))))


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) if GENERATED in path.parents else tree_of(path) for path, text in texts().items()}


def written() -> Iterator[tuple[str, ast.Module]]:
    """What people wrote in src: place and tree."""
    for path, tree in trees().items():
        if path.is_relative_to(SOURCE) and GENERATED not in path.parents:
            yield str(path.relative_to(SOURCE)), tree


def module_of(place: str) -> str:
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass
class Uses:
    """What the files use. `imports`: (module, name) of every `from module import name`; name is empty for the module
    itself. `read`: the names that a file reads."""

    imports: set[tuple[str, str]] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    read: dict[ast.Module, set[str]] = field(default_factory=dict)


@cache
def uses() -> Uses:
    found = Uses()
    for tree in trees().values():
        read = found.read[tree] = set()
        for node in nodes_of(tree):
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    read.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.attributes.add(node.attr)
            elif isinstance(node, ast.Import):
                found.imports.update((each.name, "") for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.imports.update((node.module, each.name) for each in node.names)
    return found


@cache
def unused_names() -> frozenset[tuple[str, str]]:
    return frozenset((*names_nobody_mentions(), *names_nobody_imports()))


def names_nobody_mentions() -> Iterator[tuple[str, str]]:
    """(place, name) of all that has a name that nothing else has in its code."""
    found = Vulture(ignore_decorators=REGISTERED)
    found.noqa_lines = defaultdict(set)
    for path, tree in trees().items():  # as Vulture.scan, which would parse each text again
        found.filename = path
        found.visit(tree)
        found.reachability.reset()
    for each in found.get_unused_code():
        path = Path(each.filename)
        if path.is_relative_to(SOURCE) and GENERATED not in path.parents:
            yield str(path.relative_to(SOURCE)), each.name


def names_nobody_imports() -> Iterator[tuple[str, str]]:
    """(place, name) of what stands at the top of a module, is not read in it, not imported and no attribute's name."""
    found = uses()
    for place, tree in written():
        read = found.read[tree]
        for name in names_at_the_top(tree):
            is_imported = (module_of(place), name) in found.imports
            if name not in read and name not in found.attributes and not is_imported:
                yield place, name


def names_at_the_top(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list:
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for each in (name for target in targets for name in ast.walk(target)):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and not each.id.startswith("__"):
                    yield each.id


def is_used_from_outside(place: str, name: str) -> bool:
    if place.startswith("ottla/console/") and name in names_in_templates():
        return True
    return any(
        fnmatch(place, files) and any(re.fullmatch(each, name) for each in names.split())
        for files, (names, _) in FROM_OUTSIDE.items()
    )


@cache
def names_in_templates() -> frozenset[str]:
    """The attributes that the console's templates read."""
    templates = (SOURCE / "ottla" / "console" / "templates").glob("*.html")
    return frozenset(name for path in templates for name in re.findall(r"\.(\w+)", text_of(path)))


def fitting(files: str) -> Iterator[str]:
    """The texts of the files of src whose place fits."""
    return (text for path, text in texts().items() if fnmatch(str(path), f"*/src/{files}"))


@pytest.mark.slow("tests/test_unused.py::test_all_modules_are_used")
def test_all_code_is_used() -> None:
    left = sorted(f"{place}: {name}" for place, name in unused_names() if not is_used_from_outside(place, name))
    assert not left, "nothing in src, tools or bench uses it"


def test_no_exception_is_left_over() -> None:
    over = [
        f"{files}: {each}"
        for files, (names, _) in FROM_OUTSIDE.items()
        for each in names.split()
        if not any(re.search(rf"\b{each}\b", text) for text in fitting(files))
    ]
    assert not over, "is gone"


def test_all_modules_are_used() -> None:
    imports = uses().imports
    wanted = {f"{module}.{name}" if name else module for module, name in imports}
    wanted |= {module for module, _ in imports} | STARTED
    unused = [
        place
        for place, _ in written()
        if module_of(place) not in wanted and not place.endswith("__init__.py") and "/broker/api/k" not in place
    ]
    assert not unused, "imported by nothing in src, tools or bench"
