"""What only the controller does, asked of another node: done by the controller, for the client that asked."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.api.k19_create_topics import TOPICS_AT_ONCE
from ottla.broker.api_spec import Forwarding
from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.cluster.envelopes import unwrapped, wrapped
from ottla.broker.forwarding import RETRY_MS
from ottla.broker.requests import Request
from ottla.broker.served import SPECS
from ottla.metadata.configs import GROUP_CONFIGS
from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.store import Put
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.read_share_group_state_summary import (
    PartitionData,
    ReadShareGroupStateSummaryRequest,
    ReadStateSummaryData,
)
from ottla.protocol.wire import Message
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import channel_of

OTHER = 2
TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def pair(tmp_path: Path) -> NodePair:
    pair = NodePair(tmp_path)
    assert pair.stages[OTHER].node.members.controller_id == 1
    assert sorted(pair.stages[OTHER].node.members.active()) == [1, 2]
    return pair


def change(kind: int, name: str, key: str, value: str) -> AlterConfigsResource:
    return AlterConfigsResource(kind, name, [AlterableConfig(key, 0, value)])


def seen(pair: NodePair) -> list[tuple[str, str, str]]:
    """From now on: who has asked the controller to make topics, as its authorizer sees it."""
    found: list[tuple[str, str, str]] = []

    class Watching:
        def allows(self, identity: Identity, operation: object, resource_type: object, name: str) -> bool:
            address = identity.address
            found.append((str(identity.principal), address.client_host, address.listener))
            return True

        def allows_any(self, identity: Identity, operation: object, resource_type: object) -> bool:
            return self.allows(identity, operation, resource_type, "")

    pair.stages[1].node.access.authorizer = Watching()
    return found


def test_a_request_is_done_by_the_controller_in_its_clients_name(pair: NodePair) -> None:
    stage = pair.stages[OTHER]
    connection = stage.connect()
    stage.clients[connection].channel.authenticate(Principal("User", "alice"), "PLAIN")
    found = seen(pair)
    asked = stage.send(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]), connection=connection)
    pair.settle()
    assert asked.answer.topics[0].error_code == E.NONE
    assert "t" in pair.stages[1].node.image.topics
    assert set(found) == {("User:alice", "127.0.0.1", "PLAINTEXT")}


def test_topics_that_clients_name_are_made_in_their_name(pair: NodePair) -> None:
    found = seen(pair)
    pair.ask(OTHER, MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True))
    pair.settle()
    assert "t" in pair.stages[OTHER].node.image.topics
    assert set(found) == {("User:ANONYMOUS", "127.0.0.1", "PLAINTEXT")}


def test_configs_of_topics_and_groups_are_changed_by_the_controller_a_nodes_own_by_itself(pair: NodePair) -> None:
    pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    found = seen(pair)
    resources = [
        change(BROKER, "2", "message.max.bytes", "5000"),
        change(TOPIC, "t", "retention.ms", "5"),
        change(TOPIC, "nowhere", "retention.ms", "5"),
        change(GROUP, "g", "share.auto.offset.reset", "earliest"),
        change(BROKER, "1", "message.max.bytes", "5000"),
    ]
    answer = pair.ask(OTHER, IncrementalAlterConfigsRequest(resources))
    assert [(each.resource_name, each.error_code) for each in answer.responses] == [
        ("2", E.NONE),
        ("t", E.NONE),
        ("nowhere", E.UNKNOWN_TOPIC_OR_PARTITION),
        ("g", E.NONE),
        ("1", E.INVALID_REQUEST),
    ]
    node = pair.stages[OTHER].node
    assert node.image.topics["t"].configs["retention.ms"] == "5"
    assert node.settings.of_group("g")["share.auto.offset.reset"] == "earliest"
    assert node.settings["message.max.bytes"] == 5000
    assert pair.stages[1].node.settings["message.max.bytes"] != 5000
    assert len(found) == 3


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC])
def test_coordinators_topics_are_made_for_whoever_asks_first(pair: NodePair, name: str) -> None:
    if name == CONSUMER_OFFSETS_TOPIC:
        (found,) = pair.ask(OTHER, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
        assert found.error_code == E.NONE
    elif name == TRANSACTION_STATE_TOPIC:
        pair.ask(OTHER, AddOffsetsToTxnRequest("tx", 1, 0, "g"))
        assert CONSUMER_OFFSETS_TOPIC in pair.stages[OTHER].node.image.topics
        (found,) = pair.ask(OTHER, FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4).coordinators
        assert found.error_code == E.NONE
    else:
        pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
        topic_id = pair.stages[1].node.image.topics["t"].id
        body = ReadShareGroupStateSummaryRequest("g", [ReadStateSummaryData(topic_id, [PartitionData(0, -1)])])
        pair.ask(OTHER, body)
    assert name in pair.stages[OTHER].node.image.topics


@pytest.mark.parametrize(
    ("name", "factor", "hosts"),
    [
        (CONSUMER_OFFSETS_TOPIC, 2, {"groups"}),
        (SHARE_GROUP_STATE_TOPIC, 2, {"share_state", "share"}),
        (TRANSACTION_STATE_TOPIC, 2, {"transactions"}),
        (CONSUMER_OFFSETS_TOPIC, 1, set()),
        ("t", 2, set()),
    ],
)
def test_who_may_have_to_coordinate_later_has_loaded_what_that_takes(
    pair: NodePair, name: str, factor: int, hosts: set[str]
) -> None:
    """Not when the other one has died: its clients wait then."""
    replicas = CreatableReplicaAssignment(0, [1, OTHER][:factor])
    pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic(name, -1, -1, [replicas])]))
    in_use = pair.stages[OTHER].node.coordinators.in_use
    found = {"groups": in_use.groups, "share_state": in_use.share_state, "share": in_use.share}
    found["transactions"] = in_use.transactions
    assert {name for name, host in found.items() if host is not None} == hosts


def test_who_waits_for_a_topic_hears_when_it_can_not_be_made(tmp_path: Path) -> None:
    pair = NodePair(tmp_path, offsets_topic_replication_factor="3")
    (found,) = pair.ask(OTHER, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
    assert found.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert any("Unable to replicate" in note for note in pair.stages[OTHER].notes)


def test_who_waits_for_a_topic_and_becomes_the_controller_has_it_made_by_itself(pair: NodePair) -> None:
    pair.away.add(1)
    asked = pair.stages[OTHER].send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    pair.run(10)
    del pair.stages[1]
    for _ in range(20):
        pair.run(100)
    assert asked.answer.coordinators[0].error_code == E.NONE
    assert CONSUMER_OFFSETS_TOPIC in pair.stages[OTHER].node.image.topics


def test_a_request_waits_for_a_controller(pair: NodePair) -> None:
    pair.away.add(1)
    asked = pair.stages[OTHER].send(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    pair.run(1_000)
    assert not asked.answered
    pair.away.clear()
    pair.settle()
    assert asked.answer.topics[0].error_code == E.NONE


def test_a_request_whose_controller_does_not_answer_is_refused_in_time(pair: NodePair) -> None:
    """Of every API that is handed on as it comes."""
    stage = pair.stages[OTHER]
    pair.away.add(1)
    forwarded = [key for key, spec in SPECS.items() if spec.forwarding is Forwarding.WHOLE]
    asked = {key: stage.send(APIS[key].request(), connection=stage.connect()) for key in forwarded}
    longest = max(getattr(APIS[key].request(), "timeout_ms", 0) for key in forwarded)
    for _ in range(longest // 1_000 + 1):
        pair.run(1_000)
    assert all(each.answered for each in asked.values())
    assert asked[ApiKey.UPDATE_FEATURES].answer.error_code == E.REQUEST_TIMED_OUT


def test_a_topic_that_an_earlier_try_has_made_is_told_as_made(pair: NodePair) -> None:
    """Kafka tells TOPIC_ALREADY_EXISTS, as everybody else is told."""
    stage = pair.stages[OTHER]
    wanted = CreateTopicsRequest(topics=[CreatableTopic("t", 2, 2)])
    asked = stage.send(wanted)
    pair.loses_answers = True
    pair.settle()
    pair.loses_answers = False
    topic_id = stage.node.image.topics["t"].id
    assert pair.ask(1, wanted).topics[0].error_code == E.TOPIC_ALREADY_EXISTS
    pair.run(RETRY_MS)
    (made,) = asked.answer.topics
    assert (made.error_code, made.topic_id, made.num_partitions, made.replication_factor) == (E.NONE, topic_id, 2, 2)
    assert pair.ask(OTHER, wanted).topics[0].error_code == E.TOPIC_ALREADY_EXISTS


def test_a_topic_that_a_later_try_makes_anew_is_another_one(pair: NodePair) -> None:
    stage = pair.stages[OTHER]
    asked = stage.send(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    pair.loses_answers = True
    pair.settle()
    pair.loses_answers = False
    topic_id = stage.node.image.topics["t"].id
    pair.away.add(1)
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState("t")])
    assert pair.ask(1, deleted).responses[0].error_code == E.NONE
    pair.away.clear()
    pair.run(RETRY_MS)
    assert asked.answer.topics[0].error_code == E.NONE
    assert stage.node.image.topics["t"].id != topic_id


def elect_other(pair: NodePair) -> None:
    """The second node takes the first for dead, and becomes the controller."""
    stage = pair.stages[OTHER]
    membership = stage.node.membership
    assert membership is not None
    membership.seen(stage.now, {OTHER: "life-2"})
    stage.run()
    assert stage.node.members.is_controller


@pytest.mark.parametrize(
    ("kind", "name", "key"), [(TOPIC, "t", "retention.ms"), (GROUP, "g", "share.session.timeout.ms")]
)
def test_a_former_controller_overwrites_no_configs(pair: NodePair, kind: int, name: str, key: str) -> None:
    """It hands the request on, even if the change was ready to be committed."""
    pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    first, other = pair.stages[1], pair.stages[OTHER]
    first.hold_commits = True
    late = first.send(IncrementalAlterConfigsRequest([change(kind, name, key, "50000")]))
    elect_other(pair)
    newer = other.ask(IncrementalAlterConfigsRequest([change(kind, name, key, "55000")]))
    assert newer.responses[0].error_code == E.NONE

    def value() -> str:
        image = other.node.image
        return image.topics["t"].configs[key] if kind == TOPIC else image[GROUP_CONFIGS]["g"][key]

    pair.away.add(OTHER)
    first.hold_commits = False
    pair.settle()
    assert (value(), late.answered) == ("55000", False)
    pair.away.clear()
    pair.settle()
    assert (value(), late.answer.responses[0].error_code) == ("50000", E.NONE)


@pytest.mark.parametrize(
    "request_of_client",
    [
        CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]),
        IncrementalAlterConfigsRequest([change(GROUP, "g", "share.session.timeout.ms", "50000")]),
    ],
)
def test_a_request_that_a_former_controller_can_not_finish_is_sent_again(
    pair: NodePair, request_of_client: Message
) -> None:
    """By the node that forwards it, even if that node does not know yet that there was another controller."""
    first, other = pair.stages[1], pair.stages[OTHER]
    first.hold_commits = True
    asked = other.send(request_of_client)
    pair.settle()
    first.store.commit([Put(CONTROLLER_KEY, ControllerRecord(9, "life-9", 7).encode())])
    first.hold_commits = False
    first.run()
    pair.settle()
    assert not asked.answered
    pair.run(RETRY_MS)
    (result,) = getattr(asked.answer, "topics", None) or asked.answer.responses
    assert result.error_code == E.NONE


@pytest.mark.parametrize("count", [1, 25])
def test_a_former_controller_hands_on_the_request_of_its_own_client(pair: NodePair, count: int) -> None:
    """As Kafka's brokers do, whose clients never get NOT_CONTROLLER. Of 25 topics it creates 20 itself."""
    first = pair.stages[1]
    first.hold_commits = True
    asked = first.send(CreateTopicsRequest(topics=[CreatableTopic(f"t{number}", 1, 1) for number in range(count)]))
    if count > TOPICS_AT_ONCE:
        first.run()
        first.commit()
        assert len(first.node.image.topics) == TOPICS_AT_ONCE
        first.run()
    elect_other(pair)
    first.hold_commits = False
    pair.settle()
    assert {topic.error_code for topic in asked.answer.topics} == {E.NONE}
    assert len(pair.stages[OTHER].node.image.topics) == len(asked.answer.topics) == count


