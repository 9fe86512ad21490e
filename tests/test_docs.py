"""The documents say what is so: references are as generated, links lead somewhere, commands exist."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").rglob("*.md"))]


def test_references_are_as_generated() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.write_docs", "--check"], cwd=TOP, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


def test_every_command_and_option_is_in_the_reference() -> None:
    """By a walk of its own: nouns under nouns too, and options that share their name with one of all commands."""
    from ottla.cli.tree import command

    def walk(name: str, at: Any) -> Iterator[tuple[str, Any]]:
        below = getattr(at, "commands", {})
        if not below or at.invoke_without_command:
            yield name, at
        for verb, each in below.items():
            yield from walk(f"{name} {verb}", each)

    text = (TOP / "docs" / "cli.md").read_text()
    parts = dict(re.findall(r"^###? (?:ottla )?([a-z -]+[a-z]).*\n([^#]*)", text, re.MULTILINE))
    everywhere = {"--bootstrap", "--command-config", "--command-property", "--format", "--help"}
    for noun, at in command().commands.items():
        for name, each in walk(noun, at):
            for option in (each for each in each.params if each.param_type_name == "option"):
                told = any(f"`{each}" in parts[name] for each in option.opts)
                assert told or everywhere & {*option.opts}, f"{name} {option.opts[0]}"
    assert "Format of a new table: delta or parquet (default delta)." in parts["pipeline archive"]


def test_commands_in_the_documents_exist() -> None:
    """`ottla NOUN VERB` and `make TARGET` as they stand in indented and inline code."""
    import typer

    from ottla.cli.tree import app

    tree = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        text = document.read_text()
        for noun, verb in re.findall(r"(?:^|`|\| )ottla ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text, re.MULTILINE):
            command = getattr(tree, "commands")[noun]  # noqa: B009
            assert not hasattr(command, "commands") or not verb or verb in command.commands, (
                f"{document}: {noun} {verb}"
            )
        for target in re.findall(r"`make ([a-z-]+)", text):
            assert target in targets, f"{document}: make {target}"


def test_nobody_is_told_to_install_a_name_that_anyone_can_take() -> None:
    """Ottla is in no package index: documents and messages install it from a clone or from a wheel."""
    texts = [*DOCUMENTS, *sorted((TOP / "src").rglob("*.py"))]
    published = re.compile(r"pip install (?:-\S+ )*[\"']?ottla(?![-/\w]*\.whl)|[\"']ottla\\*\[")
    found = [f"{path.relative_to(TOP)}: {each[0]}" for path in texts for each in published.finditer(path.read_text())]
    assert not found
