"""Which replica a consumer is sent to, and what a replica that does not lead answers it (KIP-392)."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.broker_table import RACK_AWARE_SELECTOR
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.store import Put
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.test_leading import fetch as followers_fetch
from tests.broker.test_leading import part_of, partition_of, place
from tests.harness.node_stage import Asked, NodeStage

RACKS = {1: "a", 2: "b", 3: "b"}


def made(directory: Path, **settings: Any) -> NodeStage:
    """Node 1 in rack a leads t-0, 2 and 3 in rack b follow; three records are committed."""
    stage = NodeStage(directory, **settings)
    stage.create("t", 1)
    tell_nodes(stage)
    place(stage, leader=1, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2, 3))
    for _ in range(3):
        stage.append("t", 0)
    for node_id in (2, 3):
        followers_fetch(stage, 3, node_id=node_id)
    return stage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return made(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR)


def tell_nodes(stage: NodeStage, states: dict[int, NodeState] | None = None) -> None:
    known = {int(name): record.broker_epoch for name, record in stage.node.image.nodes.items()}
    rows = [
        NodeRecord(
            "host", 9, rack, state=(states or {}).get(node_id, NodeState.ACTIVE), broker_epoch=known.get(node_id, 0)
        )
        for node_id, rack in RACKS.items()
    ]
    stage.store.commit([Put(f"{NODE_PREFIX}{at}", row.encode()) for at, row in enumerate(rows, start=1)])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))


def consume(stage: NodeStage, offset: int = 0, rack: str = "", *, version: int = 17, wait_ms: int = 0) -> Asked:
    asked = FetchPartition(0, -1, offset, -1, -1, 1 << 20)
    topic = FetchTopic("t", stage.node.image.topics["t"].id, [asked])
    body = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic], rack_id=rack)
    return stage.send(body, version)


def sent_to(stage: NodeStage, offset: int = 0, rack: str = "b") -> int:
    part = part_of(consume(stage, offset, rack))
    assert part.error_code == E.NONE
    assert bool(part.records) == (part.preferred_read_replica == -1)
    return int(part.preferred_read_replica)


def test_a_consumer_is_sent_to_a_replica_in_its_rack(stage: NodeStage) -> None:
    assert sent_to(stage) in (2, 3)
    assert sent_to(stage, rack="a") == sent_to(stage, rack="c") == sent_to(stage, rack="") == -1
    part = part_of(consume(stage, 0, "b"))
    assert (part.high_watermark, part.log_start_offset) == (3, 0)


def test_only_where_the_selector_is_set(tmp_path: Path) -> None:
    assert sent_to(made(tmp_path)) == -1


def test_only_to_who_is_in_sync_active_and_has_the_offset(stage: NodeStage) -> None:
    stage.append("t", 0)
    followers_fetch(stage, 4, node_id=3)
    assert sent_to(stage) == 3, "the one that is furthest"
    assert [sent_to(stage, offset) for offset in (3, 0)] == [3, 3]
    place(stage, isr=(1, 2))
    assert sent_to(stage) == 2
    tell_nodes(stage, {2: NodeState.LEAVING})
    assert sent_to(stage) == -1


def test_a_fetch_that_is_sent_elsewhere_does_not_wait(stage: NodeStage) -> None:
    assert part_of(consume(stage, 3, "b", wait_ms=10_000)).preferred_read_replica in (2, 3)


def test_a_replica_that_follows_serves_what_it_knows_to_be_committed(stage: NodeStage) -> None:
    place(stage, leader=2, leader_epoch=2)
    partition = partition_of(stage)
    assert not partition.leads
    assert part_of(consume(stage, version=10)).error_code == E.NOT_LEADER_OR_FOLLOWER
    part: Any = part_of(consume(stage, rack="a"))
    assert (part.error_code, part.high_watermark, part.preferred_read_replica) == (E.NONE, 3, -1)
    assert part.records
    assert part_of(consume(stage, 4)).error_code == E.OFFSET_OUT_OF_RANGE
    waiting = consume(stage, 3, wait_ms=10_000)
    batch = bytearray(part.records)[: len(part.records) // 3]
    batch[:8] = (3).to_bytes(8)
    partition.log.append_as_follower(memoryview(batch), now=stage.now, leader_epoch=2)
    stage.settle()
    assert not waiting.answered, "nobody has said that it is committed"
    partition.advance_as_follower(9)
    stage.settle()
    assert part_of(waiting).high_watermark == 4
    assert part_of(waiting).records


def test_a_replica_that_has_not_heard_of_its_cluster_sends_consumers_away(stage: NodeStage) -> None:
    place(stage, leader=2, leader_epoch=2)
    stage.node.leadership.suspended = True
    assert part_of(consume(stage)).error_code == E.NOT_LEADER_OR_FOLLOWER


def test_who_asks_a_node_whose_lease_has_run_out_for_records_asks_others_next(stage: NodeStage) -> None:
    """It is answered, and hung up on: it would ask here who leads instead, and what is known here may be old."""
    connection = stage.connect()
    stage.node.leadership.suspended = True
    assert part_of(consume(stage)).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert stage.clients[connection].channel.closing
    assert stage.send(DescribeClusterRequest()).answer.cluster_id == stage.node.cluster_id
    assert not stage.clients[stage.connections].channel.closing
