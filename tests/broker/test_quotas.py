"""What a request is charged, what its client is told, and how it is muted, with quotas that a test plants."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import k00_produce, k01_fetch
from ottla.broker.channel import Channel
from ottla.broker.client_identity import ANONYMOUS, Identity
from ottla.broker.effects import Mute
from ottla.broker.requests import RequestRefusedError
from ottla.machine import Millis
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from ottla.protocol.messages.share_fetch import FetchPartition as SharePartition
from ottla.protocol.messages.share_fetch import FetchTopic as ShareTopic
from ottla.protocol.messages.share_fetch import ShareFetchRequest
from ottla.protocol.records.record import Record, build_batch
from ottla.protocol.wire import Message
from tests.harness.node_stage import NodeStage, frame_of

THROTTLE_MS = 250
CLIENT = "stage"


class PlantedQuotas:
    """Throttles every request by `throttle_ms`, and remembers what it was asked."""

    def __init__(self, throttle_ms: int) -> None:
        self.throttle_ms = throttle_ms
        self.charged: list[tuple[int, int]] = []

    def charge(self, now: Millis, channel: Channel, client_id: str, *, produced: int, fetched: int) -> int:
        assert (channel.identity.principal, client_id) == (ANONYMOUS, CLIENT)
        self.charged.append((produced, fetched))
        return self.throttle_ms

    def uncharge(self, now: Millis, channel: Channel, client_id: str, *, fetched: int) -> None:
        assert (channel.identity.principal, client_id) == (ANONYMOUS, CLIENT)
        self.charged.append((0, -fetched))

    def spent(self, now: Millis, channel: Channel, micros: int) -> None:
        raise AssertionError("the shell says that, and there is none")

    def mutated(self, now: Millis, identity: Identity, client_id: str, partitions: int, *, strict: bool) -> int:
        return 0

    def fetched_max(self, channel: Channel, client_id: str) -> int | None:
        return None


def planted(stage: NodeStage, throttle_ms: int = THROTTLE_MS) -> PlantedQuotas:
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    quotas = stage.node.throttle.quotas = PlantedQuotas(throttle_ms)
    return quotas


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return NodeStage(tmp_path / "node", offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0")


def exchange(stage: NodeStage, message: Message, version: int) -> tuple[Any, list[Mute]]:
    """The answer on a new connection, now or when it is due, and what was muted for it."""
    stage.mutes = []
    connection = stage.connect()
    asked = stage.send(message, version, connection)
    while not asked.answered:
        due = stage.node.deadline()
        assert due is not None, "it is never answered"
        stage.run(max(due - stage.now, 0))
    return asked.answer, stage.mutes


def muted(stage: NodeStage) -> list[Mute]:
    """What is muted for one request that was answered just now."""
    return [Mute(stage.connections, stage.now + THROTTLE_MS)]


def produce(acks: int = 1, partitions: int = 1) -> ProduceRequest:
    batch = build_batch([Record(-1, 1, b"k", b"v" * 100)])
    appends = [PartitionProduceData(index, batch) for index in range(partitions)]
    return ProduceRequest(None, acks, 1000, [TopicProduceData("t", partition_data=appends)])


def fetch(
    session: tuple[int, int] = (0, -1), *, offset: int = 0, wait_ms: int = 0, partitions: int = 1
) -> FetchRequest:
    parts = [FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20) for i in range(partitions)]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic("t", partitions=parts)] if session[1] <= 0 else [],
    )


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_produce_is_charged_its_bytes(stage: NodeStage, version: int, partitions: int) -> None:
    quotas = planted(stage)
    request = produce(partitions=partitions)
    answer, mutes = exchange(stage, request, version)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0] * partitions
    assert answer.throttle_time_ms == THROTTLE_MS
    assert mutes == muted(stage)
    assert quotas.charged == [(len(frame_of(request, version)), 0)]


def test_a_produce_that_waits_for_the_disk_is_charged_before_others_are_served_behind_it(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", ottla_durability="fsync")
    quotas = planted(stage)
    stage.hold_syncs = True
    connection = stage.connect()
    asked, behind = (stage.send(produce(-1), 9, connection) for _ in range(2))
    assert not asked.answered
    assert stage.mutes == muted(stage)
    assert quotas.charged == [(len(asked.frame), 0)]
    quotas.throttle_ms = 0
    stage.now += 70
    stage.sync()
    stage.settle()
    assert asked.answer.throttle_time_ms == THROTTLE_MS - 70
    assert quotas.charged == [(len(asked.frame), 0), (0, 0)]
    stage.run(THROTTLE_MS - 71)
    assert len(quotas.charged) == 2, "what is behind it is not served"
    stage.run(1)
    assert quotas.charged[2] == (len(behind.frame), 0)


def test_what_follows_is_served_when_the_time_is_over(stage: NodeStage) -> None:
    planted(stage)
    connection = stage.connect()
    stage.send(produce(acks=0), 9, connection)
    behind = stage.send(ListGroupsRequest(), 4, connection)
    stage.run(THROTTLE_MS - 1)
    assert not behind.answered
    stage.run(1)
    assert behind.answered


def test_a_produce_without_an_answer_mutes(stage: NodeStage) -> None:
    quotas = planted(stage)
    answer, mutes = exchange(stage, produce(acks=0), 9)
    assert answer is None
    assert mutes == muted(stage)
    assert quotas.charged == [(len(frame_of(produce(acks=0), 9)), 0)]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_produce_in_slices_is_charged_once(stage: NodeStage, monkeypatch: pytest.MonkeyPatch, acks: int) -> None:
    quotas = planted(stage)
    monkeypatch.setattr(k00_produce, "SLICE_STEPS", 1)
    request = produce(acks, partitions=2)
    answer, mutes = exchange(stage, request, 9)
    assert mutes == muted(stage)
    assert (None if answer is None else answer.throttle_time_ms) == (THROTTLE_MS if acks else None)
    assert quotas.charged == [(len(frame_of(request, 9)), 0)]
    assert [partition.log.log_end_offset for partition in stage.node.replicas] == [1, 1]


def test_a_fetch_is_charged_its_records(stage: NodeStage) -> None:
    quotas = planted(stage, 0)
    exchange(stage, produce(), 9)
    answer, mutes = exchange(stage, fetch(), 12)
    (part,) = answer.responses[0].partitions
    assert len(part.records) > 100
    assert answer.throttle_time_ms == 0
    assert mutes == []
    assert quotas.charged[1:] == [(0, len(part.records))]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_throttled_fetch_gets_no_records_and_is_not_charged_for_them(stage: NodeStage, version: int) -> None:
    quotas = planted(stage)
    exchange(stage, produce(), 9)
    quotas.charged.clear()
    answer, mutes = exchange(stage, fetch(), version)
    assert (answer.responses, answer.throttle_time_ms) == ([], THROTTLE_MS)
    assert mutes == muted(stage)
    (_, fetched), given_back = quotas.charged
    assert fetched > 100
    assert given_back == (0, -fetched)


def test_a_throttled_fetch_that_had_to_wait(stage: NodeStage) -> None:
    quotas = planted(stage)
    answer, mutes = exchange(stage, fetch(wait_ms=500), 12)
    assert (answer.responses, answer.throttle_time_ms) == ([], THROTTLE_MS)
    assert mutes == muted(stage)
    assert quotas.charged == [(0, 0), (0, 0)]


@pytest.mark.parametrize("throttle_ms", [0, THROTTLE_MS])
def test_a_fetch_in_slices(stage: NodeStage, monkeypatch: pytest.MonkeyPatch, throttle_ms: int) -> None:
    quotas = planted(stage, 0)
    exchange(stage, produce(partitions=2), 9)
    session = exchange(stage, fetch((0, 0), offset=1, partitions=2), 12)[0].session_id
    exchange(stage, produce(partitions=2), 9)
    quotas.charged.clear()
    quotas.throttle_ms = throttle_ms
    monkeypatch.setattr(k01_fetch, "PARTITIONS_AT_ONCE", 1)
    answer, mutes = exchange(stage, fetch((session, 1)), 12)
    assert (answer.error_code, answer.session_id, answer.throttle_time_ms) == (0, session, throttle_ms)
    fetched = quotas.charged[0][1]
    assert fetched > 200
    if throttle_ms:
        assert answer.responses == []
        assert mutes == muted(stage)
        assert quotas.charged == [(0, fetched), (0, -fetched)]
    else:
        assert fetched == sum(len(part.records) for part in answer.responses[0].partitions)
        assert quotas.charged == [(0, fetched)]


def test_a_fetch_session_outlives_the_throttling(stage: NodeStage) -> None:
    quotas = planted(stage)
    exchange(stage, produce(), 9)
    assert exchange(stage, fetch((0, 0)), 12)[0].session_id == 0, "none is opened that its client has heard nothing of"
    assert len(stage.node.fetch_sessions) == 0
    quotas.throttle_ms = 0
    session = exchange(stage, fetch((0, 0), offset=1), 12)[0].session_id
    exchange(stage, produce(), 9)
    quotas.throttle_ms = THROTTLE_MS
    throttled, _ = exchange(stage, fetch((session, 1)), 12)
    assert (throttled.error_code, throttled.session_id, throttled.responses) == (0, session, [])
    quotas.throttle_ms = 0
    answer, _ = exchange(stage, fetch((session, 2)), 12)
    assert len(answer.responses[0].partitions[0].records) > 100


def test_a_throttled_fetch_may_be_told_of_an_error(stage: NodeStage) -> None:
    quotas = planted(stage)
    answer, mutes = exchange(stage, fetch((77, 1)), 12)
    assert (answer.error_code, answer.throttle_time_ms) == (70, THROTTLE_MS)
    assert mutes == muted(stage)
    assert quotas.charged == [(0, 0)]


MANY_TOPICS = [DescribeConfigsResource(2, "t") for _ in range(400)]
JOIN = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (ApiVersionsRequest("t", "1"), 3),
        (ApiVersionsRequest("?", "1"), 3),
        (MetadataRequest(topics=None), 9),
        (ListGroupsRequest(), 4),
        (DescribeConfigsRequest([DescribeConfigsResource(2, "t")]), 4),
        (DescribeConfigsRequest(MANY_TOPICS), 4),
        (JOIN, 3),
        (ShareFetchRequest("", "m", 0), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
def test_every_request_is_charged_once_and_told(stage: NodeStage, message: Message, version: int) -> None:
    quotas = planted(stage)
    answer, mutes = exchange(stage, message, version)
    assert answer.throttle_time_ms == THROTTLE_MS
    assert [mute.connection for mute in mutes] == [stage.connections]
    assert quotas.charged == [(0, 0)]


def test_an_answer_that_has_no_field_for_it_mutes(stage: NodeStage) -> None:
    quotas = planted(stage)
    _, mutes = exchange(stage, ReadShareGroupStateRequest("g", []), 0)
    assert mutes == muted(stage)
    assert quotas.charged == [(0, 0)]


def test_records_that_were_acquired_leave_also_where_their_reader_is_throttled(stage: NodeStage) -> None:
    quotas = planted(stage)
    stage.change(stage.node.topics.creating_internal(stage.now, "__share_group_state"))
    stage.change(stage.node.settings.altering_group(stage.now, "g", {"share.auto.offset.reset": "earliest"}, "a test"))
    exchange(stage, produce(), 9)
    quotas.charged.clear()
    asked = [ShareTopic(stage.node.image.topics["t"].id, [SharePartition(0)])]
    request = ShareFetchRequest("g", "m" * 22, max_bytes=1 << 20, max_records=10, batch_size=10, topics=asked)
    answer, mutes = exchange(stage, request, 2)
    (part,) = answer.responses[0].partitions
    assert (answer.error_code, part.error_code, answer.throttle_time_ms) == (0, 0, THROTTLE_MS)
    assert len(part.acquired_records) == 1
    assert mutes == muted(stage)
    assert quotas.charged == [(0, len(part.records))]


def test_without_quotas_nobody_is_throttled(stage: NodeStage) -> None:
    planted(stage)
    stage.node.throttle.quotas = None
    for message, version in [(produce(), 9), (produce(acks=0), 9), (fetch(), 12), (MetadataRequest(topics=None), 9)]:
        answer, mutes = exchange(stage, message, version)
        assert answer is None or answer.throttle_time_ms == 0
        assert mutes == []


def test_a_produce_that_is_refused_is_not_charged(stage: NodeStage) -> None:
    quotas = planted(stage)
    with pytest.raises(RequestRefusedError):
        exchange(stage, produce(acks=0, partitions=3), 9)
    assert quotas.charged == []
