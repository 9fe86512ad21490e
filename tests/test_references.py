"""What docstrings, comments and documents speak of is there: files, modules, names, sections."""

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from tests.harness.sources import FORM, docstrings, nodes_of, text_of, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parent.parent
SOURCE = TOP / "src" / "ottla"
GENERATED = SOURCE / "protocol" / "messages"
ROOMS = ("src", "tests", "tools", "bench", "docs", ".ci")

_FILE = re.compile(r"(?<![\w./@:$~{-])((?:[\w.*-]+/)*[\w*-][\w.*-]*\.(?:py|md|toml|sh|txt|j2))\b(?![\w/(])")
_PLACE = re.compile(r"(?<![\w./@:$~-])((?:src|tests|tools|docs|bench)/[\w./*-]*\w)")
_NAME = re.compile(r"`(?:[A-Za-z]\w*\.)*([A-Za-z]\w*_\w+)`")
_MODULE = re.compile(r"(?<![\w/-])ottla(?:\.[a-z_]\w*)+")
_SECTION = re.compile(r"ARCHITECTURE(?:\.md)?,? section (\d+)(?:,\s+rule (\d+))?")
_NOBODY_CAN_READ = re.compile(r"\bthe design's|\bof the design\b|\bcluster notes\b|\bdesign notes?\b")

ELSEWHERE = {
    "kafka-*.sh": "Kafka's tools",
    "docs/operations/monitoring.md": "Kafka's",
    "src/main/resources/*": "Kafka's",
    "python/pyspark/*": "Spark's",
    "docs/index.md": "Spark's",
    "*daemon.py": "PySpark's",
    "*_driver_worker.py": "PySpark's",
    "PROTOCOL.md": "Delta's",
    "measure.py": "of the machine that compares peers",
    "stacks.txt": "what an example writes",
    "extract_regex": "Arrow's",
    "try_parse_json": "Spark's",
    "*kNN_*": "any of them",
}
"""Files and names of others."""
REASONS = ("Does not apply: ", "A node keeps no frame: ")
"""Begin the cells of docs/security.md that say why a threat needs no test."""


@cache
def files() -> dict[str, Path]:
    """Every file of the project that people write."""
    found = [path for room in ROOMS for path in (TOP / room).rglob("*") if path.is_file()]
    found += [path for path in TOP.iterdir() if path.is_file()]
    return {str(path.relative_to(TOP)): path for path in sorted(found) if "__pycache__" not in path.parts}


@cache
def places() -> str:
    """Every file and directory of the project, one a line, with a slash in front."""
    found = {f"/{each}" for each in files()} | {f"/{each.relative_to(TOP)}" for each in (TOP / "examples").rglob("*")}
    found |= {str(parent) for each in found for parent in Path(each).parents}
    return "\n".join(sorted(found)) + "\n"


@cache
def trees() -> dict[str, ast.Module]:
    return {
        name: tree_of(path) for name, path in files().items() if path.suffix == ".py" and GENERATED not in path.parents
    }


@cache
def texts() -> dict[str, str]:
    """What people are told in each file: documents, and docstrings and comments of code."""
    told: dict[str, str] = {}
    for name, path in files().items():
        if name in trees() and name != "tests/test_references.py":
            said = [str(each.value) for each in docstrings(trees()[name])]
            told[name] = "\n".join(said + re.findall(r"(?:^|  )#(.*)", text_of(path), re.MULTILINE))
        elif name in ("CHANGELOG.md", "bench/RESULTS.md"):
            continue  # they tell of what was
        elif path.suffix in {".md", ".toml", ".sh"} or path.name in {"Makefile", "demo", "test", "cluster"}:
            told[name] = text_of(path)
    return told


def is_elsewhere(name: str) -> bool:
    return any(fnmatch(name, each) for each in ELSEWHERE)


@cache
def is_there(name: str) -> bool:
    """Whether a file or directory of the project ends so."""
    path = re.sub(r"^(\.\.?/)+", "", name)
    return re.search(f"/{re.escape(path).replace(chr(92) + '*', '[^/]*')}\n", places()) is not None


def test_files_that_are_named_are_there() -> None:
    gone = {
        f"{name}: {match[1]}"
        for name, text in texts().items()
        for match in (*_FILE.finditer(text), *_PLACE.finditer(text))
        if not is_there(match[1]) and not is_elsewhere(match[1])
    }
    assert not gone, "no such file"


@cache
def words() -> frozenset[str]:
    """Every word of the project's code, and the parts of its files' names."""
    found: set[str] = {part for name in files() for part in re.split(r"[/.]", name)}
    for tree in trees().values():
        prose = {id(each) for each in docstrings(tree)}
        for node in nodes_of(tree):
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and id(node) not in prose:
                    found.update(re.findall(r"\w+", node.value))
            else:
                for called in node.__dict__.values():
                    if isinstance(called, str):
                        found.update(called.split("."))
    return frozenset(found)


