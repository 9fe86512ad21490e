"""Each example works as its page says: every block pasted, in order, in a copy of its directory.

The example that needs Spark is followed in tests/spark/test_written_pages.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ottla.testing import EmbeddedBroker
from tests.harness.docs.reader import TOP, Reader, blocks_of

EXAMPLES = ["job_queue", "shop", "request_reply", "enrichment", "change_capture"]
"""The first one waits for back-offs, as the page about queues does."""
ON_SPARK = ["activity_lake"]
FOLLOWED_TOO = pytest.mark.slow("tests/examples/test_examples.py::test_an_example_works_as_its_page_says")


@pytest.mark.parametrize("example", [*EXAMPLES[2:], *(pytest.param(each, marks=FOLLOWED_TOO) for each in EXAMPLES[:2])])
def test_an_example_works_as_its_page_says(example: str, tmp_path: Path) -> None:
    directory = shutil.copytree(TOP / "examples" / example, tmp_path / example)
    with EmbeddedBroker() as broker:
        reader = Reader(directory, broker.bootstrap_servers)
        try:
            for block in blocks_of(f"examples/{example}/README.md"):
                reader.paste(block)
        finally:
            reader.leave()


def test_every_example_is_tested_and_listed() -> None:
    found = sorted(path.parent.name for path in (TOP / "examples").glob("*/README.md"))
    assert found == sorted(EXAMPLES + ON_SPARK)
    listed = (TOP / "examples" / "README.md").read_text()
    assert all(f"[{example}]({example}/README.md)" in listed for example in found)
