"""Long answers, made a slice at a time: the same bytes as in one go, and others are served in between."""

import struct
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.broker import slices
from ottla.broker.api import (
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k23_offset_for_leader_epoch,
    k27_write_txn_markers,
    k32_describe_configs,
    k34_alter_replica_log_dirs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k42_delete_groups,
    k50_describe_user_scram_credentials,
    k51_alter_user_scram_credentials,
    k61_describe_producers,
    k75_describe_topic_partitions,
    k91_alter_share_group_offsets,
    k92_delete_share_group_offsets,
    listings,
    share_state_calls,
)
from ottla.broker.coordinators import rounds
from ottla.broker.effects import Parked
from ottla.broker.parking import ParkedWork
from ottla.broker.requests import Request
from ottla.broker.schedule import Timed
from ottla.log.files import DiskFiles
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, RequestEntityData, RequestEntryData
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDir, AlterReplicaLogDirsRequest
from ottla.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirTopic as LogDirTopic
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from ottla.protocol.messages.delete_share_group_state import DeleteStateData as Deleted
from ottla.protocol.messages.delete_share_group_state import PartitionData as Gone
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, RequestCursor
from ottla.protocol.messages.describe_topic_partitions import TopicRequest as TopicNamed
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from ottla.protocol.messages.initialize_share_group_state import InitializeStateData as Initialized
from ottla.protocol.messages.initialize_share_group_state import PartitionData as Begun
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.read_share_group_state import PartitionData as StateAsked
from ottla.protocol.messages.read_share_group_state import ReadShareGroupStateRequest, ReadStateData
from ottla.protocol.messages.read_share_group_state_summary import PartitionData as Summary
from ottla.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from ottla.protocol.messages.read_share_group_state_summary import ReadStateSummaryData as Summed
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from ottla.protocol.messages.write_share_group_state import PartitionData as StateWritten
from ottla.protocol.messages.write_share_group_state import StateBatch, WriteShareGroupStateRequest
from ottla.protocol.messages.write_share_group_state import WriteStateData as Written
from ottla.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from ottla.protocol.wire import ZERO_UUID, Message
from tests.harness.node_stage import CHANNEL, NodeStage, versions_of

TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", num_partitions="1")
    topics = [CreatableTopic(f"t{n}", 1 + 9 * (n == 3), 1) for n in range(12)]
    topics[5].configs = [CreatableTopicConfig("retention.ms", "7")]
    stage.ask(CreateTopicsRequest(topics))
    return stage


def all_topics() -> MetadataRequest:
    return MetadataRequest(topics=None)


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_in_slices_is_metadata_in_one_go(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    requests = [MetadataRequest(topics=None if version else [])]
    requests.append(MetadataRequest([MetadataRequestTopic(name=f"t{n}") for n in (3, 1, 99, 2, 1)]))
    requests[1].allow_auto_topic_creation = False
    stage.ask(requests[1], version)  # before version 4 nobody can say that topics are not to be made
    if version >= 12:
        ids = [stage.node.replicas.by_name[f"t{n}"].id for n in range(6)]
        requests.append(MetadataRequest([MetadataRequestTopic(topic_id, None) for topic_id in ids]))
    whole = [stage.ask(request, version) for request in requests]
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 2)
    monkeypatch.setattr(k03_metadata, "NAMES_AT_ONCE", 2)
    assert [stage.ask(request, version) for request in requests] == whole


def test_missing_topics_are_made_although_the_answer_comes_in_slices(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 2)
    monkeypatch.setattr(k03_metadata, "NAMES_AT_ONCE", 2)
    stage.ask(MetadataRequest([MetadataRequestTopic(name=f"new{n}") for n in range(9)]))
    assert all(f"new{n}" in stage.node.replicas.by_name for n in range(9))


def offsets_asked() -> list[OffsetFetchRequestTopics]:
    return [OffsetFetchRequestTopics(f"t{n}", ZERO_UUID, list(range(5))) for n in (3, 99, 1)]


