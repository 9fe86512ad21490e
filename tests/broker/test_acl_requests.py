"""ACLs are created, described and deleted by requests, decide about the next request, and hold on every node."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.metadata.acls import ACLS
from ottla.protocol.acls import ANY, MATCH, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, build_batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NodeStage

WITH_ACLS: dict[str, Any] = {"authorizer_class_name": AUTHORIZERS[0], "allow_everyone_if_no_acl_found": "true"}
ALL = DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", **WITH_ACLS)
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1), CreatableTopic("open", 1, 1)]))
    return stage


def acl(
    name: str = "t",
    operation: int = Operation.READ,
    permission: int = PermissionType.DENY,
    *,
    kind: int = ResourceType.TOPIC,
    pattern: int = PatternType.LITERAL,
    principal: str = "User:ANONYMOUS",
    host: str = "*",
) -> AclCreation:
    return AclCreation(kind, name, pattern, principal, host, operation, permission)


def create(stage: NodeStage, *acls: AclCreation) -> list[tuple[int, str | None]]:
    return [(each.error_code, each.error_message) for each in stage.ask(CreateAclsRequest(list(acls))).results]


def described(stage: NodeStage, request: DescribeAclsRequest = ALL) -> list[tuple[Any, ...]]:
    answer = stage.ask(request)
    assert answer.error_code == 0
    return sorted(
        (found.resource_type, found.pattern_type, found.resource_name, each.principal, each.operation)
        for found in answer.resources
        for each in found.acls
    )


def read(stage: NodeStage, name: str) -> int:
    """The error of a fetch."""
    topic_id = stage.node.image.topics[name].id
    asked = FetchTopic(name, topic_id, [FetchPartition(0, partition_max_bytes=1000)])
    return stage.ask(FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[asked])).responses[0].partitions[0].error_code


def test_an_acl_decides_about_the_next_request_and_outlives_a_restart(stage: NodeStage) -> None:
    assert read(stage, "t") == 0
    assert create(stage, acl(), acl()) == [(0, "")] * 2
    assert (read(stage, "t"), read(stage, "open")) == (E.TOPIC_AUTHORIZATION_FAILED, 0)
    assert create(stage, acl(), acl("op", pattern=PatternType.PREFIXED)) == [(0, "")] * 2
    assert len(stage.node.image[ACLS]) == 2, "one that exists is not created again"
    stage.restart()
    assert (read(stage, "t"), read(stage, "open")) == (E.TOPIC_AUTHORIZATION_FAILED,) * 2
    removed = stage.ask(DeleteAclsRequest([DeleteAclsFilter(ResourceType.TOPIC, "open", MATCH, None, None, ANY, ANY)]))
    (result,) = removed.filter_results
    assert [(each.error_code, each.resource_name) for each in result.matching_acls] == [(0, "op")]
    assert (read(stage, "t"), read(stage, "open")) == (E.TOPIC_AUTHORIZATION_FAILED, 0)


def test_what_may_not_be_described_does_not_exist(stage: NodeStage) -> None:
    """A name that a client may not see gets one error, whether there is such a topic or not."""
    create(stage, acl("t", Operation.ALL), acl("none", Operation.ALL))
    answer = stage.ask(MetadataRequest([MetadataRequestTopic(name="t"), MetadataRequestTopic(name="none")]))
    assert [(topic.error_code, topic.topic_id) for topic in answer.topics] == [
        (E.TOPIC_AUTHORIZATION_FAILED, bytes(16))
    ] * 2
    assert [topic.name for topic in stage.ask(MetadataRequest(None)).topics] == ["open"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (acl(""), "Invalid empty resource name"),
        (acl("x", kind=ResourceType.CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(kind=ANY), "Invalid resourceType ANY"),
        (acl(kind=99), "Invalid resourceType UNKNOWN"),
        (acl(pattern=MATCH), "Invalid patternType MATCH"),
        (acl(operation=ANY), "Invalid operation ANY"),
        (acl(permission=ANY), "Invalid permissionType ANY"),
        (acl(principal="ada"), "Could not parse principal from `ada`"),
    ],
)
def test_a_bad_acl_is_refused_and_the_others_are_created(stage: NodeStage, wrong: AclCreation, says: str) -> None:
    (good, _), (bad, why) = create(stage, acl("other"), wrong)
    assert (good, bad) == (0, E.INVALID_REQUEST)
    assert why is not None
    assert why.startswith(says)
    assert [found[2] for found in described(stage)] == ["other"]


def test_filters_find_what_they_name(stage: NodeStage) -> None:
    create(
        stage,
        acl("ab"),
        acl("a", pattern=PatternType.PREFIXED),
        acl("*", Operation.ALTER),
        acl("ab", kind=ResourceType.GROUP),
        acl("ab", principal="User:ada"),
    )
    assert len(described(stage)) == 5
    topic, group, literal, prefixed = ResourceType.TOPIC, ResourceType.GROUP, *PatternType
    everyone, ada = "User:ANONYMOUS", "User:ada"
    assert described(stage, DescribeAclsRequest(topic, "ab", MATCH, None, None, ANY, ANY)) == [
        (topic, literal, "*", everyone, Operation.ALTER),
        (topic, literal, "ab", everyone, Operation.READ),
        (topic, literal, "ab", ada, Operation.READ),
        (topic, prefixed, "a", everyone, Operation.READ),
    ]
    assert described(stage, DescribeAclsRequest(ANY, "ab", literal, everyone, "*", ANY, ANY)) == [
        (topic, literal, "ab", everyone, Operation.READ),
        (group, literal, "ab", everyone, Operation.READ),
    ]
    assert described(stage, DescribeAclsRequest(77, None, ANY, None, None, ANY, ANY)) == []
    assert stage.ask(DescribeAclsRequest(0, None, ANY, None, None, ANY, ANY)).error_code == E.INVALID_REQUEST


def test_overlapping_filters_each_tell_what_they_matched(stage: NodeStage) -> None:
    create(stage, acl("t"), acl("u"))
    answer = stage.ask(
        DeleteAclsRequest(
            [
                DeleteAclsFilter(ResourceType.TOPIC, "t", ANY, None, None, ANY, ANY),
                DeleteAclsFilter(99, None, ANY, None, None, ANY, ANY),
                DeleteAclsFilter(ANY, None, ANY, None, None, ANY, ANY),
                DeleteAclsFilter(ANY, None, ANY, None, None, 99, ANY),
            ]
        )
    )
    assert [(each.error_code, each.error_message) for each in answer.filter_results] == [
        (0, None),
        (E.INVALID_REQUEST, "Unknown patternFilter."),
        (0, None),
        (E.INVALID_REQUEST, "Unknown entryFilter."),
    ]
    matched = [sorted(acl.resource_name for acl in each.matching_acls) for each in answer.filter_results]
    assert matched == [["t"], [], ["t", "u"], []]
    assert not described(stage)


def test_a_producer_id_is_for_clients_that_may_write_somewhere(stage: NodeStage) -> None:
    deny_all = acl("*", Operation.WRITE)
    cluster = acl("kafka-cluster", Operation.IDEMPOTENT_WRITE, kind=ResourceType.CLUSTER)
    assert stage.ask(InitProducerIdRequest(None, 1), 5).error_code == 0
    assert create(stage, cluster, deny_all) == [(0, "")] * 2
    assert stage.ask(InitProducerIdRequest(None, 1), 5).error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_a_client_without_alter_on_the_cluster_changes_no_acl(stage: NodeStage) -> None:
    cluster = {"kind": ResourceType.CLUSTER, "name": "kafka-cluster"}
    create(stage, acl(operation=Operation.ALTER, **cluster), acl(operation=Operation.DESCRIBE, **cluster))
    assert create(stage, acl()) == [(E.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")]
    removing = DeleteAclsRequest([DeleteAclsFilter(ANY, None, ANY, None, None, ANY, ANY)])
    assert stage.ask(removing).filter_results[0].error_code == E.CLUSTER_AUTHORIZATION_FAILED
    assert stage.ask(ALL).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    assert len(stage.node.image[ACLS]) == 2


def test_without_an_authorizer_acls_are_disabled(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node")
    assert create(stage, acl()) == [(E.SECURITY_DISABLED, "No Authorizer is configured.")]
    assert stage.ask(ALL).error_code == E.SECURITY_DISABLED
    removing = DeleteAclsRequest([DeleteAclsFilter(ANY, None, ANY, None, None, ANY, ANY)])
    assert stage.ask(removing).filter_results[0].error_code == E.SECURITY_DISABLED


def test_an_acl_holds_on_every_node_and_nodes_need_none_to_replicate(tmp_path: Path) -> None:
    pair = NodePair(tmp_path, **WITH_ACLS)
    assert pair.ask(1, CreateTopicsRequest([CreatableTopic("t", 1, 2)])).topics[0].error_code == 0
    no_action = acl("kafka-cluster", Operation.CLUSTER_ACTION, kind=ResourceType.CLUSTER)
    answer = pair.ask(2, CreateAclsRequest([acl("t"), acl("t", Operation.WRITE, PermissionType.ALLOW), no_action]))
    assert [each.error_code for each in answer.results] == [0, 0, 0], "the controller has created them"
    assert [len(stage.node.image[ACLS]) for stage in pair.stages.values()] == [3, 3]
    placed = pair.stages[1].node.image.partition("t", 0)
    assert placed is not None
    batch = build_batch([Record(-1, 1, None, b"v")])
    produced = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])]
    answer = pair.ask(placed.leader, ProduceRequest(None, -1, 30_000, produced), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0, "the follower has read what no client may"
    asked = FetchTopic("t", bytes(16), [FetchPartition(0, partition_max_bytes=1000)])
    for replica_id in (-1, 3 - placed.leader):
        fetched = FetchRequest(replica_id=replica_id, max_wait_ms=0, max_bytes=1000, topics=[asked])
        answer = pair.ask(placed.leader, fetched, 12)
        assert answer.responses[0].partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED, "nor by a replica's id"
