"""README.md and the pages of docs/ can be followed literally: each block pasted, in order, in a fresh directory.

The pages that need Spark are followed in tests/spark/test_written_pages.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import EmbeddedBroker
from tests.harness.docs.reader import READ_ONLY, TOP, Reader, blocks_of
from tools.node_process import held_ports

SHORT = ["docs/durability.md", "docs/groups.md", "docs/private-requests.md"]
LONG = [
    "docs/kmq.md",
    "docs/queues.md",
    "docs/pipelines/reports.md",
    "docs/pipelines/ship.md",
    "docs/testing.md",
    "docs/transactions.md",
]
"""Pages whose commands wait, for locks that run out and lines that come, or start nodes of their own."""
PAGES = [*SHORT, *LONG]
FOLLOWED_TOO = pytest.mark.slow("tests/docs/test_pages.py::test_a_page_can_be_followed")


@pytest.mark.parametrize("page", [*SHORT, *(pytest.param(page, marks=FOLLOWED_TOO) for page in LONG)])
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        reader = Reader(tmp_path, broker.bootstrap_servers)
        try:
            for block in blocks_of(page):
                reader.paste(block)
        finally:
            reader.leave()


OF_SECURITY = ["docs/security.md"]
"""Pages that start a node of their own, with its address in its settings."""


@pytest.mark.slow("tests/cli/test_security.py::test_one_command_makes_a_node_that_asks_for_a_password")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page signs a certificate with openssl")
@pytest.mark.parametrize("page", OF_SECURITY)
def test_the_page_about_security_can_be_followed(page: str, tmp_path: Path) -> None:
    with held_ports(1) as port:
        reader = Reader(tmp_path, f"localhost:{port}")
        try:
            for block in blocks_of(page):
                reader.paste(block)
        finally:
            reader.leave()


OF_CLUSTERS = ["docs/cluster.md", "docs/moving.md"]


@pytest.mark.slow("tests/cli/test_nodes.py::test_what_three_had_is_shared_by_four_and_one_is_emptied_and_forgotten")
@pytest.mark.parametrize("page", OF_CLUSTERS)
def test_the_pages_about_clusters_can_be_followed(page: str, tmp_path: Path) -> None:
    with held_ports(4) as port:
        reader = Reader(tmp_path, f"localhost:{port}")
        try:
            for block in blocks_of(page):
                reader.paste(block)
        finally:
            for directory in ("cluster", "four"):
                subprocess.run([sys.executable, "-m", "ottla", "cluster", "stop", "--data", directory], cwd=tmp_path)
            reader.leave()


PROVEN_ELSEWHERE = {
    "docs/machines.md": "test_machines_page.py has its three machines",
    "docs/benchmarks.md": "tests/bench runs each program with small numbers; the page's own runs take minutes",
}


def test_every_page_is_followed_somewhere() -> None:
    from tests.spark.test_written_pages import PAGES as OF_SPARK

    pages = [str(path.relative_to(TOP)) for path in [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]]
    with_blocks = [page for page in pages if any(block.language not in READ_ONLY for block in blocks_of(page))]
    followed = {*PAGES, *OF_SECURITY, *OF_CLUSTERS, *OF_SPARK, *PROVEN_ELSEWHERE}
    assert {page for page in followed if not page.startswith("examples/")} == set(with_blocks)
