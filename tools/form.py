"""Measures the form of a source tree, as rows of a table: its size, its structure, its words.

    python -m tools.form              this checkout
    python -m tools.form ../before    this checkout beside another tree, such as a worktree of an older commit

docs/internals/form.md has the figures. Most of them have bounds in tests; this program counts by the code of these
tests, in any tree.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import tests.test_errors_named
import tests.test_tidy
from tests.harness.plain_words import prose_of, unclear
from tests.harness.sources import docstrings, text_of, tree_of
from tests.test_api_keys import bare_keys
from tests.test_plain_words import messages
from tests.test_tidy import FUNCTION_LINES, functions, lines, sleeps, sources

API_TABLE_MIN = 8
"""So many entries make a table by API key; the broker has no other tables of numbers of this size."""
CELL_WORDS = 40
SENTENCE_WORDS = 30


def use(top: Path) -> None:
    """Measure this tree from now on."""
    tests.test_tidy.TOP = tests.test_errors_named.TOP = top
    tests.test_tidy.GENERATED = top / "src" / "ottla" / "protocol" / "messages"
    tests.test_errors_named.bases.cache_clear()


def top() -> Path:
    return tests.test_tidy.TOP


def pages() -> list[str]:
    return [text_of(path) for path in (*top().glob("*.md"), *(top() / "docs").rglob("*.md"))]


# ---- structure -----------------------------------------------------------------------------------------------------


def branching() -> int:
    """Functions with more than 15 branches."""
    rule = ["--select", "PLR0912", "--config", "lint.pylint.max-branches=15", "--exclude", "messages"]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format", "concise", *rule, top() / "src"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.count("PLR0912")


def keys_of(value: ast.expr | None) -> list[ast.expr]:
    match value:
        case ast.Dict(keys=keys):
            return [key for key in keys if key is not None]
        case ast.Set(elts=keys) | ast.List(elts=keys) | ast.Tuple(elts=keys):
            return keys
        case ast.Call(args=[inside, *_]):
            return keys_of(inside)
        case _:
            return []


def api_tables() -> Iterator[str]:
    """The tables of the broker by API key that people write: of numbers or of members of ApiKey."""
    for path in sources("src/ottla/broker"):
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                keys = [ast.unparse(key) for key in keys_of(node.value)]
                if len([key for key in keys if re.fullmatch(r"\d+|ApiKey\.\w+", key)]) >= API_TABLE_MIN:
                    yield f"{path.name}:{node.lineno}"


def owned(path: Path) -> Iterator[str]:
    """The fields that the classes of this module assign by `self`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def writers(room: str) -> dict[str, set[str]]:
    """Field: the other modules of the package that assign it. A field is known by its name alone."""
    paths = sources(f"src/ottla/{room}")
    own = {path: set(owned(path)) for path in paths}
    every, found = set[str]().union(*own.values()), defaultdict[str, set[str]](set)
    for path in paths:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in every - own[path]:
                found[node.attr].add(path.name)
    return found


def written(room: str) -> str:
    found = writers(room)
    return f"{len(found)} fields, by {max(map(len, found.values()), default=0)} modules at most"


def settings_of_any_type() -> int:
    return sum(len(re.findall(r"def __getitem__\(.*\) -> Any:", text_of(path))) for path in sources("src"))


def contracts() -> int:
    return text_of(top() / "pyproject.toml").count("[[tool.importlinter.contracts]]")


# ---- words ---------------------------------------------------------------------------------------------------------


def unclear_pages() -> int:
    return sum(len(list(unclear(prose_of(page)))) for page in pages())


def unclear_messages() -> int:
    found = (text for path in sources("src") if "sim" not in path.parts for text in messages(path))
    return sum(len(list(unclear(text))) for text in found)


def unclear_docstrings() -> str:
    said = [prose_of(str(each.value)) for path in sources("src") for each in docstrings(tree_of(path))]
    clauses = sum(len(re.findall(r"[.;:]\s|\n\n|$", prose)) for prose in said)
    return f"{sum(len(list(unclear(prose))) for prose in said)} of {clauses} clauses"


def long_cells() -> int:
    rows = (line for page in pages() for line in page.splitlines() if line.startswith("|"))
    return sum(len(cell.split()) > CELL_WORDS for row in rows for cell in re.split(r"(?<!\\)\|", row))


def long_sentences() -> str:
    prose = (line for page in pages() for line in prose_of(page).splitlines() if "|" not in line)
    sizes = [len(said.split()) for line in prose for said in re.split(r"(?<=[.!?:;])\s+", line) if said]
    return f"{sum(size > SENTENCE_WORDS for size in sizes)} of {len(sizes)}"


def short_functions() -> str:
    sizes = [size for path in sources("src") for _, size in functions(path)]
    short = sum(size <= FUNCTION_LINES for size in sizes) / len(sizes)
    return f"{len(sizes)}, {100 * short:.1f} % up to {FUNCTION_LINES} lines, the longest {max(sizes)}"


def bare_api_keys() -> int:
    return sum(len({*bare_keys(tree_of(path))}) for path in sources("src", "tools", "bench"))


ROWS: dict[str, Callable[[], object]] = {
    "lines of Python in `src`, without generated ones": lambda: sum(map(lines, sources("src"))),
    "lines of Python in `tests`": lambda: sum(map(lines, sources("tests"))),
    "functions in `src`": short_functions,
    "longest file in `src`, in lines": lambda: max(map(lines, sources("src"))),
    "functions with more than 15 branches": branching,
    "bare numbers as API keys": bare_api_keys,
    "tables by API key in `broker`": lambda: len(list(api_tables())),
    "fields that other modules assign, in `log`": lambda: written("log"),
    "fields that other modules assign, in `groups`": lambda: written("groups"),
    "`__getitem__` of settings that returns Any": settings_of_any_type,
    "import contracts": contracts,
    "public functions whose docstrings lack an error": lambda: len(tests.test_errors_named.unnamed()),
    "sleeps in `tests`": lambda: len(sleeps()),
    "unclear wording in pages": unclear_pages,
    "unclear wording in help, messages and log lines": unclear_messages,
    "unclear wording in docstrings": unclear_docstrings,
    f"clauses over {SENTENCE_WORDS} words in pages": long_sentences,
    f"cells of tables over {CELL_WORDS} words": long_cells,
    "words of ARCHITECTURE": lambda: len(text_of(top() / "ARCHITECTURE.md").split()),
}


def main(others: list[str]) -> None:
    trees = [*(Path(each).resolve() for each in others), top()]
    columns: list[list[str]] = []
    for tree in trees:
        use(tree)
        columns.append([str(count()) for count in ROWS.values()])
    print(f"| | {' | '.join([*(tree.name for tree in trees[:-1]), 'this checkout'])} |\n|---|{'---|' * len(trees)}")
    for name, *cells in zip(ROWS, *columns, strict=True):
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