def long_requests() -> list[tuple[Message, int]]:
    """Such as are answered in slices, with what is refused among the rest, and their versions."""
    names = ["a", "b", "a", "c", "d", "e"]
    old = [OffsetFetchRequestTopic(f"t{n}", list(range(5))) for n in (3, 99, 1)]
    groups = [OffsetFetchRequestGroup(name, topics=offsets_asked()[:n]) for n, name in enumerate(names)]
    epochs = [OffsetForLeaderTopic(f"t{n}", [OffsetForLeaderPartition(i, -1, 0) for i in range(4)]) for n in (3, 99)]
    lists = [
        ListOffsetsTopic(f"t{n}", [ListOffsetsPartition(i, -1, t) for i in range(4)])
        for n, t in ((3, -1), (99, -1), (1, 5), (3, -3), (4, -2))
    ]
    return [
        (FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4),
        (OffsetFetchRequest(group_id="a", topics=old), 1),
        (OffsetFetchRequest(group_id="a", topics=old), 7),
        (OffsetFetchRequest(groups=groups), 8),
        (OffsetFetchRequest(groups=[*groups, OffsetFetchRequestGroup("a", topics=None)], require_stable=True), 9),
        (ListOffsetsRequest(replica_id=-1, topics=lists), 7),
        (OffsetForLeaderEpochRequest(topics=epochs), 4),
        (DescribeGroupsRequest(groups=names), 5),
        (ListGroupsRequest(["stable", "x", " Empty", "EMPTY"], ["classic", "y"]), 5),
        (ListGroupsRequest(["x", "y", "z"]), 4),
        (ListTransactionsRequest(["Empty", "x", "Ongoing", "y"], [0, 1]), 0),
        (ListTransactionsRequest(["x", "y", "z"], [0], -1, "t.*"), 2),
        (OffsetCommitRequest("a", -1, topics=committed((3, 99, 1))), 8),
        (OffsetCommitRequest("a", 7, topics=committed((3, 99, 1))), 9),
        (OffsetCommitRequest("a", -1, topics=committed((98, 99))), 8),
        (DeleteGroupsRequest(["x", "b", "y", "x"]), 2),
        (
            DeleteRecordsRequest(
                [DeleteRecordsTopic(n, deleted_to(i)) for i, n in enumerate(("t3", "no", "t1", "t3"))]
            ),
            2,
        ),
        (DescribeLogDirsRequest(None), 4),
        (DescribeLogDirsRequest([DescribableLogDirTopic(name, [4, 0, 99, 4]) for name in ("t3", "no", "t1", "t3")]), 4),
        (ElectLeadersRequest(0, [TopicPartitions(name, [*range(5)]) for name in ("t3", "no", "t1", "t1", "t2")]), 2),
        (AlterPartitionReassignmentsRequest(1, True, [ReassignableTopic(n, moved()) for n in ("t3", "no", "t1")]), 1),
        (AlterClientQuotasRequest([RequestEntryData([RequestEntityData("user", n)], []) for n in names]), 1),
        (DescribeUserScramCredentialsRequest([UserName(name) for name in names]), 0),
        (DescribeQuorumRequest([RequestTopicData(n, [RequestPartitionData(i) for i in range(5)]) for n in names]), 2),
        (DescribeProducersRequest([TopicRequest(name, [*range(5)]) for name in ("t3", "no", "t1", "a/b")]), 0),
        (DescribeTransactionsRequest(names), 0),
        (DescribeTopicPartitionsRequest([TopicNamed(name) for name in ("t3", "no", "t1", "a/b", "t11", "t2")]), 0),
        (DescribeTopicPartitionsRequest([], 15), 0),
        (DescribeTopicPartitionsRequest([], 10, RequestCursor("t3", 4)), 0),
        (DescribeTopicPartitionsRequest([TopicNamed(name) for name in names], 10, RequestCursor("none", 4)), 0),
        (ShareGroupDescribeRequest(["", *names]), 1),
        (ConsumerGroupDescribeRequest(["", *names]), 1),
        (LeaveGroupRequest("a", members=[MemberIdentity(name) for name in names]), 5),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name) for name in ("no", "a", "no", "b", "c")]), 6),
        (DeleteTopicsRequest(topic_names=["no", "a", "no", "b", "c"]), 1),
        (DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(n, lags()) for n in names]), 1),
        (
            ReadShareGroupStateRequest(
                "a", [ReadStateData(n.encode() * 16, [StateAsked(i) for i in (1, 2, 3)]) for n in names[3:]]
            ),
            0,
        ),
    ]


