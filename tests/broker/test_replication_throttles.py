"""Replicas that are not in sync are held back to a rate; others, and clients, are not (KIP-73)."""

from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.replica.fetcher import Fetcher, FetchLimits, Position
from tests.broker.test_leading import fetch, part_of, place, produce
from tests.broker.test_nearby_replicas import tell_nodes
from tests.harness.node_stage import NodeStage

RATE = 1000
LISTED = "leader.replication.throttled.replicas"


def made(directory: Path, **settings: Any) -> NodeStage:
    """Node 1 leads t-0; node 2 is in sync, node 3 is not, and both are listed."""
    stage = NodeStage(directory, **settings)
    stage.create("t", 1, {LISTED: "0:1"})
    tell_nodes(stage)
    for _ in range(50):
        stage.append("t", 0, value=bytes(1000))
    place(stage, leader=1, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2))
    return stage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return made(tmp_path, leader_replication_throttled_rate=str(RATE))


def test_who_is_not_in_sync_waits_until_what_it_took_is_paid_for(stage: NodeStage) -> None:
    took = len(part_of(fetch(stage, 0, node_id=3)).records)
    assert took > 50_000
    assert not part_of(fetch(stage, 0, node_id=3)).records
    assert part_of(fetch(stage, 0, node_id=2)).records, "it is in sync; what it takes counts too"
    stage.run(2 * took * 1000 // RATE - 10)
    assert not part_of(fetch(stage, 0, node_id=3)).records
    stage.run(20)
    assert part_of(fetch(stage, 0, node_id=3)).records


def test_what_is_held_back_satisfies_no_fetch_that_waits(stage: NodeStage) -> None:
    fetch(stage, 0, node_id=3)
    waiting = fetch(stage, 0, node_id=3, max_wait_ms=500)
    produce(stage, acks=1)
    assert not waiting.answered
    stage.run(500)
    assert not part_of(waiting).records


def test_only_listed_replicas_and_only_while_there_is_a_rate(stage: NodeStage) -> None:
    throttle = stage.node.replication.leader_throttle
    assert throttle.lists("t", 0)
    assert not throttle.lists("t", 1)
    assert not throttle.lists("u", 0)
    for text, listed in (("*", True), ("0:2", False), ("1:1,0:1", True), ("", False)):
        stage.change(stage.node.topics.configuring(stage.node.image.topics["t"], {LISTED: text}))
        assert throttle.lists("t", 0) == listed


def test_nobody_waits_where_there_is_no_rate(tmp_path: Path) -> None:
    stage = made(tmp_path)
    for _ in range(3):
        assert part_of(fetch(stage, 0, node_id=3)).records
    assert not stage.node.replication.leader_throttle.is_on


def test_a_follower_leaves_out_who_is_behind_until_then() -> None:
    """Only what is listed and behind waits; what has caught up goes on."""
    fetcher = Fetcher(1, FetchLimits(500, 1, 1 << 20, 1 << 20, 1000))
    behind, level, free = (bytes(16), 0), (bytes(16), 1), (bytes(16), 2)
    for key in (behind, level, free):
        fetcher.follow(key, 1, Position(5, 1, 0))
    assert fetcher.request(0, 1) is not None
    parts = [PartitionData(index, 0, mark, log_start_offset=0) for index, mark in ((0, 9), (1, 5), (2, 9))]
    news = fetcher.answered(
        0, FetchResponse(session_id=7, responses=[FetchableTopicResponse(topic_id=bytes(16), partitions=parts)])
    )
    for each in news:
        fetcher.at(each.key, 1, Position(5, 1, 0))
    fetcher.hold_back(1000, lambda key: key != free)
    request = fetcher.request(1, 1)
    assert request is not None
    assert [part for topic in request.forgotten_topics_data for part in topic.partitions] == [0]
    fetcher.unanswered(1)
    again = fetcher.request(1001, 1)
    assert again is not None
    assert sorted(part.partition for topic in again.topics for part in topic.partitions) == [0, 1, 2]
