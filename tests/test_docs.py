"""The documents say what is so: references are as generated, the README's example runs, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import EmbeddedBroker

TOP = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").rglob("*.md"))]


def test_references_are_as_generated() -> None:
    ended = subprocess.run(
        [sys.executable, str(TOP / "tools" / "write_docs.py"), "--check"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_the_readmes_example_runs(ottla_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(from confluent_kafka.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    exec(compile(example.replace("localhost:9092", ottla_broker.bootstrap_servers), "README.md", "exec"), {})
    assert capsys.readouterr().out == "b'/checkout'\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


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