def test_names_in_docstrings_are_there() -> None:
    gone = {
        f"{name}: {match[1]}"
        for name, text in texts().items()
        if name.startswith("src/")
        for match in _NAME.finditer(text)
        if match[1] not in words() and not is_elsewhere(match[1])
    }
    assert not gone, "nothing is called so"


def has_module(dotted: str) -> bool:
    """Whether `ottla.room.module.name` leads somewhere; what is no room is a property's name."""
    path, (room, *rest) = SOURCE, dotted.split(".")[1:]
    if not (SOURCE / room).is_dir():
        return True
    for part in (room, *rest):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").exists():
            path /= f"{part}.py"
        else:
            text = (path / "__init__.py" if path.is_dir() else path).read_text()
            return re.search(rf"\b{part}\b", text) is not None
    return True


def test_modules_that_are_named_are_there() -> None:
    gone = {
        f"{name}: {match[0]}"
        for name, text in texts().items()
        for match in _MODULE.finditer(text)
        if not has_module(match[0])
    }
    assert not gone, "no such module"


def test_lists_of_modules_are_complete() -> None:
    """The docstring of a package that lists modules lists all of them, its subpackages too or not."""
    wrong: dict[str, set[str]] = {}
    for init in SOURCE.rglob("__init__.py"):
        listed = set(re.findall(r"^ {4}(\w+\.py) {2}", text_of(init), re.MULTILINE))
        modules = {path.name for path in init.parent.glob("*.py")} - {"__init__.py"}
        if listed and (differ := listed ^ modules):
            wrong[str(init.relative_to(TOP))] = differ
    assert not wrong, "not the modules of the package"


def test_sections_that_are_named_are_there() -> None:
    house = (TOP / "ARCHITECTURE.md").read_text()
    gone = [f"{name}: {match[0]}" for name, text in texts().items() for match in _NOBODY_CAN_READ.finditer(text)]
    for name, text in texts().items():
        for match in _SECTION.finditer(text):
            section = re.search(rf"^## {match[1]}\. .*?(?=^## |\Z)", house, re.MULTILINE | re.DOTALL)
            if section is None or (match[2] and not re.search(rf"^{match[2]}\. ", section[0], re.MULTILINE)):
                gone.append(f"{name}: {match[0]}")
    assert not gone, "no such section"


def test_slow_tests_name_a_quick_one() -> None:
    """`pytest.mark.slow("file::test")` names the test that ./test runs in its place."""
    slow: set[str] = set()
    named: dict[str, str] = {}
    for name, tree in trees().items():
        if "/test_" not in name:
            continue
        marks_of_file = {
            ast.unparse(node.targets[0])
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("pytest.mark.slow(")
        }
        for node in nodes_of(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.slow":
                named[f"{name}:{node.lineno}"] = "".join(map(ast.literal_eval, node.args))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = {"pytestmark", *map(ast.unparse, node.decorator_list)}
                if marks & marks_of_file or any(mark.startswith("pytest.mark.slow") for mark in marks):
                    slow.add(f"{name}::{node.name}")
            elif isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow":
                named.setdefault(f"{name}:{node.lineno}", "")  # a mark without a name, unless it is that of a call
    tests = {
        f"{name}::{node.name}"
        for name, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    gone = [f"{place}: {other or 'no test'}" for place, other in named.items() if other not in tests - slow]
    assert not gone, "no such quick test"


def test_anchors_in_documents_are_there() -> None:
    gone: list[str] = []
    for name, text in texts().items():
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", text) if name.endswith(".md") else ():
            document = (TOP / name).parent / target if target else TOP / name
            headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
            if anchor not in slugs:
                gone.append(f"{name}: {target}#{anchor}")
    assert not gone, "no such heading"


def test_each_threat_names_a_test_that_exists() -> None:
    """A test function, a file, or a reason why there is none."""
    page = text_of(TOP / "docs" / "security.md")
    section = page[page.index("## Threats") : page.index("## From nothing to a secured node")]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    tests = {
        node.name
        for name, tree in trees().items()
        if name.startswith("tests/")
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef)
    }
    without: list[str] = []
    for row in rows:
        proof = row[-1].strip()
        named = re.findall(r"`(test_\w+)`", proof)
        assert set(named) <= tests, row
        in_files = re.findall(r"`tests/[\w/]+\.py`", proof)
        if not named and not in_files and "make fuzz" not in proof:
            without.append(proof)
    assert len(rows) > 30
    headings = {"test", "here"}
    assert not [each for each in without if each not in headings and not each.startswith(REASONS)]
