"""A node that has not heard of its cluster for longer than its lease leads nothing, as far as clients can tell."""

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.cluster.membership import Joining
from ottla.broker.requests import RequestRefusedError
from ottla.broker.served import SPECS
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import NodeState
from ottla.metadata.store import Put
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.alter_partition import AlterPartitionRequest
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.harness.node_stage import NodeStage

from tests.harness.broker.each_api import LEASE_MS, EachApi  # isort: skip


def joined(tmp_path: Path) -> NodeStage:
    """The only node of a cluster: it registers, becomes the controller and makes itself active."""
    stage = NodeStage(tmp_path, joining=Joining("127.0.0.1", 9092, "life", LEASE_MS))
    hear(stage)
    return stage


def hear(stage: NodeStage) -> None:
    """What the shell of a node says after each look."""
    membership = stage.node.membership
    assert membership is not None
    membership.confirmed(stage.now)
    membership.seen(stage.now, {1: "life"})
    stage.settle()


def latest(stage: NodeStage) -> int:
    asked = ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])])
    return int(stage.ask(asked).topics[0].partitions[0].error_code)


def test_one_that_is_cut_off_leads_nothing_until_it_hears_again(tmp_path: Path) -> None:
    stage = joined(tmp_path)
    assert stage.node.image.nodes["1"].state is NodeState.ACTIVE
    (made,) = stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)])).topics
    assert (made.error_code, latest(stage)) == (E.NONE, E.NONE)
    stage.run(LEASE_MS)
    assert latest(stage) == E.NONE
    stage.run(1)
    assert latest(stage) == E.NOT_LEADER_OR_FOLLOWER
    hear(stage)
    assert latest(stage) == E.NONE


def test_a_reader_that_waits_is_told_so_as_well(tmp_path: Path) -> None:
    """The process stood still while the reader waited: what it knew before is no answer."""
    stage = joined(tmp_path)
    (made,) = stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)])).topics
    wanted = FetchTopic(topic_id=made.topic_id, partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)])
    waiting = stage.send(FetchRequest(max_wait_ms=LEASE_MS + 500, min_bytes=1, topics=[wanted]))
    stage.now += LEASE_MS + 400
    stage.run(200)
    assert waiting.answered
    assert waiting.answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER


