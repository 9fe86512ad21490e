"""With an authorizer: admin APIs ask before they look, and their errors tell a stranger nothing."""

from pathlib import Path

import pytest

from ottla.broker.client_identity import Identity
from ottla.broker.security.authorizer import SUPPORTED
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.wire import ZERO_UUID
from tests.harness.node_stage import NodeStage

Rule = tuple[Operation, ResourceType, str]
Op, T = Operation, ResourceType


class Rules:
    """Allows exactly what it was given."""

    def __init__(self, *allowed: Rule) -> None:
        self.allowed = set(allowed)

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (operation, resource_type, name) in self.allowed

    def allows_any(self, identity: Identity, operation: Operation, resource_type: ResourceType) -> bool:
        return any(allowed[:2] == (operation, resource_type) for allowed in self.allowed)


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1), CreatableTopic("open", 1, 1)]))
    return stage


DENIED = {E.TOPIC_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED}


def test_the_cluster_is_no_secret_but_its_operations_are(stage: NodeStage) -> None:
    stage.node.access.authorizer = Rules()
    answer = stage.ask(DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert (answer.error_code, len(answer.brokers), answer.cluster_authorized_operations) == (0, 1, 0)


@pytest.mark.parametrize("exists", [True, False])
def test_a_hidden_topic_looks_the_same_whether_it_exists_or_not(stage: NodeStage, exists: bool) -> None:
    stage.node.access.authorizer = Rules((Op.DESCRIBE, T.TOPIC, "open"))
    name = "t" if exists else "none"
    (topic,) = stage.ask(MetadataRequest([MetadataRequestTopic(name=name)])).topics
    assert (topic.error_code, topic.name, topic.topic_id, topic.partitions) == (
        E.TOPIC_AUTHORIZATION_FAILED,
        name,
        ZERO_UUID,
        [],
    )
    (topic,) = stage.ask(DescribeTopicPartitionsRequest([TopicRequest(name)])).topics
    assert (topic.error_code, topic.topic_id) == (E.TOPIC_AUTHORIZATION_FAILED, ZERO_UUID)
    (result,) = stage.ask(DescribeConfigsRequest([DescribeConfigsResource(2, name, None)])).results
    assert result.error_code == E.TOPIC_AUTHORIZATION_FAILED
    (deleted,) = stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name)])).responses
    assert deleted.error_code == E.TOPIC_AUTHORIZATION_FAILED


def test_hidden_topics_are_left_out_of_lists(stage: NodeStage) -> None:
    stage.node.access.authorizer = Rules((Op.DESCRIBE, T.TOPIC, "open"))
    assert [topic.name for topic in stage.ask(MetadataRequest(None)).topics] == ["open"]
    assert [topic.name for topic in stage.ask(DescribeTopicPartitionsRequest()).topics] == ["open"]


def test_an_id_betrays_no_name(stage: NodeStage) -> None:
    topic_id = stage.node.replicas.by_name["t"].id
    rules = stage.node.access.authorizer = Rules()
    (topic,) = stage.ask(MetadataRequest([MetadataRequestTopic(topic_id, None)])).topics
    assert (topic.error_code, topic.name) == (E.TOPIC_AUTHORIZATION_FAILED, None)
    (deleted,) = stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState(None, topic_id)])).responses
    assert (deleted.error_code, deleted.name) == (E.TOPIC_AUTHORIZATION_FAILED, None)
    rules.allowed.add((Op.DESCRIBE, T.TOPIC, "t"))
    (deleted,) = stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState(None, topic_id)])).responses
    assert (deleted.error_code, deleted.name) == (E.TOPIC_AUTHORIZATION_FAILED, "t")


@pytest.mark.parametrize("where", [(T.CLUSTER, "kafka-cluster"), (T.TOPIC, "new")])
def test_creating_needs_the_cluster_or_the_topic(stage: NodeStage, where: tuple[ResourceType, str]) -> None:
    stage.node.access.authorizer = Rules((Op.CREATE, *where))
    results = stage.ask(CreateTopicsRequest([CreatableTopic("new", 1, 1), CreatableTopic("t", 1, 1)])).topics
    everywhere = where[0] is T.CLUSTER
    assert [result.error_code for result in results] == [
        0,
        E.TOPIC_ALREADY_EXISTS if everywhere else E.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert (results[0].topic_config_error_code, results[0].num_partitions) == (E.TOPIC_AUTHORIZATION_FAILED, -1)


def test_asking_for_a_topic_makes_it_only_for_who_may(stage: NodeStage) -> None:
    rules = stage.node.access.authorizer = Rules((Op.DESCRIBE, T.TOPIC, "new"))
    asked = MetadataRequest([MetadataRequestTopic(name="new")])
    assert stage.ask(asked).topics[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert "new" not in stage.node.replicas.by_name
    rules.allowed.add((Op.CREATE, T.TOPIC, "new"))
    assert stage.ask(asked).topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert "new" in stage.node.replicas.by_name


def test_a_producer_id_is_for_who_may_write_anywhere(stage: NodeStage) -> None:
    rules = stage.node.access.authorizer = Rules()
    assert stage.ask(InitProducerIdRequest(None, 1), 5).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    for rule in ((Op.WRITE, T.TOPIC, "open"), (Op.IDEMPOTENT_WRITE, T.CLUSTER, "kafka-cluster")):
        rules.allowed = {rule}
        assert stage.ask(InitProducerIdRequest(None, 1), 5).error_code == 0


def test_operations_are_the_bits_that_are_allowed(stage: NodeStage) -> None:
    stage.node.access.authorizer = Rules((Op.DESCRIBE, T.TOPIC, "t"), (Op.READ, T.TOPIC, "t"))
    request = MetadataRequest([MetadataRequestTopic(name="t")], include_topic_authorized_operations=True)
    assert stage.ask(request).topics[0].topic_authorized_operations == 1 << Op.DESCRIBE | 1 << Op.READ
    assert all(len(set(operations)) == len(operations) for operations in SUPPORTED.values())


@pytest.mark.parametrize(
    ("kind", "name", "resource"),
    [(2, "t", (T.TOPIC, "t")), (4, "1", (T.CLUSTER, "kafka-cluster")), (32, "g", (T.GROUP, "g"))],
)
def test_each_kind_of_configuration_has_its_own_right(
    stage: NodeStage, kind: int, name: str, resource: tuple[ResourceType, str]
) -> None:
    rules = stage.node.access.authorizer = Rules()
    asked = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])
    changed = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [AlterableConfig("x", 1, None)])])
    assert stage.ask(asked).results[0].error_code in DENIED
    assert stage.ask(changed).responses[0].error_code in DENIED
    rules.allowed = {(Op.DESCRIBE_CONFIGS, *resource)}
    assert stage.ask(asked).results[0].error_code == 0
    assert stage.ask(changed).responses[0].error_code in DENIED
    rules.allowed = {(Op.ALTER_CONFIGS, *resource)}
    assert stage.ask(changed).responses[0].error_code == 0


def test_what_is_about_the_whole_cluster_needs_the_cluster(stage: NodeStage) -> None:
    rules = stage.node.access.authorizer = Rules()
    assert stage.ask(ListConfigResourcesRequest()).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    assert stage.ask(DescribeLogDirsRequest(None)).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    rules.allowed = {(Op.DESCRIBE_CONFIGS, T.CLUSTER, "kafka-cluster"), (Op.DESCRIBE, T.CLUSTER, "kafka-cluster")}
    assert stage.ask(ListConfigResourcesRequest()).error_code == 0
    assert stage.ask(DescribeLogDirsRequest(None)).error_code == 0