def more_long_requests() -> list[tuple[Message, int]]:
    names = ("t3", "no", "t1")
    marked = [WritableTxnMarkerTopic(name, [*range(5)]) for name in names]
    ids = [ZERO_UUID, b"n" * 16]
    altered = [AlterShareGroupOffsetsRequestPartition(index, 0) for index in range(5)]
    return [
        (WriteTxnMarkersRequest([WritableTxnMarker(n, 0, True, marked, 0) for n in (1, 2, 1)]), 1),
        (AlterReplicaLogDirsRequest([AlterReplicaLogDir("/no", [LogDirTopic(n, [*range(5)]) for n in names])]), 2),
        (CreatePartitionsRequest([CreatePartitionsTopic(n, 9) for n in (*names, "t2", "t2")], 9_000, True), 3),
        (AddPartitionsToTxnRequest(transactions=[verified(name) for name in ("x", "y", "z")]), 5),
        (AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, 1) for name in names]), 0),
        (StreamsGroupDescribeRequest([*names]), 0),
        (AlterShareGroupOffsetsRequest("s", [AlterShareGroupOffsetsRequestTopic(n, altered) for n in names]), 0),
        (DeleteShareGroupOffsetsRequest("s", [DeleteShareGroupOffsetsRequestTopic(n) for n in names]), 0),
        (InitializeShareGroupStateRequest("a", [Initialized(id, [Begun(i, 0, 0) for i in range(3)]) for id in ids]), 0),
        (WriteShareGroupStateRequest("a", [Written(id, [stored(index) for index in range(3)]) for id in ids]), 1),
        (DeleteShareGroupStateRequest("a", [Deleted(id, [Gone(index) for index in range(3)]) for id in ids]), 0),
        (ReadShareGroupStateSummaryRequest("a", [Summed(id, [Summary(i, 0) for i in range(3)]) for id in ids]), 1),
    ]


def verified(transactional_id: str) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(transactional_id, 1, 0, True, [AddPartitionsToTxnTopic("t3", [1, 2])])


def stored(index: int) -> StateWritten:
    return StateWritten(index, 0, 0, 0, 0, [StateBatch(offset, offset, 2, 1) for offset in range(0, 10, 2)])


def deleted_to(offset: int) -> list[DeleteRecordsPartition]:
    return [DeleteRecordsPartition(index, offset) for index in (0, 1, 99, 0)]


def moved() -> list[ReassignablePartition]:
    return [ReassignablePartition(index, replicas) for index in (0, 99) for replicas in ([1], [2], None)]


def lags() -> list[DescribeShareGroupOffsetsRequestTopic]:
    return [DescribeShareGroupOffsetsRequestTopic(name, [*range(5)]) for name in ("t3", "no")]


def committed(topics: Iterable[int]) -> list[OffsetCommitRequestTopic]:
    partitions = [OffsetCommitRequestPartition(index, 5 + index, -1, None) for index in range(6)]
    return [OffsetCommitRequestTopic(f"t{n}", ZERO_UUID, partitions) for n in topics]


