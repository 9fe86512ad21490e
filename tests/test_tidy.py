"""The house style, measured. A ratchet: the bounds below only ever get tighter.

`python -m tests.test_tidy` prints the figures (so does `make tidy`).
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.harness.sources import FORM, nodes_of, text_of, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parent.parent
GENERATED = TOP / "src" / "ottla" / "protocol" / "messages"

FILE_LINES_MAX = 800
FUNCTION_LINES = 40
FUNCTION_LINES_MAX = 70
SHORT_FUNCTIONS_MIN = 0.98
"""The share of functions of at most FUNCTION_LINES lines; the codebases that read easily have 0.9."""
SECTION_COLUMNS = 118
SLEEPS_MAX = 29
"""How often tests sleep, in real time or virtual. They wait for events, or poll with tests/harness/waiting.py."""

BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "service", "impl", "info", "data", "misc", "common"}
KAFKAS_WORDS: set[str] = set()
"""Names of Kafka's own that hold a banned word."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*rooms: str) -> list[Path]:
    """Python that people write, in a stable order."""
    found = [path for room in rooms for path in (TOP / room).rglob("*.py")]
    return sorted(path for path in found if GENERATED not in path.parents)


def texts() -> Iterator[Path]:
    """Every text of the project: code, scripts, documents."""
    yield from sources("src", "tests", "tools", "bench")
    for room in ("docs", ".ci", "tools", "bench"):
        yield from (
            path for path in sorted((TOP / room).rglob("*")) if path.suffix in {".md", ".sh", ""} and path.is_file()
        )
    names = (*(path.name for path in sorted(TOP.glob("*.md"))), "Makefile", "pyproject.toml", "demo", "test", "cluster")
    yield from (TOP / name for name in names if (TOP / name).exists())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(qualified place, lines) of every function, from its def to its end; nested ones count for themselves too."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, Function):
            assert node.end_lineno is not None
            yield f"{path.relative_to(TOP)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def lines(path: Path) -> int:
    return text_of(path).count("\n")


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def sleeps() -> list[str]:
    """Where tests and their harness sleep; `sleep(0)` only lets others run."""
    return [
        f"{path.relative_to(TOP)}:{node.lineno}"
        for path in sources("tests")
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
        if ast.unparse(node.args[0]) != "0"
    ]


def test_tests_wait_for_events() -> None:
    assert len(found := sleeps()) <= SLEEPS_MAX, "\n".join(found)


def test_files_are_short() -> None:
    long = [f"{path.relative_to(TOP)}: {lines(path)}" for path in sources("src") if lines(path) > FILE_LINES_MAX]
    assert not long, f"over {FILE_LINES_MAX} lines"


def test_no_function_is_very_long() -> None:
    long = [
        f"{place}: {size}" for path in sources("src") for place, size in functions(path) if size > FUNCTION_LINES_MAX
    ]
    assert not long, f"over {FUNCTION_LINES_MAX} lines"


def test_functions_are_short() -> None:
    sizes = [size for path in sources("src") for _, size in functions(path)]
    assert sum(size <= FUNCTION_LINES for size in sizes) / len(sizes) >= SHORT_FUNCTIONS_MIN


def test_modules_say_what_they_know() -> None:
    silent = [str(path.relative_to(TOP)) for path in sources("src") if not ast.get_docstring(tree_of(path))]
    assert not silent, "without a docstring"


def test_modules_say_first_what_they_do() -> None:
    """In a sentence that begins with a verb; rooms, handlers and commands begin with their names."""
    named = re.compile(r"__init__|__main__|k\d\d+_\w+")
    other = [
        f"{path.relative_to(TOP)}: {said.split(maxsplit=1)[0]}"
        for path in sources("src")
        if not named.fullmatch(path.stem)
        and not re.match(r"[A-Z][a-z]+s,? |`", said := ast.get_docstring(tree_of(path)) or "")
    ]
    assert not other, "begin otherwise"


def test_names_say_what_they_mean() -> None:
    named: list[str] = []
    for path in sources("src"):
        if words(path.stem) & BANNED_WORDS:
            named.append(str(path.relative_to(TOP)))
        classes = (node.name for node in nodes_of(tree_of(path)) if isinstance(node, ast.ClassDef))
        named += [f"{path.relative_to(TOP)}: {name}" for name in classes if words(name) & BANNED_WORDS - KAFKAS_WORDS]
    assert not named, "named by a word that says nothing"


def test_versions_and_errors_are_said_one_way() -> None:
    """`version >= _BY_TOPIC_ID_SINCE` with a constant of the module; an ErrorCode is given to a message as it is."""
    other = re.compile(r"\bversion (?:[<>]=?|[!=]=) [1-9]|\bFIRST_\w*VERSION|\bint\(ErrorCode\.")
    found = [
        f"{path.relative_to(TOP)}: {match[0]}"
        for path in sources("src/ottla/broker", "src/ottla/groups", "src/ottla/share")
        for match in other.finditer(text_of(path))
    ]
    assert not found, "said in another way"


def test_sections_are_marked_one_way() -> None:
    """`# ---- name ----` up to column 118, and no other comment of a few words that stands alone."""
    alone = re.compile(r"\n\n( *#(?! ---- )[^\n]*[^\n.:])\n\n")
    found: list[str] = []
    for path in sources("src", "tests", "bench", "tools"):
        text = text_of(path)
        marks = [line for line in text.split("\n") if line.lstrip().startswith("# ----")]
        others = [mark for mark in marks if len(mark) != SECTION_COLUMNS or not re.search(r"# ---- \S.* -{4,}$", mark)]
        found += [f"{path.relative_to(TOP)}: {mark}" for mark in (*others, *alone.findall(text))]
    assert not found, "marked in another way"


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    left = [str(path.relative_to(TOP)) for path in texts() if marks.search(text_of(path))]
    assert not left, "with a mark of unfinished work"


def test_no_machine_is_named() -> None:
    """Paths of one machine mean nothing on another."""
    paths = re.compile(r"(?<![\w.])/(work|root|opt|home)" r"/\w")
    here = [str(path.relative_to(TOP)) for path in texts() if paths.search(text_of(path))]
    assert not here, "with a path of one machine"


@pytest.mark.slow("tests/test_docs.py::test_references_are_as_generated")
def test_generated_code_is_as_generated() -> None:
    subprocess.run([sys.executable, "-m", "tools.generate_messages", "--check"], cwd=TOP, check=True)


def print_figures() -> None:
    paths = sources("src")
    sizes = sorted(((size, place) for path in paths for place, size in functions(path)), reverse=True)
    short = sum(size <= FUNCTION_LINES for size, _ in sizes)
    total = sum(lines(path) for path in paths)
    generated = sum(lines(path) for path in GENERATED.rglob("*.py"))
    tests = sum(map(lines, sources("tests")))
    print(f"{len(paths)} files, {total} lines written, {generated} generated, {tests} of tests")
    print(f"{len(sizes)} functions, {100 * short / len(sizes):.1f} % of at most {FUNCTION_LINES} lines")
    for size, path in sorted(((lines(path), path) for path in paths), reverse=True)[:5]:
        print(f"{size:6} {path.relative_to(TOP)}")
    for size, place in sizes[:5]:
        print(f"{size:6} {place}")


if __name__ == "__main__":
    print_figures()
