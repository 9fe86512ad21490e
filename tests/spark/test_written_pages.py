"""README.md and the pages about pipelines can be followed literally, on the tests' Spark session.

`ottla pipeline` lines run in this process, where a JVM is up already; everything else as
tests/harness/docs/reader.py says. The last file of its directory: what pages and commands do to the session that
all tests share is not undone.
"""

from __future__ import annotations

import ast
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.cli.main import main
from ottla.testing import EmbeddedBroker
from tests.harness.docs.reader import TOP, Reader, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = [
    "README.md",
    "docs/spark.md",
    "docs/pipelines/source.md",
    "docs/pipelines/sink.md",
    "docs/pipelines/activity.md",
    "docs/pipelines/logs.md",
    "docs/pipelines/archive.md",
    "docs/pipelines/replay.md",
    "docs/pipelines/kmq-tracker.md",
    "examples/activity_lake/README.md",
]

ELSEWHERE = {
    "./demo": "tests/demo plays the demonstration, and this is ./test",
    "ottla cluster start": "tests/cli/test_cluster.py does the same, at ports that are free",
    "python3 -m venv": "tools/release.py installs the distributions in fresh environments and uses them",
    'pip install ".[spark]"': "the same",
    "python -m venv /srv": "tests/spark/platform/test_cluster.py starts a cluster as the page does",
    "$SPARK_HOME": "the same",
    "export SPARK_LOCAL_DIRS": "the same",
    "/srv/ottla/bin": "the same",
}
"""How blocks begin that are not pasted here, and what proves them."""


FOLLOWED = pytest.mark.slow("tests/spark/test_written_pages.py::test_names_and_options_on_a_page_exist")
LONG = [
    "docs/pipelines/activity.md",
    "docs/pipelines/logs.md",
    "docs/pipelines/kmq-tracker.md",
    "examples/activity_lake/README.md",
]
"""Pages that run what the README runs, on other records."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long if page in LONG else FOLLOWED) for page in PAGES]
)
def test_a_page_can_be_followed(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # commands end their session; the tests' one stays
    monkeypatch.chdir(tmp_path)
    for program in (TOP / page).parent.glob("*.py"):
        shutil.copy(program, tmp_path)
    with EmbeddedBroker() as broker:
        reader = Reader(tmp_path, broker.bootstrap_servers, pipeline=lambda line: run_here(line, reader, monkeypatch))
        try:
            for block in blocks_of(page):
                if not block.text.startswith(tuple(ELSEWHERE)):
                    reader.paste(block)
        finally:
            reader.leave()


def run_here(line: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> int:
    """An `ottla pipeline` line, as its own process would run it; the exit code."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", reader.bootstrap)
    return main(shlex.split(line, comments=True)[1:])


@pytest.mark.usefixtures("spark")  # in a process that has imported pyspark
@pytest.mark.parametrize("page", PAGES)
def test_names_and_options_on_a_page_exist(page: str) -> None:
    import typer

    from ottla.cli.tree import app

    for block in blocks_of(page):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ottla"):
                    gone = [each.name for each in node.names if not hasattr(import_module(node.module), each.name)]
                    assert not gone, f"{block}: {node.module}"
        for line in block.text.splitlines() if block.language == "sh" else ():
            if line.startswith("ottla pipeline "):
                command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
                while words and words[0] in (verbs := getattr(command, "commands", {})):
                    command = verbs[words.pop(0)]
                options = {option for each in command.params for option in each.opts}
                assert {word for word in words if word.startswith("-")} <= {*options, "--help"}, f"{block}: {line}"
