"""What most tests of the node have in common: a node of its own for each."""

from pathlib import Path

import pytest

from tests.harness.node_stage import NodeStage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return NodeStage(tmp_path / "node")
