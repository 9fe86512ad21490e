"""A share group over two nodes: one leads what it reads, the other keeps its state and its dead letters."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import NODE_REQUEST
from ottla.machine import Call
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.framing import decode_request_header
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.write_share_group_state import (
    PartitionData,
    StateBatch,
    WriteShareGroupStateRequest,
    WriteStateData,
)
from ottla.protocol.records.record import Record, build_batch, decode_records
from ottla.share.state import coordinator_key
from tests.harness.node_pair import NodePair
from tests.harness.share.share_stage import ACCEPT, REJECT, RELEASE, Member, ShareStage

READS, KEEPS = 1, 2
GROUP = 32
PRODUCE = 0


class FromHere(CoordinatorRequest):
    """What a node asks by itself."""

    __slots__ = ()
    goes_elsewhere = True


class SharePair(NodePair):
    """The topic `jobs` is led by one node, the state of share groups and `dlq.jobs` by the other."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.make(SHARE_GROUP_STATE_TOPIC, KEEPS)
        self.make("jobs", READS)
        self.make("dlq.jobs", KEEPS, **{"errors.deadletterqueue.group.enable": "true"})
        self.id = self.stages[READS].node.image.topics["jobs"].id
        self.configure(share_auto_offset_reset="earliest")

    def make(self, name: str, *node_ids: int, **configs: str) -> None:
        given = [CreatableTopicConfig(key, value) for key, value in configs.items()]
        topic = CreatableTopic(name, -1, -1, [CreatableReplicaAssignment(0, [*node_ids])], given)
        (made,) = self.ask(1, CreateTopicsRequest(topics=[topic])).topics
        assert made.error_code == E.NONE, made.error_message

    def configure(self, **overrides: str) -> None:
        configs = [AlterableConfig(name.replace("_", "."), 0, value) for name, value in overrides.items()]
        answer = self.ask(READS, IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, "g", configs)]))
        assert answer.responses[0].error_code == E.NONE, answer.responses[0].error_message

    def produce(self, *values: bytes) -> None:
        partition = self.stages[READS].node.replicas.get("jobs", 0)
        assert partition is not None
        batch = build_batch([Record(-1, self.stages[READS].now, b"k", value) for value in values])
        partition.append(self.stages[READS].now, memoryview(bytearray(batch)))
        self.settle()

    def member(self, name: str) -> Member:
        return Member(self.stages[READS], "g", name, [(self.id, 0)])  # type: ignore[arg-type]

    def fetch(self, member: Member, *acks: tuple[int, int, list[int]], **how: Any) -> list[tuple[int, int, int]]:
        asked = member.ask(list(acks), **{"wait_ms": 500, **how})
        self.until_answered(asked)
        return member.acquired(asked)

    def said(self, member: Member, *acks: tuple[int, int, list[int]]) -> int:
        asked = member.acknowledge(*acks)
        self.until_answered(asked)
        return int(asked.answer.responses[0].partitions[0].error_code)

    def until_answered(self, asked: Any) -> None:
        for _ in range(1_000):
            self.settle()
            if asked.answered:
                return
            self.run(10)
        raise AssertionError("it is not answered")

    def anew(self) -> None:
        """The node that leads starts over: it knows what the other one has kept."""
        stage = self.stages[READS]
        partition = stage.node.replicas.get("jobs", 0)
        assert partition is not None
        stage.node.coordinators.share.forget(stage.now, "g")

    def states(self) -> list[Any]:
        """What the other node keeps."""
        return [shard.image() for shard in self.stages[KEEPS].node.coordinators.share_state.shards() if shard.image()]  # type: ignore[attr-defined]

    def letters(self) -> list[Record]:
        partition = self.stages[KEEPS].node.replicas.get("dlq.jobs", 0)
        assert partition is not None
        records: list[Record] = []
        while len(records) < partition.log.high_watermark:
            found = partition.log.read(len(records), 1 << 20)
            assert found.slice is not None
            records += decode_records(found.slice.read())
        return records


@pytest.fixture
def pair(tmp_path: Path) -> SharePair:
    return SharePair(tmp_path)


def test_what_was_acknowledged_is_kept_by_the_other_node(pair: SharePair) -> None:
    pair.produce(b"a", b"b", b"c")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 2, 1)]
    assert pair.said(member, (0, 0, [ACCEPT]), (1, 1, [RELEASE]), (2, 2, [ACCEPT])) == E.NONE
    ((key, kept),) = pair.states()[0].items()
    assert (key.group_id, key.partition, kept[2]) == ("g", 0, 1)
    pair.anew()
    assert pair.fetch(pair.member("n")) == [(1, 1, 2)]
    assert len(pair.stages[KEEPS].node.coordinators.share_state.loaded()) == 1
    assert not pair.stages[READS].node.coordinators.share_state.loaded()


