"""Answers for all topics, which have them encoded beforehand: always equal to the answer for each topic by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.api import k03_metadata
from ottla.broker.cluster.encoded_topics import KEPT_MAX
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Put
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import PartitionRecord, TopicRecord
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.test_members import lose
from tests.harness.node_stage import NodeStage

VERSION = 12


def check_equal(stage: NodeStage) -> None:
    """Twice: the second time as much as possible is encoded already."""
    names = sorted(stage.node.image.topics)
    named = MetadataRequest([MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
    for _ in range(2):
        found = sorted(stage.ask(MetadataRequest(None), VERSION).topics, key=lambda topic: topic.name)
        assert found == stage.ask(named, VERSION).topics


def encoded(stage: NodeStage) -> list[str]:
    """The topics that an answer for all of them encodes."""
    seen: list[str] = []
    before = k03_metadata._described
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            k03_metadata,
            "_described",
            lambda node, request, topic: seen.append(topic.name) or before(node, request, topic),
        )
        stage.ask(MetadataRequest(None), VERSION)
    return seen


def test_only_changed_topics_are_encoded_again(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    for name in ("a", "b", "c"):
        stage.create(name, partitions=2)
    assert encoded(stage) == ["a", "b", "c"]
    assert encoded(stage) == []
    stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("b", 5, None)], 1000, False))
    check_equal(stage)
    stage.delete("a")
    check_equal(stage)
    stage.create("a", partitions=3)
    assert encoded(stage) == ["a"]
    check_equal(stage)
    with_operations = MetadataRequest(None, include_topic_authorized_operations=True)
    assert {topic.topic_authorized_operations < 0 for topic in stage.ask(with_operations, VERSION).topics} == {False}
    assert encoded(stage) == []


def test_clients_learn_of_nodes_that_are_lost(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    stage.node.members.is_alone, stage.node.members.incarnation = False, "life"
    rows = [
        Put(f"{PREFIX}{node}", NodeRecord(f"host-{node}", 9092, None, {"PLAINTEXT": ("outside", node)}).encode())
        for node in (1, 2)
    ]
    placed = PartitionRecord((1, 2), (1, 2), 2)
    rows.append(Put(f"{TOPIC_PREFIX}t", TopicRecord(bytes(15) + b"t", {}, (placed,)).encode()))
    stage.store.commit(rows)
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert (encoded(stage), encoded(stage)) == (["t"], [])
    lose(stage, 2)
    assert encoded(stage) == ["t"]
    (part,) = stage.ask(MetadataRequest(None), VERSION).topics[0].partitions
    assert part.leader_id == -1
    fenced = replace(stage.node.image.nodes["2"], state=NodeState.FENCED)
    stage.store.commit([Put(f"{PREFIX}2", fenced.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    stage.run(60_000)  # the broken connection is forgotten
    assert (encoded(stage), encoded(stage)) == (["t"], [])
    (part,) = stage.ask(MetadataRequest(None), VERSION).topics[0].partitions
    assert (part.leader_id, part.offline_replicas) == (-1, [2])


def test_few_versions_and_listeners_are_kept(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    stage.create("a")
    for version in range(2, 13):
        stage.ask(MetadataRequest(None), version)
    stage.ask(MetadataRequest(None), VERSION, stage.connect("OTHER"))
    assert len(stage.node.encoded_topics._kept) == KEPT_MAX
    assert encoded(stage) == []