def cut_small(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    for module in (
        slices,
        k02_list_offsets,
        k08_offset_commit,
        k09_offset_fetch,
        k10_find_coordinator,
        k21_delete_records,
        k23_offset_for_leader_epoch,
        k27_write_txn_markers,
        k34_alter_replica_log_dirs,
        k51_alter_user_scram_credentials,
        k91_alter_share_group_offsets,
        k92_delete_share_group_offsets,
        k35_describe_log_dirs,
        k42_delete_groups,
        k50_describe_user_scram_credentials,
        k61_describe_producers,
        k75_describe_topic_partitions,
        listings,
    ):
        monkeypatch.setattr(module, "SLICE_STEPS", steps)
    monkeypatch.setattr(listings, "NAMES_AT_ONCE", steps)
    monkeypatch.setattr(share_state_calls, "BATCHES_AT_ONCE", steps)
    monkeypatch.setattr(k37_create_partitions, "TOPICS_AT_ONCE", steps)
    monkeypatch.setattr(k20_delete_topics, "TOPICS_AT_ONCE", steps)
    monkeypatch.setattr(rounds, "CALLS_AT_ONCE", steps)


LONG = [*long_requests(), *more_long_requests()]


@pytest.mark.parametrize("at", range(len(LONG)))
def test_what_names_many_is_answered_in_slices_as_in_one_go(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    stage.ask(OffsetCommitRequest("a", -1, topics=committed((3,))), 8)
    stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
    stage.ask(InitProducerIdRequest("tx", 1_000), 4)
    monkeypatch.setattr(DiskFiles, "space", lambda files, path: (2, 1))  # others write to the disk meanwhile
    begun: list[tuple[bool, bool]] = []
    """Who is long, who is not through at once."""
    begin = stage.node.slices.begin

    def counted(request: Request, work: slices.Work, **how: bool) -> Any:
        answer = begin(request, work, **how)
        begun.append((how["is_long"], isinstance(answer, Parked)))
        return answer

    monkeypatch.setattr(stage.node.slices, "begin", counted)
    request, version = deepcopy(LONG[at])
    monkeypatch.setattr(k02_list_offsets, "SEARCHES_AT_ONCE", 99)
    whole = stage.ask(request, version)
    assert not any(is_long for is_long, _ in begun)
    begun.clear()
    cut_small(monkeypatch, 2)
    request, _ = deepcopy(LONG[at])
    assert stage.ask(request, version) == whole
    assert any(goes_on for _, goes_on in begun)


def test_a_group_of_which_all_is_asked_again_is_told_once(stage: NodeStage) -> None:
    """Else the answer to a small request would be so many times as large."""
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    stage.ask(OffsetCommitRequest("a", -1, topics=committed((3,))), 8)
    everything = [OffsetFetchRequestGroup(name, member_id=f"m{n}", topics=None) for n in range(3) for name in "ab"]
    answer = stage.ask(OffsetFetchRequest(groups=everything), 9)
    assert [group.group_id for group in answer.groups] == ["a", "b"]
    again = [OffsetFetchRequestGroup("a", topics=offsets_asked()[:1])] * 3
    assert len(stage.ask(OffsetFetchRequest(groups=again), 9).groups) == 3, "these are as many as their request is long"


def test_one_commit_in_slices_is_one_batch(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    log = (
        stage.node.replicas.by_name["__consumer_offsets"]
        .partitions[stage.node.coordinators.groups.partition_for("a")]
        .log
    )
    cut_small(monkeypatch, 2)
    stage.ask(OffsetCommitRequest("a", -1, topics=committed((3, 99, 1))), 8)
    base_offset, last_offset_delta = struct.unpack_from(">q15xi", log.segments[-1].file.read(0, 61))
    assert (base_offset, last_offset_delta) == (0, log.log_end_offset - 1) == (0, 6)


def test_a_topic_that_goes_meanwhile_is_not_committed(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    cut_small(monkeypatch, 2)
    frame = encode_request(RequestHeader(8, 8, 7, "stage"), OffsetCommitRequest("a", -1, topics=committed((3, 1))))
    parked = stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    assert isinstance(parked, Parked)
    stage.delete("t3")
    whole = b"".join(cast(bytes, part) for part in stage.in_slices(parked))
    _, answer = decode_response(8, 8, memoryview(whole)[4:])
    assert {topic.name: {each.error_code for each in topic.partitions} for topic in answer.topics} == {
        "t3": {3},
        "t1": {0, 3},
    }


def test_many_topics_are_made_as_few_are(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with one is its own matter, and what comes into being meanwhile is not made twice."""
    monkeypatch.setattr(k19_create_topics, "TOPICS_AT_ONCE", 2)
    names = ["n1", "n2", "bad/", "t1", "n3", "twice", "twice", "n4", "late", "n5"]
    asked = CreateTopicsRequest([CreatableTopic(name, 2, 1) for name in names])
    frame = encode_request(RequestHeader(19, 5, 7, "stage"), asked)
    parked = stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    assert isinstance(parked, Parked)
    while "n1" not in stage.node.replicas.by_name:
        stage.slice()
    assert "n5" not in stage.node.replicas.by_name
    stage.create("late", 1, {})
    whole = b"".join(cast(bytes, part) for part in stage.in_slices(parked))
    _, answer = decode_response(19, 5, memoryview(whole)[4:])
    errors = {each.name: each.error_code for each in answer.topics if each.error_code}
    assert errors == {"bad/": 17, "t1": 36, "twice": 42, "late": 36}
    assert [each.name for each in answer.topics] == list(dict.fromkeys(names))
    made = {name for name, topic in stage.node.replicas.by_name.items() if len(topic.partitions) == 2}
    assert made == {"n1", "n2", "n3", "n4", "n5"}


def test_a_piece_that_waits_is_gone_with_its_client(stage: NodeStage) -> None:
    asked = Request(CHANNEL, 15, 5, 7, None, stage.now, DescribeGroupsRequest(["a", "b", "c"]))

    def wait(request: Request) -> Parked:
        return Parked(stage.node.parking.park(request, None, ParkedFor()))

    stage.node.slices.begin(asked, slices.in_pieces(asked, wait, "groups", "groups"), is_long=True)
    assert len(stage.node.parking) == 2
    stage.node.disconnected(stage.now, CHANNEL.identity.address.connection_id)
    assert len(stage.node.parking) == 0
    assert stage.deadline_of(Timed.SLICES) is None


class ParkedFor(ParkedWork):
    def abandon(self, ticket: int) -> None:
        """Nobody noted the ticket."""


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("keys", [None, ["retention.ms", "num.partitions", "nosuch"]])
def test_many_configurations_are_what_they_are_one_by_one(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int, keys: list[str] | None
) -> None:
    """Also where some can't be told, and some read like others."""
    named = [(TOPIC, f"t{n}") for n in (1, 5, 99, 2, 5)]
    named += [(BROKER, "0"), (BROKER, "1"), (BROKER, "1"), (GROUP, "a"), (GROUP, "b"), (GROUP, ""), (TOPIC, "x" * 200)]
    resources = [DescribeConfigsResource(kind, name, keys) for kind, name in named]
    request = DescribeConfigsRequest(resources, include_synonyms=True, include_documentation=True)
    sliced = stage.ask(request, version)
    monkeypatch.setattr(k32_describe_configs, "ANSWERED_AT_ONCE_MAX", 1000)
    assert sliced == stage.ask(request, version)


def test_a_long_answer_shares_the_bytes_that_read_the_same(stage: NodeStage) -> None:
    request = DescribeConfigsRequest([DescribeConfigsResource(GROUP, f"g{n}", None) for n in range(3000)])
    frame = encode_request(RequestHeader(32, 4, 7, "stage"), request)
    parked = stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    assert isinstance(parked, Parked)
    parts = stage.in_slices(parked)
    kept = {id(part): len(part) for part in parts if isinstance(part, bytes)}
    assert sum(len(part) for part in parts if isinstance(part, bytes)) > 10 * sum(kept.values())


def test_a_request_whose_client_is_gone_is_dropped(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 1)
    frame = encode_request(RequestHeader(3, 9, 7, "stage"), all_topics())
    assert isinstance(stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:]), Parked)
    stage.node.disconnected(stage.now, CHANNEL.identity.address.connection_id)
    stage.node.tick(stage.now)
    assert stage.deadline_of(Timed.SLICES) is None
    assert stage.node.take_effects(stage.now) == []


def test_a_failure_in_a_slice_closes_its_connection_and_no_other(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 1)
    frame = encode_request(RequestHeader(3, 9, 7, "stage"), all_topics())
    assert isinstance(stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:]), Parked)
    monkeypatch.setattr(k03_metadata, "_described", None)
    stage.faults = []
    stage.node.tick(stage.now)
    assert len(stage.faults) == len(stage.node.take_effects(stage.now)) == 1
    assert stage.deadline_of(Timed.SLICES) is None
    assert len(stage.node.parking) == 0
