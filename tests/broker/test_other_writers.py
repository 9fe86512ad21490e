"""A node that is only told of what another writer committed comes to the same image and the same replicas."""

from pathlib import Path

import pytest

from ottla.broker.node import Node
from ottla.metadata.image import delta_since
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.harness.node_stage import NodeStage


@pytest.fixture
def writer(tmp_path: Path) -> NodeStage:
    return NodeStage(tmp_path / "writer")


@pytest.fixture
def told(tmp_path: Path, writer: NodeStage) -> NodeStage:
    """Another directory, and the same store: the writer's node goes on without knowing of its start."""
    return NodeStage(tmp_path / "told", store=writer.store)


def tell(stage: NodeStage) -> None:
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))


def replicas_of(node: Node) -> dict[str, object]:
    return {
        p.name: (
            node.replicas.by_name[p.topic_name].id,
            p.leader_epoch,
            p.partition_epoch,
            p.log.log_end_offset,
            p.log.config,
        )
        for p in node.replicas
    }


def assert_alike(writer: NodeStage, told: NodeStage) -> None:
    tell(writer)  # the other one has noted that the files of deleted topics are gone
    assert writer.node.image == told.node.image
    assert replicas_of(writer.node) == replicas_of(told.node)
    asked = MetadataRequest(topics=None)
    assert writer.ask(asked) == told.ask(asked)


def create(stage: NodeStage, name: str, partitions: int = 1, **configs: str) -> None:
    own = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    (made,) = stage.ask(CreateTopicsRequest(topics=[CreatableTopic(name, partitions, 1, [], own)])).topics
    assert made.error_code == 0, made


def alter(stage: NodeStage, resource_type: int, name: str, key: str, value: str) -> None:
    resource = AlterConfigsResource(resource_type, name, [AlterableConfig(key, 0, value)])
    (altered,) = stage.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert altered.error_code == 0, altered


def test_topics_come_change_and_go(writer: NodeStage, told: NodeStage) -> None:
    create(writer, "a", 3, retention_ms="1000")
    tell(told)
    assert_alike(writer, told)
    create(writer, "b")
    writer.change(writer.node.topics.growing(writer.node.image.topics["a"], 5))
    alter(writer, 2, "a", "retention.ms", "2000")
    alter(writer, 4, "1", "message.max.bytes", "5000")
    alter(writer, 32, "workers", "share.record.lock.duration.ms", "20000")
    tell(told)
    assert_alike(writer, told)
    assert told.node.settings["message.max.bytes"] == 5000
    assert told.node.replicas.by_name["a"].log_config.retention_ms == 2000
    writer.delete("b")
    create(writer, "b", 2)
    alter(writer, 4, "1", "message.max.bytes", "6000")
    tell(told)
    assert_alike(writer, told)
    assert len(told.node.replicas.by_name["b"].partitions) == 2


def test_a_topic_made_anew_does_not_find_the_old_records(writer: NodeStage, told: NodeStage) -> None:
    create(writer, "t")
    tell(told)
    told.append("t")
    assert told.node.replicas.by_name["t"].partitions[0].log.log_end_offset == 1
    writer.delete("t")
    create(writer, "t")
    tell(told)
    assert told.node.replicas.by_name["t"].partitions[0].log.log_end_offset == 0
    told.append("t")
    told.restart()
    assert told.node.replicas.by_name["t"].partitions[0].log.log_end_offset == 1


def test_a_commit_behind_another_writer_reads_what_it_missed(writer: NodeStage, told: NodeStage) -> None:
    create(writer, "a")
    create(told, "b")  # nobody told it of a
    assert sorted(told.node.image.topics) == ["a", "b"]
    tell(writer)
    assert_alike(writer, told)


def test_what_lies_on_other_nodes_is_described_and_not_opened(writer: NodeStage, told: NodeStage) -> None:
    """Half of this topic is led elsewhere."""
    here = PartitionRecord(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=4, partition_epoch=9)
    elsewhere = PartitionRecord(replicas=(2, 3), isr=(3,), leader=3, leader_epoch=7)
    record = TopicRecord(bytes(15) + b"\x09", {}, (elsewhere, here))
    writer.store.commit([Put(key_of("spread"), encoded(record))])
    tell(told)
    (topic,) = told.ask(MetadataRequest(topics=[MetadataRequestTopic(name="spread")])).topics
    shown = [(p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in topic.partitions]
    assert shown == [(3, 7, [2, 3], [3]), (1, 4, [1, 2], [1, 2])]
    assert [p.name for p in told.node.replicas] == ["spread-1"]
    assert told.node.replicas.by_name["spread"].partitions[1].leader_epoch == 4
    (directory,) = told.ask(DescribeLogDirsRequest(topics=None)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics] == [("spread", [1])]
    told.restart()
    assert [p.name for p in told.node.replicas] == ["spread-1"]
    assert told.node.image.topics["spread"].partitions == (elsewhere, here)
    assert not told.node.replicas.by_name["spread"].partitions[1].leads, "before it is elected anew"


def test_thousands_of_topics_are_one_change(told: NodeStage) -> None:
    rows = {f"t{n}": TopicRecord(n.to_bytes(16, "big"), {}, (PartitionRecord((2,), (2,), 2),)) for n in range(1, 2001)}
    told.store.commit([Put(key_of(name), encoded(record)) for name, record in rows.items()])
    tell(told)
    assert told.node.image.partition_count == len(rows)
    assert list(told.node.replicas) == []
    assert told.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t7")])).topics[0].error_code == E.NONE