def test_a_write_waits_while_its_coordinator_is_away_and_fails_after_a_while(pair: SharePair) -> None:
    pair.produce(b"a", b"b")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 1, 1)]
    pair.away.add(KEEPS)
    asked = member.acknowledge((0, 0, [ACCEPT]))
    pair.run(1_000)
    assert not asked.answered
    pair.lose()
    pair.run(1_000)
    pair.away.clear()
    pair.until_answered(asked)
    assert asked.answer.responses[0].partitions[0].error_code == E.NONE
    pair.away.add(KEEPS)
    asked = member.acknowledge((1, 1, [ACCEPT]))
    for _ in range(60):
        pair.run(100)
        pair.lose()
    pair.until_answered(asked)
    assert asked.answer.responses[0].partitions[0].error_code == E.COORDINATOR_NOT_AVAILABLE
    pair.away.clear()
    assert pair.said(member, (1, 1, [ACCEPT])) == E.NONE


def test_writes_of_one_record_keep_their_order(pair: SharePair) -> None:
    """Also those that were made while a request was under way."""
    pair.produce(b"a", b"b")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 1, 1)]
    pair.away.add(KEEPS)
    first = member.acknowledge((0, 0, [RELEASE]))
    other = pair.member("n")
    second = other.ask(exactly=True, records=1, wait_ms=500)
    pair.run(100)
    pair.away.clear()
    pair.until_answered(first)
    pair.until_answered(second)
    assert other.acquired(second) == [(0, 0, 2)]
    assert pair.said(other, (0, 0, [ACCEPT])) == E.NONE
    pair.anew()
    assert pair.fetch(pair.member("o")) == [(1, 1, 1)]


def test_dead_letters_go_to_the_node_that_leads_their_partition(pair: SharePair) -> None:
    pair.configure(errors_deadletterqueue_topic_name="dlq.jobs", errors_deadletterqueue_copy_record_enable="true")
    pair.produce(b"a", b"b", b"c")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 2, 1)]
    assert pair.said(member, (0, 0, [ACCEPT]), (1, 2, [REJECT])) == E.NONE
    pair.run(100)
    assert [letter.value for letter in pair.letters()] == [b"b", b"c"]
    pair.run(100)
    ((_, kept),) = pair.states()[0].items()
    assert kept[2] == 3, "the group is through"


def test_dead_letters_wait_for_the_node_that_takes_them(pair: SharePair) -> None:
    pair.configure(errors_deadletterqueue_topic_name="dlq.jobs")
    pair.produce(b"a")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 0, 1)]
    pair.held.add(PRODUCE)
    assert pair.said(member, (0, 0, [REJECT])) == E.NONE
    pair.run(100)
    pair.lose()
    pair.run(100)
    assert not pair.letters()
    ((_, kept),) = pair.states()[0].items()
    assert kept[2] == 0, "nothing is let go of before its letter is there"
    pair.held.clear()
    pair.run(2_000)
    assert len(pair.letters()) == 1
    ((_, kept),) = pair.states()[0].items()
    assert kept[2] == 1


def test_a_letter_that_is_too_large_elsewhere_goes_without_its_value(tmp_path: Path) -> None:
    pair = SharePair(tmp_path)
    pair.make("dlq.small", KEEPS, **{"errors.deadletterqueue.group.enable": "true", "max.message.bytes": "500"})
    pair.configure(errors_deadletterqueue_topic_name="dlq.small", errors_deadletterqueue_copy_record_enable="true")
    pair.produce(b"a" * 600, b"b")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 1, 1)]
    assert pair.said(member, (0, 1, [REJECT])) == E.NONE
    pair.run(200)
    small = pair.stages[KEEPS].node.replicas.get("dlq.small", 0)
    assert small is not None
    assert small.log.high_watermark == 2


def test_a_dead_letter_topic_is_made_by_the_controller_for_a_node_that_is_none(tmp_path: Path) -> None:
    pair = SharePair(tmp_path, **{"errors.deadletterqueue.auto.create.topics.enable": "true"})
    pair.make("far", 2)
    far = pair.stages[2].node.image.topics["far"].id
    pair.configure(errors_deadletterqueue_topic_name="dlq.far")
    stage = pair.stages[2]
    partition = stage.node.replicas.get("far", 0)
    assert partition is not None
    partition.append(stage.now, memoryview(bytearray(build_batch([Record(-1, stage.now, b"k", b"a")]))))
    member = Member(stage, "g", "m", [(far, 0)])  # type: ignore[arg-type]
    assert pair.fetch(member) == [(0, 0, 1)]
    assert pair.said(member, (0, 0, [REJECT])) == E.NONE
    pair.run(500)
    topic = pair.stages[1].node.image.topics["dlq.far"]
    assert topic.configs["errors.deadletterqueue.group.enable"] == "true"
    (found,) = pair.ask(1, MetadataRequest(topics=[MetadataRequestTopic(name="dlq.far")])).topics
    leader = pair.stages[found.partitions[0].leader_id].node.replicas.get("dlq.far", 0)
    assert leader is not None
    assert leader.log.high_watermark == 1


