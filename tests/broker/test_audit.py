"""What the audit log records: who did what, from where, allowed or denied, and how much is left out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.config.unserved import AUTHORIZERS
from ottla.broker.security import audit, audit_details
from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.records import Record, build_batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import Client, NodeStage

ADMIN, ADA = Principal("User", "admin"), Principal("User", "ada")
WITH_ACLS: dict[str, Any] = {"authorizer_class_name": AUTHORIZERS[0], "super_users": "User:admin"}
PASSWORD = b"lovelace"


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", **WITH_ACLS)
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]), connection=connected(stage, ADMIN))
    stage.audited.clear()
    return stage


def connected(stage: NodeStage, principal: Principal | None = None, host: str = "10.0.0.7") -> int:
    """A connection of this principal; without one, of a client that has to authenticate."""
    number = stage.connect()
    channel = Channel(Identity(Address(number, host, 4711, "EXTERNAL", "SASL_SSL")))
    if principal is not None:
        channel.authenticate(principal, "SCRAM-SHA-512")
    stage.clients[number] = Client(channel)
    return number


def taken(stage: NodeStage) -> list[Mapping[str, Any]]:
    found = list(stage.audited)
    stage.audited.clear()
    for each in found:
        json.dumps(each)
    return found


def produce(stage: NodeStage, connection: int, topic: str = "t") -> int:
    data = PartitionProduceData(0, build_batch([Record(0, 0, b"k", b"v")]))
    body = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(topic, partition_data=[data])])
    return stage.ask(body, 9, connection).responses[0].partition_responses[0].error_code


def test_a_denied_operation_is_recorded_with_who_what_where_and_why(stage: NodeStage) -> None:
    ada = connected(stage, ADA)
    stage.ask(MetadataRequest([MetadataRequestTopic(name="t")]), connection=ada)
    assert produce(stage, ada) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    described, written = taken(stage)
    assert described == {
        "time": stage.node.wall.at(stage.now),
        "node": 1,
        "event": "denied",
        "principal": "User:ada",
        "mechanism": "SCRAM-SHA-512",
        "address": "10.0.0.7:4711",
        "listener": "EXTERNAL",
        "client_id": "stage",
        "api": "Metadata",
        "operation": "DESCRIBE",
        "resource": "TOPIC",
        "name": "t",
        "why": "No ACL matches this resource.",
    }
    assert (written["operation"], written["name"]) == ("WRITE", "t")


def test_what_is_allowed_is_recorded_only_if_it_changes_something(stage: NodeStage) -> None:
    admin = connected(stage, ADMIN)
    produce(stage, admin)
    stage.ask(MetadataRequest(None), connection=admin)
    assert taken(stage) == []
    stage.ask(CreateTopicsRequest([CreatableTopic(f"t{n}", 1, 1) for n in range(3)]), connection=admin)
    (created,) = taken(stage)
    assert (created["event"], created["principal"], created["api"]) == ("allowed", "User:admin", "CreateTopics")
    assert created["details"] == ["t0", "t1", "t2"]
    assert created["why"] == "It is a super user."
    stage.ask(DeleteTopicsRequest([], [DeleteTopicState("t0")], 1000), connection=admin)
    (deleted,) = taken(stage)
    assert (deleted["api"], deleted["details"]) == ("DeleteTopics", ["t0"])


def test_changes_are_recorded_by_names_and_never_by_values(stage: NodeStage) -> None:
    admin = connected(stage, ADMIN)
    acl = AclCreation(
        ResourceType.TOPIC,
        "orders-",
        PatternType.PREFIXED,
        "User:ada",
        "10.0.0.7",
        Operation.READ,
        PermissionType.ALLOW,
    )
    user = ScramCredentialUpsertion("ada", 1, 4096, b"salt-secret", b"salted-secret")
    changes = [AlterableConfig("retention.ms", 0, "12345678"), AlterableConfig("cleanup.policy", 1, None)]
    for body in (
        CreateAclsRequest([acl]),
        DeleteAclsRequest([DeleteAclsFilter(1, None, 1, "User:ada", None, 1, 1)]),
        AlterUserScramCredentialsRequest([], [user]),
        AlterUserScramCredentialsRequest([ScramCredentialDeletion("ada", 1)], []),
        IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", changes)]),
        IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", changes)], validate_only=True),
    ):
        stage.ask(body, connection=admin)
    records = taken(stage)
    assert [(each["api"], each["details"]) for each in records] == [
        ("CreateAcls", ["ALLOW User:ada from 10.0.0.7: READ on TOPIC PREFIXED orders-"]),
        ("DeleteAcls", ["ANY User:ada from ANY: ANY on ANY ANY ANY"]),
        ("AlterUserScramCredentials", ["ada SCRAM-SHA-256"]),
        ("AlterUserScramCredentials", ["-ada SCRAM-SHA-256"]),
        ("IncrementalAlterConfigs", ["TOPIC t: retention.ms", "TOPIC t: -cleanup.policy"]),
        ("IncrementalAlterConfigs", ["TOPIC t: retention.ms", "TOPIC t: -cleanup.policy"]),
    ]
    assert [each.get("validate_only", False) for each in records] == [False] * 5 + [True]
    assert not any(secret in repr(records) for secret in ("secret", "12345678"))


def test_questions_that_deny_nothing_are_not_recorded(stage: NodeStage) -> None:
    """Lists without hidden names, authorized_operations, and permissions that another one makes good."""
    admin, ada = connected(stage, ADMIN), connected(stage, ADA)
    mine = [
        AclCreation(
            ResourceType.TOPIC, "mine", PatternType.LITERAL, "User:ada", "*", Operation.ALL, PermissionType.ALLOW
        )
    ]
    stage.ask(CreateAclsRequest(mine), connection=admin)
    taken(stage)
    stage.ask(MetadataRequest(None, True, True, True), 8, connection=ada)
    stage.ask(ListGroupsRequest(), connection=ada)
    stage.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), connection=ada)
    assert taken(stage) == []
    stage.ask(CreateTopicsRequest([CreatableTopic("mine", 1, 1), CreatableTopic("other", 1, 1)]), connection=ada)
    created, denied = sorted(taken(stage), key=lambda each: str(each["event"]))
    assert (created["event"], created["resource"], created["name"]) == ("allowed", "TOPIC", "mine")
    assert (denied["event"], denied["resource"], denied["name"]) == ("denied", "TOPIC", "other")


def test_a_principal_causes_a_limited_number_of_records_and_the_others_are_counted(stage: NodeStage) -> None:
    ada, bob = connected(stage, ADA), connected(stage, Principal("User", "bob"))
    for _ in range(150):
        produce(stage, ada)
    produce(stage, bob)
    *of_ada, of_bob = taken(stage)
    assert len(of_ada) == 10 * audit.BURST_S
    assert of_bob["principal"] == "User:bob", "the limit is that of one principal"
    stage.now += 1_000
    produce(stage, ada)
    (after,) = taken(stage)
    assert after["left_out"] == 50
    for _ in range(12):
        produce(stage, ada)
    assert len(taken(stage)) == 9
    stage.run(audit.SUMMARY_MS)
    (summary,) = taken(stage)
    assert {name: summary[name] for name in ("event", "kind", "from", "left_out")} == {
        "event": "left out",
        "kind": "denied",
        "from": "User:ada",
        "left_out": 3,
    }
    stage.run(audit.SUMMARY_MS)
    assert taken(stage) == []


def test_one_turn_and_many_origins_have_bounds_too(stage: NodeStage) -> None:
    ada = connected(stage, ADA)
    names = [MetadataRequestTopic(name=f"hidden-{n}") for n in range(audit.NOTES_MAX + 500)]
    stage.ask(MetadataRequest(names), connection=ada)
    assert len(taken(stage)) == 10 * audit.BURST_S
    auditor = stage.node.audit
    assert auditor is not None
    for number in range(audit.ORIGINS_MAX + 50):
        auditor.logged_in(Identity(Address(1, f"host-{number}")), "PLAIN", why="wrong")
        auditor.settle(stage.now)
    assert len(auditor._origins) <= audit.ORIGINS_MAX + 1
    stage.run(audit.SUMMARY_MS)
    assert sum(each["left_out"] for each in taken(stage) if each["event"] == "left out") >= 1_400
    stage.run(60_000)
    auditor.logged_in(Identity(Address(1, "another")), "PLAIN", why="wrong")
    stage.settle()
    assert len(auditor._origins) < 10, "those that are at no limit any more are forgotten"


def login(stage: NodeStage, connection: int, mechanism: str, token: bytes) -> int:
    stage.ask(SaslHandshakeRequest(mechanism), connection=connection)
    asked = stage.send(SaslAuthenticateRequest(token), connection=connection)
    stage.run(1_000)
    return asked.answer.error_code


def test_logins_are_recorded_and_a_name_only_if_there_is_such_a_user(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN", **WITH_ACLS)
    from ottla.protocol.scram import salted

    user = ScramCredentialUpsertion("ada", 2, 4096, b"salt", salted("SCRAM-SHA-512", PASSWORD, b"salt", 4096))
    stage.ask(AlterUserScramCredentialsRequest([], [user]), connection=connected(stage, ADMIN))
    taken(stage)
    assert login(stage, connected(stage), "PLAIN", b"\0ada\0" + PASSWORD) == 0
    failed = ErrorCode.SASL_AUTHENTICATION_FAILED
    assert login(stage, connected(stage), "PLAIN", b"\0ada\0hunter2") == failed
    assert login(stage, connected(stage), "PLAIN", b"\0hunter2\0hunter2") == failed
    assert login(stage, connected(stage), "SCRAM-SHA-512", b"nonsense") == failed
    stage.ask(SaslHandshakeRequest("hunter2"), connection=connected(stage))
    good, wrong, unknown, malformed, unserved = taken(stage)
    assert (good["event"], good["principal"], good["mechanism"]) == ("login", "User:ada", "PLAIN")
    assert {each["event"] for each in (wrong, unknown, malformed, unserved)} == {"login failed"}
    assert (wrong["user"], "user" in unknown, "principal" in wrong) == ("ada", False, False)
    assert wrong["why"] == "the user is unknown or the password is wrong"
    assert malformed["why"] == "the first message is malformed"
    assert "hunter2" not in repr((wrong, unknown, malformed))


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, None),
        (WITH_ACLS, {"denied", "changes", "logins"}),
        ({**WITH_ACLS, "ottla_audit_events": ""}, None),
        ({"ottla_audit_events": "changes"}, {"changes"}),
    ],
)
def test_it_is_on_with_an_authorizer_unless_the_settings_say_otherwise(
    tmp_path: Path, settings: dict[str, Any], kinds: set[str] | None
) -> None:
    stage = NodeStage(tmp_path / "node", **settings)
    assert (None if stage.node.audit is None else set(stage.node.audit.kinds)) == kinds
    assert stage.node.access.quiet is stage.node.access or stage.node.audit is not None
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    if settings.get("ottla_audit_events") == "changes":
        assert [each["why"] for each in taken(stage)] == ["There is no authorizer."]


def test_everything_that_is_allowed_can_be_recorded(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", **{**WITH_ACLS, "ottla_audit_events": "allowed"})
    admin = connected(stage, ADMIN)
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]), connection=admin)
    taken(stage)
    produce(stage, admin)
    assert [(each["event"], each["operation"], each["name"]) for each in taken(stage)] == [("allowed", "WRITE", "t")]


def test_each_description_reads_an_empty_request() -> None:
    for key in audit_details._DETAILS:
        assert len(audit_details.details_of(key, APIS[key].request())) <= 1
    many = DeleteTopicsRequest([f"t{number}" for number in range(150)])
    assert audit_details.details_of(ApiKey.DELETE_TOPICS, many)[-1] == "and 50 more"


def test_a_change_of_a_share_groups_offsets_counts_although_it_needs_only_read(stage: NodeStage) -> None:
    stage.ask(AlterShareGroupOffsetsRequest("jobs"), connection=connected(stage, ADMIN))
    (changed,) = taken(stage)
    assert (changed["api"], changed["details"]) == ("AlterShareGroupOffsets", ["jobs"])


def test_the_controller_records_what_it_does_for_clients_of_other_nodes(tmp_path: Path) -> None:
    pair = NodePair(tmp_path, ottla_audit_events="changes")
    assert pair.ask(2, CreateTopicsRequest([CreatableTopic("t", 1, 1)])).topics[0].error_code == 0
    (created,) = [each for each in pair.stages[1].audited if each.get("details") == ["t"]]
    assert (created["node"], created["api"], created["address"]) == (1, "CreateTopics", "127.0.0.1:0")
    assert pair.stages[2].audited == []