def test_a_process_whose_place_another_one_has_taken_refuses_all_clients_for_good(tmp_path: Path) -> None:
    """Without a lease alone, it still says who leads. It must not when its successor ends, either."""
    stage = joined(tmp_path)
    (made,) = stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)])).topics
    wanted = FetchTopic(topic_id=made.topic_id, partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)])
    messages = [
        ApiVersionsRequest("t", "1"),
        MetadataRequest(topics=None),
        DescribeClusterRequest(),
        FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
        FetchRequest(max_wait_ms=0, topics=[wanted]),
        CreateTopicsRequest(topics=[CreatableTopic("u", 1, 1)]),
    ]
    stage.run(LEASE_MS + 1)
    for message in messages[:3]:
        stage.ask(message)
    row = stage.node.image.nodes["1"]
    successor = replace(row, incarnation="copy", state=NodeState.ACTIVE, version=0)
    stage.store.commit([Put("nodes/1", successor.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    for is_fresh in (False, True):
        if is_fresh:  # the successor has ended, and this process has its place in ZooKeeper again
            hear(stage)
        for message in messages:
            with pytest.raises(RequestRefusedError, match="another process has registered as node 1"):
                stage.ask(message)


def test_what_an_earlier_life_led_is_led_in_a_higher_epoch(tmp_path: Path) -> None:
    stage = joined(tmp_path)
    stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    before = stage.node.image.topics["t"].partitions[0]
    stage.end(clean=False)
    stage.joining = Joining("127.0.0.1", 9092, "next", LEASE_MS)
    stage.start()
    stage.settle()
    partition = stage.node.replicas.get("t", 0)
    assert partition is not None
    assert not partition.leads, "nobody has elected it yet"
    membership = stage.node.membership
    assert membership is not None
    membership.confirmed(stage.now)
    membership.seen(stage.now, {1: "next"})
    stage.settle()
    assert partition.leads
    assert stage.node.image.topics["t"].partitions[0].leader_epoch > before.leader_epoch
    assert stage.node.image.nodes["1"].broker_epoch > 0


def test_who_is_in_sync_only_nodes_of_the_cluster_say(tmp_path: Path) -> None:
    answer = joined(tmp_path).ask(AlterPartitionRequest(1, 0))
    assert answer.error_code == E.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("partitions", [1, 1000])
def test_only_librdkafka_is_hung_up_on_that_asks_one_that_is_cut_off_how_far_a_group_is(
    tmp_path: Path, partitions: int
) -> None:
    """It does not ask again for what it hears NOT_COORDINATOR for."""
    stage = joined(tmp_path)
    stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    wanted = OffsetFetchRequestGroup(
        "g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[*range(partitions)])]
    )
    asked, connection = OffsetFetchRequest(groups=[wanted]), stage.connect()
    stage.ask(ApiVersionsRequest("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), 3, connection)
    assert stage.ask(asked, 9, connection).groups[0].error_code == E.NONE
    stage.run(LEASE_MS + 1)
    assert stage.ask(asked, 9, stage.connect()).groups[0].error_code == E.NOT_COORDINATOR
    refused = stage.send(asked, 9, connection)
    assert (refused.answer, stage.clients[connection].channel.may_serve(refused.frame)) == (None, False)
    hear(stage)
    assert stage.ask(asked, 9, stage.connect()).groups[0].error_code == E.NONE


def test_what_a_coordinator_has_left_to_do_it_does_once_it_hears_again(tmp_path: Path) -> None:
    """Here to abort a transaction, whose id nobody asks about any more."""
    stage = joined(tmp_path)
    stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]))
    begun = stage.ask(InitProducerIdRequest("tx", 20_000), 4)
    topics = [AddPartitionsToTxnTopic("t", [0])]
    stage.ask(AddPartitionsToTxnRequest("tx", begun.producer_id, begun.producer_epoch, topics), 3)
    stage.run(LEASE_MS + 1)
    describe = DescribeTransactionsRequest(["tx"])
    assert stage.ask(describe).transaction_states[0].error_code == E.NOT_COORDINATOR
    hear(stage)
    assert stage.ask(describe).transaction_states[0].transaction_state == "Ongoing"
    stage.run(LEASE_MS + 1)
    assert stage.ask(describe).transaction_states[0].error_code == E.NOT_COORDINATOR
    for _ in range(20):
        hear(stage)
        stage.run(1_000)
    (shard,) = [shard for shard in stage.node.coordinators.transactions.shards() if shard.image()]  # type: ignore[attr-defined]
    assert [str(each.state.name) for each in shard.image().values()] == ["COMPLETE_ABORT"]  # type: ignore[attr-defined]


NOT_HERE = {E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize("key", [spec.key for spec in SPECS.values()], ids=lambda key: key.name)
def test_what_a_leader_or_coordinator_answers_nobody_gets_of_one_that_is_cut_off(tmp_path: Path, key: ApiKey) -> None:
    """Nor does a client go on to ask it: it would ask it who leads instead, too. What any node answers goes on."""
    each = EachApi(tmp_path)
    for asking in each.requests(key):
        assert not each.errors(asking) & NOT_HERE
    each.stage.run(LEASE_MS + 1)
    refused: set[int] = set()
    for asking in each.requests(key):
        connection = each.connect()
        if key is ApiKey.SASL_AUTHENTICATE:
            with pytest.raises(RequestRefusedError, match="which passwords hold is not known"):
                each.stage.ask(*asking, connection)
            continue
        refused |= each.errors(asking, connection) & NOT_HERE
        assert each.stage.clients[connection].channel.closing == SPECS[key].needs_lease
    assert bool(refused) == (SPECS[key].needs_lease or key is ApiKey.READ_TOGETHER)
