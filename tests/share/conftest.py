"""What the tests of share groups on a node have in common: a stage, checked in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.share.share_stage import ShareStage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ShareStage]:
    made = ShareStage(tmp_path)
    yield made
    made.node.coordinators.share.check()