@pytest.mark.parametrize(
    ("request_of_client", "results"),
    [
        (DeleteTopicsRequest(topics=[DeleteTopicState("t")]), "responses"),
        (CreatePartitionsRequest(topics=[CreatePartitionsTopic("t", 2, None)]), "results"),
        (
            AlterClientQuotasRequest(
                [RequestEntryData([RequestEntityData("user", "u")], [OpData("producer_byte_rate", 9.0)])]
            ),
            "entries",
        ),
    ],
)
def test_requests_that_a_former_controller_can_not_finish_are_handed_on(
    pair: NodePair, request_of_client: Message, results: str
) -> None:
    pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    first = pair.stages[1]
    first.hold_commits = True
    asked = first.send(request_of_client)
    elect_other(pair)
    first.hold_commits = False
    pair.settle()
    (result,) = getattr(asked.answer, results)
    assert result.error_code == E.NONE


def test_two_nodes_that_change_configs_of_all_brokers_at_once_keep_both_changes(pair: NodePair) -> None:
    late = pair.stages[1]
    late.hold_commits = True
    asked = late.send(IncrementalAlterConfigsRequest([change(BROKER, "", "message.max.bytes", "5000")]))
    answer = pair.stages[OTHER].ask(IncrementalAlterConfigsRequest([change(BROKER, "", "log.retention.ms", "7")]))
    late.hold_commits = False
    pair.settle()
    assert [each.responses[0].error_code for each in (answer, asked.answer)] == [E.NONE, E.NONE]
    assert pair.stages[OTHER].node.settings.of_broker("") == {"message.max.bytes": "5000", "log.retention.ms": "7"}


def test_an_envelope_is_opened_for_nodes_of_the_cluster_only(pair: NodePair) -> None:
    identity = Identity(
        Address(1, "::1", 40_000, "OUTSIDE", "SASL_SSL", ("broker.example", 9093)), Principal("User", "bob"), "PLAIN"
    )
    inside = CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)])
    envelope = wrapped(Request(Channel(identity), 19, 7, 3, "client", 0, inside))
    assert pair.ask(1, envelope).error_code == E.CLUSTER_AUTHORIZATION_FAILED

    def decode(key: int, frame: memoryview, position: int, version: int) -> object:
        return CreateTopicsRequest.decode(frame, position, version)[0]

    found = unwrapped(5, envelope, channel_of(9), decode)
    assert (found.identity.principal, found.client_id, found.now, found.version) == (("User", "bob"), "client", 5, 7)
    assert found.identity == replace(identity, address=identity.address._replace(connection_id=9))
    assert found.body == inside
    for damaged in (b"", b"[]", b"{}", b'{"advertised": 1}'):
        with pytest.raises(MalformedFrameError, match=re.escape("does not say who sent")):
            unwrapped(5, EnvelopeRequest(envelope.request_data, damaged, bytes(4)), channel_of(9), decode)
