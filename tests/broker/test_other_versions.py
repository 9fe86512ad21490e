"""A node works in a cluster, and in a directory, in which the version before this one runs or ran meanwhile."""

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.cluster.membership import Joining
from ottla.log.checkpoints import write_lost_since
from ottla.log.files import DiskFiles
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import BETWEEN_NODES, NodeRecord, NodeState
from ottla.metadata.store import ABSENT, Put
from tests.harness.node_stage import NodeStage

LEASE_MS = 3_600_000
AT: tuple[str, int] = ("127.0.0.1", 9001)
LISTENERS: dict[str, tuple[str, int]] = {"PLAINTEXT": AT}
"""The endpoints that the version before this one writes."""


def joining(life: str) -> Joining:
    return Joining(*AT, life, LEASE_MS, {BETWEEN_NODES: AT, **LISTENERS})


def row_of(store: MemoryStore, node_id: int = 1) -> NodeRecord:
    row = store.get(f"nodes/{node_id}")
    assert row is not None
    return replace(NodeRecord.decode(row.value), version=row.version)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def stage(tmp_path: Path, store: MemoryStore) -> NodeStage:
    """A node of a cluster, after a clean stop."""
    stage = NodeStage(tmp_path / "node", store=store, joining=joining("life-1"), ottla_cluster_secret="secret")
    stage.run()
    stage.end()
    row = replace(row_of(store), state=NodeState.ACTIVE)
    store.commit([Put("nodes/1", row.encode(), row.version)])
    return stage


def start_again(stage: NodeStage) -> None:
    stage.joining = joining("life-2")
    stage.start()
    stage.run()


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_directory_in_which_an_earlier_version_ran_is_not_taken_for_an_older_copy(
    stage: NodeStage, store: MemoryStore, is_earlier: bool
) -> None:
    """A life that the directory does not know has run meanwhile: here, by a version that notes none, or elsewhere."""
    endpoints = dict(LISTENERS) if is_earlier else {BETWEEN_NODES: AT, **LISTENERS}
    between = replace(row_of(store), incarnation="life-between", endpoints=endpoints)
    store.commit([Put("nodes/1", between.encode(), between.version)])
    start_again(stage)
    assert row_of(store).incarnation == "life-2"
    assert row_of(store).intact == is_earlier
    assert any("was restored or copied" in note for note in stage.notes) != is_earlier


@pytest.mark.parametrize("is_earlier", [True, False])
def test_an_earlier_version_learns_of_an_incomplete_log_what_it_reads(
    stage: NodeStage, store: MemoryStore, is_earlier: bool
) -> None:
    """A controller of that version takes only a node out of the eligible replicas whose row is not intact."""
    endpoints = dict(LISTENERS) if is_earlier else {BETWEEN_NODES: AT, **LISTENERS}
    other = NodeRecord("127.0.0.1", 9002, endpoints=endpoints, incarnation="other")
    store.commit([Put("nodes/2", other.encode(), ABSENT)])
    write_lost_since(DiskFiles(), str(stage.directory), "life-1", [(bytes(range(16)), 0)])
    start_again(stage)
    assert row_of(store).incarnation == "life-2"
    assert row_of(store).intact != is_earlier
