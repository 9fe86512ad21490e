"""Pages, help texts, messages, log lines and docstrings read plainly."""

import ast
import re
from pathlib import Path

import pytest

from tests.harness.plain_words import prose_of, unclear
from tests.harness.sources import FORM, docstrings, nodes_of, text_of, tree_of
from tests.test_tidy import TOP, sources

pytestmark = FORM

UNCLEAR_MAX = 0.0005
"""The share of the clauses of docstrings that may match."""
WORDS_OF_A_PARAGRAPH = 100
WORDS_OF_THE_DESIGN = 6_000
WORDS_OF_A_MESSAGE = 4
"""A shorter text in the code is a name or a part of one."""


def test_pages_read_plainly() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    found = {str(page.relative_to(TOP)): list(unclear(prose_of(text_of(page)))) for page in pages}
    assert not {name: left for name, left in found.items() if left}


def test_paragraphs_of_the_design_are_short() -> None:
    for page in (TOP / "ARCHITECTURE.md", *(TOP / "docs" / "internals").glob("*.md")):
        text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
        paragraphs = re.split(r"\n\n|\n(?=- |\d\. )", text)
        assert not [
            each for each in paragraphs if each[:1] not in {" ", "|", "#"} and len(each.split()) > WORDS_OF_A_PARAGRAPH
        ], page


def test_the_design_is_read_in_twenty_minutes() -> None:
    """Details of one subsystem are in docs/internals."""
    assert len(text_of(TOP / "ARCHITECTURE.md").split()) < WORDS_OF_THE_DESIGN


def messages(path: Path) -> list[str]:
    """Texts in a module that may reach a user: its strings but for docstrings, with X for what is put in."""
    tree = tree_of(path)
    silent: set[int] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr):
            silent.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            silent.update(map(id, node.values))
        elif isinstance(node, ast.Assert):
            silent.update(map(id, ast.walk(node)))
    texts: list[str] = []
    for node in nodes_of(tree):
        if id(node) in silent:
            continue
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return [text for text in texts if len(text.split()) >= WORDS_OF_A_MESSAGE]


def test_messages_read_plainly() -> None:
    found = {
        f"{path.relative_to(TOP)}: {text}": list(unclear(text))
        for path in sources("src")
        if "sim" not in path.parts
        for text in messages(path)
    }
    assert not {text: left for text, left in found.items() if left}


def test_docstrings_read_plainly() -> None:
    """A clause is what ends in a stop, a colon or a semicolon."""
    clauses, found = 0, dict[str, list[tuple[str, str]]]()
    for path in sources("src"):
        for said in docstrings(tree_of(path)):
            prose = prose_of(str(said.value))
            clauses += len(re.findall(r"[.;:]\s|\n\n|$", prose))
            if left := list(unclear(prose)):
                found[f"{path.relative_to(TOP)}:{said.lineno}"] = left
    assert len(found) < UNCLEAR_MAX * clauses, found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Who names no time does not want nothing.", 'A timeout of 0 means "use the default".'),
        ("Is a file damaged for good, bring this directory back.", "If a file is damaged, restore its directory."),
        ("The node is told of it.", "The node receives it."),
        ("t-0 is out of service, which is looked at again", "t-0 is offline; will retry"),
        ("Nobody leads now.", "The partition has no leader."),
        ("Then it begins anew.", "Then it starts again."),
        ("so does one of Kafka 4", "one of Kafka 4 does the same"),
    ],
)
def test_wording_that_has_to_be_read_twice_is_found(before: str, after: str) -> None:
    assert list(unclear(before))
    assert not list(unclear(after))
