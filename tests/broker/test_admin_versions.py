"""Every served version of the admin APIs answers what its own codec can read, with what the version can say."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.topic_table import TOPIC_CONFIGS
from ottla.broker.requests import RequestRefusedError
from ottla.broker.served import ADVERTISED
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.incremental_alter_configs import AlterableConfig as Changed
from ottla.protocol.messages.incremental_alter_configs import AlterConfigsResource as ChangedResource
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.harness.node_stage import CHANNEL, NodeStage, versions_of

TOPIC, BROKER = 2, 4


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    stage.append("t", producer_id=7, producer_epoch=0, base_sequence=0)
    return stage


def request_of(api_key: int, version: int) -> Any:
    """A request of this version that succeeds on topic `t`."""
    return {
        2: lambda: ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]),
        3: lambda: MetadataRequest([MetadataRequestTopic(name="t")]),
        18: lambda: ApiVersionsRequest("client", "1.0"),
        19: lambda: CreateTopicsRequest([CreatableTopic("new", 2, 1, configs=[CreatableTopicConfig("flush.ms", "9")])]),
        20: lambda: DeleteTopicsRequest(["t"] if version < 6 else [], [DeleteTopicState("t")] if version >= 6 else []),
        21: lambda: DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 1)])]),
        22: lambda: InitProducerIdRequest(None, 1000),
        23: lambda: OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])]),
        32: lambda: DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "t", None)]),
        33: lambda: AlterConfigsRequest([AlterConfigsResource(TOPIC, "t", [AlterableConfig("flush.ms", "9")])]),
        35: lambda: DescribeLogDirsRequest(None),
        37: lambda: CreatePartitionsRequest([CreatePartitionsTopic("t", 3, None)]),
        44: lambda: IncrementalAlterConfigsRequest([ChangedResource(TOPIC, "t", [Changed("flush.ms", 0, "9")])]),
        60: lambda: DescribeClusterRequest(),
        61: lambda: DescribeProducersRequest([ProducersTopic("t", [0])]),
        74: lambda: ListConfigResourcesRequest(),
        75: lambda: DescribeTopicPartitionsRequest([TopicRequest("t")]),
    }[api_key]()


def proof(api_key: int, version: int, answer: Any) -> object:
    """The one thing in an answer that shows it did its work."""
    match api_key:
        case 2:
            partition = answer.topics[0].partitions[0]
            return partition.error_code, partition.offset, partition.leader_epoch
        case 3:
            return len(answer.brokers), [(t.error_code, t.name, len(t.partitions)) for t in answer.topics]
        case 18:
            return answer.error_code, len(answer.api_keys)
        case 19:
            topic = answer.topics[0]
            return topic.error_code, (topic.num_partitions, len(topic.configs)) if version >= 5 else None
        case 20:
            return [(result.error_code, result.name) for result in answer.responses]
        case 21 | 23:
            return [vars_of(partition) for partition in answer.topics[0].partitions]
        case 22:
            return answer.error_code, answer.producer_id, answer.producer_epoch
        case 32:
            result = answer.results[0]
            return result.error_code, len(result.configs), {config.config_type > 0 for config in result.configs}
        case 33 | 44:
            return [(result.error_code, result.resource_name) for result in answer.responses]
        case 35:
            return [(topic.name, len(topic.partitions)) for topic in answer.results[0].topics]
        case 37:
            return [(result.name, result.error_code) for result in answer.results]
        case 60:
            return answer.error_code, answer.controller_id, [(b.broker_id, b.host, b.port) for b in answer.brokers]
        case 61:
            return [producer.producer_id for producer in answer.topics[0].partitions[0].active_producers]
        case 74:
            return answer.error_code, sorted((r.resource_type, r.resource_name) for r in answer.config_resources)
        case _:
            return [(topic.name, len(topic.partitions)) for topic in answer.topics], answer.next_cursor


def vars_of(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__slots__}


def expected(api_key: int, version: int) -> object:
    return {
        2: (0, 1, 0 if version >= 4 else -1),
        3: (1, [(0, "t", 2)]),
        18: (0, len(ADVERTISED)),
        19: (0, (2, len(TOPIC_CONFIGS)) if version >= 5 else None),
        20: [(0, "t")],
        21: [{"partition_index": 0, "low_watermark": 1, "error_code": 0}],
        22: (0, 0, 0),
        23: [{"error_code": 0, "partition": 0, "leader_epoch": 0, "end_offset": 1}],
        32: (0, len(TOPIC_CONFIGS), {version >= 3}),
        33: [(0, "t")],
        35: [("t", 2)],
        37: [("t", 0)],
        44: [(0, "t")],
        60: (0, 1, [(1, "broker.example", 9092)]),
        61: [7],
        74: (0, [(2, "t"), (4, "1"), (8, "1")] if version >= 1 else []),
        75: ([("t", 2)], None),
    }[api_key]


ADMIN = [2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 74, 75]


@pytest.mark.parametrize(
    ("api_key", "version"), [(key, v) for key in ADMIN for v in versions_of(key) if v <= ADVERTISED[key].versions[1]]
)
def test_every_version_answers(stage: NodeStage, api_key: int, version: int) -> None:
    answer = stage.ask(request_of(api_key, version), version)
    assert proof(api_key, version, answer) == expected(api_key, version)


@pytest.mark.parametrize("version", [-1, 5, 77, 32767])
def test_an_unknown_version_of_api_versions_is_answered_as_version_0(stage: NodeStage, version: int) -> None:
    frame = bytearray(encode_request(RequestHeader(18, 0, 9, "x"), ApiVersionsRequest()))
    frame[6:8] = version.to_bytes(2, "big", signed=True)
    parts = stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    assert isinstance(parts, list)
    correlation_id, answer = decode_response(18, 0, memoryview(bytes(parts[0]))[4:])
    assert (correlation_id, answer.error_code) == (9, 35)
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [("a", "1", 0), ("", "", 42), ("a b", "1", 42), ("-a", "1", 42), ("a", "1-", 42), ("a", "ü", 42), ("a/b", "1", 42)],
)
def test_a_client_must_name_itself_properly(stage: NodeStage, name: str, version: str, error: int) -> None:
    for api_version in (3, 4):
        assert stage.ask(ApiVersionsRequest(name, version), api_version).error_code == error


@pytest.mark.parametrize("api_key", [key for key in ADMIN if key != 18])
def test_a_version_beyond_what_is_served_closes_the_connection(stage: NodeStage, api_key: int) -> None:
    frame = bytearray(
        encode_request(RequestHeader(api_key, ADVERTISED[api_key].versions[1], 9, "x"), request_of(api_key, 99))
    )
    frame[6:8] = (ADVERTISED[api_key].versions[1] + 1).to_bytes(2, "big")
    with pytest.raises(RequestRefusedError, match="is not served"):
        stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