def test_offsets_and_lag_are_told_whoever_coordinates_the_group(pair: SharePair) -> None:
    pair.make("__consumer_offsets", KEEPS)
    pair.produce(b"a", b"b", b"c")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 2, 1)]
    assert pair.said(member, (0, 0, [ACCEPT])) == E.NONE
    topics = [DescribeShareGroupOffsetsRequestTopic("jobs", [0])]
    describe = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup("g", topics)])
    (group,) = pair.ask(KEEPS, describe).groups
    part = group.topics[0].partitions[0]
    assert (part.error_code, part.start_offset, part.lag) == (E.NONE, 1, 2)
    member.acknowledge(epoch=-1)
    pair.settle()
    to = AlterShareGroupOffsetsRequestTopic("jobs", [AlterShareGroupOffsetsRequestPartition(0, 2)])
    answer = pair.ask(KEEPS, AlterShareGroupOffsetsRequest("g", [to]))
    assert answer.responses[0].partitions[0].error_code == E.NONE
    assert pair.fetch(pair.member("n")) == [(2, 2, 1)], "the first member that comes looks whether it was moved"
    (gone,) = pair.ask(KEEPS, DeleteGroupsRequest(groups_names=["g"])).results
    assert gone.error_code == E.NONE
    assert not pair.states()


@pytest.mark.parametrize("over", [False, True])
def test_a_back_off_goes_on_while_members_come_and_go(pair: SharePair, over: bool) -> None:
    """Each first member has the state of the group read again. `over`: the back-off has ended by then."""
    pair.configure(share_retry_backoff_ms="1000")
    pair.produce(b"a", b"b")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 1, 1)]
    assert pair.said(member, (0, 0, [ACCEPT]), (1, 1, [RELEASE])) == E.NONE
    released = pair.stages[READS].now
    member.acknowledge(epoch=-1)
    for number in range(0 if over else 4):
        pair.run(150)
        brief = pair.member(f"brief-{number}")
        assert pair.fetch(brief, wait_ms=50) == []
        brief.acknowledge(epoch=-1)
        pair.settle()
    pair.run(released + 1_050 - pair.stages[READS].now)
    assert pair.fetch(pair.member("last"), wait_ms=50) == [(1, 1, 2)]


def test_a_record_that_another_node_released_waits_anew(pair: SharePair) -> None:
    """It was delivered there once more: nobody here knows since when it waits."""
    pair.configure(share_retry_backoff_ms="1000")
    pair.produce(b"a")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 0, 1)]
    assert pair.said(member, (0, 0, [RELEASE])) == E.NONE
    member.acknowledge(epoch=-1)
    pair.run(1_050)
    part = PartitionData(0, 0, 0, 0, 0, [StateBatch(0, 0, 0, 2)])
    pair.ask(KEEPS, WriteShareGroupStateRequest("g", [WriteStateData(pair.id, [part])]))
    assert pair.fetch(pair.member("n"), wait_ms=50) == []
    pair.run(2_050)
    assert pair.fetch(pair.member("o"), wait_ms=50) == [(0, 0, 3)]


def test_the_state_of_a_deleted_topic_goes(pair: SharePair) -> None:
    pair.produce(b"a")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 0, 1)]
    assert pair.said(member, (0, 0, [ACCEPT])) == E.NONE
    assert pair.states()
    pair.ask(1, DeleteTopicsRequest(topics=[DeleteTopicState("jobs")]))
    pair.run(100)
    assert not pair.states()


def test_the_state_of_a_deleted_topic_goes_also_where_nobody_has_read_since_the_start(tmp_path: Path) -> None:
    stage = ShareStage(tmp_path)
    topic_id = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest")
    stage.produce(1)
    member = stage.member(topic_id)
    assert member.fetch() == [(0, 0, 1)]
    assert member.said((0, 0, [ACCEPT])) == E.NONE
    stage.restart()
    assert [shard for shard in stage.node.coordinators.share_state.shards() if shard.image()]  # type: ignore[attr-defined]
    stage.delete("jobs")
    stage.run(100)
    assert not [shard for shard in stage.node.coordinators.share_state.shards() if shard.image()]  # type: ignore[attr-defined]


def test_no_request_holds_two_writes_of_one_share_partition(pair: SharePair) -> None:
    """If the first of them failed and the second did not, sending the first again would undo the second."""
    pair.produce(b"a", b"b")
    member = pair.member("m")
    assert pair.fetch(member) == [(0, 1, 1)]
    pair.away.add(KEEPS)
    states = pair.stages[READS].node.coordinators.share_state
    body = WriteShareGroupStateRequest(
        "g", [WriteStateData(pair.id, [PartitionData(0, -1, -1, 0, -1, [StateBatch(0, 0, 2, 1)])])]
    )
    index = states.partition_for(coordinator_key("g", pair.id, 0))
    for _ in range(3):
        asked = FromHere([(index, Call(body.API_KEY, body.MAX_VERSION, "", "", body))])
        states.submit(pair.stages[READS].now, NODE_REQUEST, asked)
    pair.run(0)
    (ask,) = pair.stages[READS].asks
    header, position = decode_request_header(memoryview(ask.frame)[4:])
    sent, _ = WriteShareGroupStateRequest.decode(memoryview(ask.frame)[4:], position, header.api_version)
    assert len(sent.topics[0].partitions) == 1
    pair.away.clear()
    pair.run(100)
    states.check()
