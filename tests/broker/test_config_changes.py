"""Checks what nodes remember of changes of configs: which, by which client, and who may see them."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.observations.config_changes import CHANGES_MAX, HIDDEN, KEPT, ConfigChanges, Resource
from ottla.broker.requests import Request
from ottla.machine import WallMillis
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.config_resources import QUOTA
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.alter_configs import AlterableConfig as Replaced
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.alter_configs import AlterConfigsResource as Whole
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import CORRELATION_ID, NodeStage, channel_of

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
ADA = Principal("User", "ada")


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    made = NodeStage(tmp_path / "node")
    made.create("t")
    return made


def _changing(kind: int, name: str, config: str, value: str | None, *, validate_only: bool = False) -> Any:
    changes = [AlterableConfig(config, DELETE if value is None else SET, value)]
    return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, changes)], validate_only)


def _seen(stage: NodeStage, kind: int | None = None, name: str | None = None) -> list[tuple[Any, ...]]:
    """The changes that the node shows: resource, config, old and new value."""
    answer = stage.ask(DescribeObservationsRequest(None, kind or 0, name))
    assert not answer.error_code
    return [
        (each.resource_type, each.resource_name, each.name, each.old_value, each.new_value)
        for each in answer.config_changes
    ]


def test_a_change_is_remembered_with_its_author(stage: NodeStage) -> None:
    connection = stage.connect()
    stage.clients[connection].channel.authenticate(ADA, "PLAIN")
    stage.ask(_changing(TOPIC, "t", "retention.ms", "5000"), connection=connection)
    stage.run(1_000)
    stage.ask(_changing(TOPIC, "t", "retention.ms", "6000"), connection=connection)
    stage.ask(_changing(TOPIC, "t", "retention.ms", None), connection=stage.connect())
    rows = stage.ask(DescribeObservationsRequest()).config_changes
    assert [(each.at_ms, each.old_value, each.new_value, each.principal) for each in rows] == [
        (stage.now - 1_000, None, "5000", "User:ada"),
        (stage.now, "5000", "6000", "User:ada"),
        (stage.now, "6000", None, "User:ANONYMOUS"),
    ]
    assert {(each.resource_type, each.resource_name, each.name) for each in rows} == {(TOPIC, "t", "retention.ms")}
    assert {(each.client_id, each.client_host) for each in rows} == {("stage", "127.0.0.1")}


def test_configs_of_nodes_and_groups_of_new_topics_and_quotas_are_remembered(stage: NodeStage) -> None:
    stage.ask(_changing(BROKER, "1", "message.max.bytes", "3000"))
    stage.ask(_changing(BROKER, "", "message.max.bytes", "4000"))
    stage.ask(_changing(GROUP, "g", "consumer.session.timeout.ms", "46000"))
    configs = [CreatableTopicConfig("cleanup.policy", "compact")]
    stage.ask(CreateTopicsRequest([CreatableTopic("new", 1, 1, configs=configs), CreatableTopic("plain", 1, 1)]))
    entity = [RequestEntityData("user", "ada"), RequestEntityData("client-id", None)]
    stage.ask(AlterClientQuotasRequest([RequestEntryData(entity, [OpData("producer_byte_rate", 1_000.0)])]))
    assert _seen(stage) == [
        (BROKER, "1", "message.max.bytes", None, "3000"),
        (BROKER, "", "message.max.bytes", None, "4000"),
        (GROUP, "g", "consumer.session.timeout.ms", None, "46000"),
        (TOPIC, "new", "cleanup.policy", None, "compact"),
        (QUOTA, "client-id <default>, user ada", "producer_byte_rate", None, "1000.0"),
    ]


def test_a_request_that_replaces_all_configs_changes_those_that_it_leaves_out(stage: NodeStage) -> None:
    stage.ask(_changing(TOPIC, "t", "retention.ms", "5000"))
    stage.ask(AlterConfigsRequest([Whole(TOPIC, "t", [Replaced("segment.ms", "6000")])]))
    assert _seen(stage)[1:] == [
        (TOPIC, "t", "retention.ms", "5000", None),
        (TOPIC, "t", "segment.ms", None, "6000"),
    ]


def test_the_time_and_the_author_of_a_pause_are_no_configs_that_the_client_sets(stage: NodeStage) -> None:
    stage.ask(_changing(GROUP, "g", "share.delivery.paused", "true"))
    stage.ask(AlterConfigsRequest([Whole(GROUP, "g", [Replaced("share.delivery.paused", "true")])]))
    assert _seen(stage) == [(GROUP, "g", "share.delivery.paused", None, "true")]


def test_what_changes_nothing_is_not_remembered(stage: NodeStage) -> None:
    stage.ask(_changing(TOPIC, "t", "retention.ms", "5000", validate_only=True))
    stage.ask(_changing(TOPIC, "t", "retention.ms", "soon"))
    stage.ask(_changing(TOPIC, "none", "retention.ms", "5000"))
    stage.ask(_changing(TOPIC, "t", "retention.ms", None))
    assert not _seen(stage)


def test_a_change_that_the_store_refuses_is_not_remembered_and_one_that_it_made_is(stage: NodeStage) -> None:
    for done in (False, True):
        stage.hold_commits = True
        asked = stage.send(_changing(TOPIC, "t", "retention.ms", f"{done:d}000"))
        stage.lose_commit(done=done)
        stage.hold_commits = False
        stage.run(1_000)
        stage.settle()
        assert asked.answer.responses[0].error_code == 0
    assert [row[3:] for row in _seen(stage)] == [(None, "0000"), ("0000", "1000")]


# ---- the controller ------------------------------------------------------------------------------------------------


def test_the_controller_remembers_the_client_of_a_forwarded_request(tmp_path: Path) -> None:
    pair = NodePair(tmp_path)
    pair.ask(1, CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    stage = pair.stages[2]
    connection = stage.connect()
    stage.clients[connection].channel.authenticate(ADA, "PLAIN")
    asked = _changing(TOPIC, "t", "retention.ms", "5000")
    asked.resources += _changing(BROKER, "2", "message.max.bytes", "3000").resources
    stage.send(asked, connection=connection)
    pair.settle()
    of_topic, of_node = (
        [(name, each.principal, each.client_id, each.host) for _, name, each in node.observations.configs.changes()]
        for node in (pair.stages[1].node, stage.node)
    )
    assert of_topic == [("retention.ms", "User:ada", "stage", "127.0.0.1")]
    assert of_node == [("message.max.bytes", "User:ada", "stage", "127.0.0.1")]


# ---- the request ---------------------------------------------------------------------------------------------------


class _Allowing:
    """Allows all but some operations on some resources."""

    def __init__(self, *denied: tuple[Operation, ResourceType, str]) -> None:
        self.denied = denied

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (operation, resource_type, name) not in self.denied

    def allows_any(self, identity: Identity, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def is_super(self, identity: Identity) -> bool:
        return False


def test_the_changes_of_one_resource_can_be_asked_for(stage: NodeStage) -> None:
    stage.ask(_changing(TOPIC, "t", "retention.ms", "5000"))
    stage.ask(_changing(GROUP, "t", "consumer.session.timeout.ms", "46000"))
    assert _seen(stage, TOPIC, "t") == [(TOPIC, "t", "retention.ms", None, "5000")]
    assert not _seen(stage, TOPIC, "none")
    assert not stage.ask(DescribeObservationsRequest(None, TOPIC, "t")).connections


def test_a_change_is_shown_to_clients_that_may_see_the_value(stage: NodeStage) -> None:
    stage.create("secret")
    for name in ("t", "secret"):
        stage.ask(_changing(TOPIC, name, "retention.ms", "5000"))
    access = stage.node.access
    access.authorizer = _Allowing((Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "secret"))
    assert [row[1] for row in _seen(stage)] == ["t"]
    assert stage.ask(DescribeObservationsRequest(None, TOPIC, "secret")).error_code == E.TOPIC_AUTHORIZATION_FAILED
    access.authorizer = _Allowing((Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
    assert [row[1] for row in _seen(stage, TOPIC, "secret")] == ["secret"]
    assert stage.ask(DescribeObservationsRequest()).error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_quotas_and_configs_of_nodes_need_the_right_to_see_those(stage: NodeStage) -> None:
    stage.ask(_changing(BROKER, "1", "message.max.bytes", "3000"))
    entry = RequestEntryData([RequestEntityData("user", "ada")], [OpData("producer_byte_rate", 1_000.0)])
    stage.ask(AlterClientQuotasRequest([entry]))
    stage.node.access.authorizer = _Allowing((Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "kafka-cluster"))
    assert not _seen(stage)


def test_a_client_of_the_version_before_gets_its_answer(stage: NodeStage) -> None:
    stage.ask(_changing(TOPIC, "t", "retention.ms", "5000"))
    answer = stage.ask(DescribeObservationsRequest(), 0)
    assert (answer.error_code, answer.config_changes) == (0, [])
    assert answer.connections


# ---- the ring ------------------------------------------------------------------------------------------------------


def _request(principal: str = "ada") -> Request:
    identity = Identity(Address(1, "10.0.0.1"), Principal("User", principal))
    return Request(channel_of(1), ApiKey.ALTER_CONFIGS, 2, CORRELATION_ID, "c", 0, None, identity=identity)


def test_the_value_of_a_sensitive_config_is_never_kept() -> None:
    ring = ConfigChanges()
    for before, after in (({}, {"p": "one"}), ({"p": "one"}, {"p": "two"}), ({"p": "two"}, {})):
        ring.note(WallMillis(0), _request(), Resource(BROKER, "1"), before, after, lambda name: name == "p")
    assert [(each.old, each.new) for *_, each in ring.changes()] == [(None, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, None)]


def test_the_last_changes_of_each_config_are_kept_and_the_ring_is_bounded() -> None:
    ring = ConfigChanges()
    for number in range(KEPT + 3):
        ring.note(WallMillis(number), _request(), Resource(TOPIC, "t"), {}, {"a": str(number)})
    assert [each.new for *_, each in ring.changes()] == [str(number) for number in range(3, KEPT + 3)]
    for number in range(CHANGES_MAX):
        ring.note(WallMillis(0), _request(), Resource(TOPIC, str(number)), {}, {"b": "1"})
        assert len(ring) <= CHANGES_MAX
    assert "a" not in {name for _, name, _ in ring.changes()}
    assert len(ring) == CHANGES_MAX
    ring.note(WallMillis(0), _request(), Resource(GROUP, "g" * 300), {}, {"a": "1"})
    assert len(ring) == CHANGES_MAX, "a long name is not remembered"
