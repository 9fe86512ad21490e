"""docs/queues.md from top to bottom: its commands and programs run in order against one broker.

A line of the document `# -> text` after a program says what it prints. Commands may be fed by a pipe.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.testing import EmbeddedBroker

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "queues.md"
PIECES = re.compile(r"```python\n(?P<program>.*?)```|```sh\n(?P<commands>.*?)```", re.DOTALL)


def pieces() -> list[tuple[str, str]]:
    return [(kind, found[kind]) for found in PIECES.finditer(DOCUMENT.read_text()) if (kind := found.lastgroup)]


def run_program(text: str, names: dict[str, object]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, DOCUMENT.name, "exec"), names)
    assert printed.getvalue().splitlines() == re.findall(r"^# -> (.*)$", text, re.MULTILINE)


def run_command(line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    feeder, _, command = line.rpartition(" | ")
    fed = subprocess.run(["sh", "-c", feeder], check=True, capture_output=True).stdout if feeder else b""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fed)))
    noun, *arguments = shlex.split(command)
    assert noun == "ottla", line
    capfd.readouterr()
    code = main(arguments)
    assert code == 0, f"{line}: {capfd.readouterr().err}"


def test_every_example_runs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "queues"}
    with EmbeddedBroker() as broker:
        monkeypatch.setenv("OTTLA_BOOTSTRAP", broker.bootstrap_servers)
        for kind, text in pieces():
            if kind == "program":
                run_program(text.replace("localhost:9092", broker.bootstrap_servers), names)
            else:
                for line in text.splitlines():
                    run_command(line.strip(), monkeypatch, capfd)


def test_the_examples_are_found() -> None:
    kinds = [kind for kind, _ in pieces()]
    assert kinds.count("program") == 4
    assert kinds.count("commands") > 8
    assert all(line.strip().split(" | ")[-1].startswith("ottla ") for kind, text in pieces() if kind == "commands"
               for line in text.splitlines())  # fmt: skip
