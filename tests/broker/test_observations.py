"""Checks what a node remembers of its clients: their errors, their connections, and their slowest requests."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import k10901_describe_observations
from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.observations import long_turns, two_periods
from ottla.broker.observations.config_changes import CHANGES_MAX as CONFIG_CHANGES_MAX
from ottla.broker.observations.config_changes import Resource
from ottla.broker.observations.errors import KEPT, NESTED, TEXT_MAX, ErrorCount, Errors
from ottla.broker.observations.long_turns import LongTurns
from ottla.broker.observations.observations import CONNECTIONS_MAX, Observations
from ottla.broker.observations.slowest import Awaited, Slowest
from ottla.broker.observations.two_periods import PERIOD_MS
from ottla.broker.requests import NODE_REQUEST, Request
from ottla.broker.schedule import Timed, Timer
from ottla.groups.history import CHANGES_MAX, Cause
from ottla.machine import WallClock, WallMillis
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.private_requests import Lists
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_stage import CORRELATION_ID, NodeStage

CLIENT = "stage"
ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    made = NodeStage(tmp_path / "node", offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0")
    made.create("t", 2)
    return made


def _produce(size: int = 100, *, acks: int = 1, topic: str = "t", version_topic: bytes = bytes(16)) -> ProduceRequest:
    batch = build_batch([Record(-1, 1, b"k", b"v" * size)])
    return ProduceRequest(None, acks, 1000, [TopicProduceData(topic, version_topic, [PartitionProduceData(0, batch)])])


def _fetch(min_bytes: int = 1, *, wait_ms: int = 0, offset: int = 0, topic: str = "t") -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic, partitions=parts)],
    )


def _errors(stage: NodeStage) -> dict[tuple[ApiKey, ErrorCode], ErrorCount]:
    return {
        (ApiKey(api), ErrorCode(code)): count for (_, _, api, code), count in stage.node.observations.errors.counts()
    }


# ---- errors --------------------------------------------------------------------------------------------------------


def test_an_error_is_counted_with_its_client_its_principal_and_its_group(stage: NodeStage) -> None:
    for _ in range(3):
        stage.ask(HeartbeatRequest("billing", 1, "gone"), 4)
    ((key, counted),) = stage.node.observations.errors.counts()
    assert key == (CLIENT, ANONYMOUS, ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR)
    assert (counted.count, counted.last_ms, counted.subject) == (3, stage.now, "billing")


def test_an_answer_without_an_error_is_not_counted(stage: NodeStage) -> None:
    stage.ask(_produce(), 9)
    stage.ask(_fetch(), 12)
    assert not _errors(stage)


def test_errors_of_partitions_are_counted_once_a_request(stage: NodeStage) -> None:
    parts = [OffsetCommitRequestPartition(index, 1) for index in range(2)]
    topics = [OffsetCommitRequestTopic("t", partitions=parts)]
    stage.ask(OffsetCommitRequest("g", generation_id_or_member_epoch=4, member_id="gone", topics=topics), 8)
    (((_, code), counted),) = _errors(stage).items()
    assert (code, counted.count, counted.subject) == (ErrorCode.NOT_COORDINATOR, 1, "g")


@pytest.mark.parametrize("version", [8, 9, 13])
def test_a_batch_that_is_too_large_is_counted_with_its_topic_and_both_sizes(stage: NodeStage, version: int) -> None:
    stage.create("small", overrides={"max.message.bytes": "1000"})
    named = stage.node.image.topics["small"].id if version >= 13 else bytes(16)
    stage.ask(_produce(2_000, topic="small", version_topic=named), version)
    counted = _errors(stage)[ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE]
    assert counted.subject == "small"
    assert "exceeds max.message.bytes, 1000" in counted.message


def test_a_batch_without_an_answer_is_counted_too(stage: NodeStage) -> None:
    stage.create("small", overrides={"max.message.bytes": "1000"})
    with pytest.raises(Exception, match="acks=0"):
        stage.send(_produce(2_000, acks=0, topic="small"), 9)
    assert _errors(stage)[ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE].count == 1


def test_errors_of_fetches_are_counted(stage: NodeStage) -> None:
    stage.ask(_fetch(offset=7), 12)
    stage.ask(_fetch(topic="none"), 12)
    stage.ask(FetchRequest(session_id=77, session_epoch=1), 12)
    assert {code: counted.subject for (_, code), counted in _errors(stage).items()} == {
        ErrorCode.OFFSET_OUT_OF_RANGE: "t",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "none",
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "",
    }


def test_answers_have_the_lists_in_which_errors_are_looked_for() -> None:
    for key, path in NESTED.items():
        kind: Any = APIS[key].response
        for name in path:
            assert name in kind.__slots__, f"{kind.__name__} has no {name}"
            kind = _element(kind, name)
        assert "error_code" in kind.__slots__, f"{kind.__name__} has no error"


def _element(kind: Any, name: str) -> Any:
    """The class of the elements of a list in a message."""
    text = kind.__annotations__[name].removeprefix("list[").partition("]")[0]
    return getattr(sys.modules[kind.__module__], text)


# ---- connections ---------------------------------------------------------------------------------------------------


def test_a_connection_counts_its_requests_and_is_forgotten_when_it_closes(stage: NodeStage) -> None:
    connection = stage.connect()
    stage.ask(HeartbeatRequest("g", 1, "m"), 4, connection)
    stage.ask(_produce(), 9, connection)
    (channel,) = stage.node.observations.connections()
    record = channel.record
    assert (record.client_id, record.requests) == (CLIENT, 2)
    assert record.received_bytes > 100
    stage.hang_up(connection)
    assert not list(stage.node.observations.connections())


def test_fetches_and_those_that_wait_are_counted(stage: NodeStage) -> None:
    stage.append("t")
    connection = stage.connect()
    for offset in (0, 0, 1):
        stage.send(_fetch(7, wait_ms=500 * offset, offset=offset), 12, connection)
        stage.run(500)
    record = stage.clients[connection].channel.record
    assert (record.fetches, record.waits, record.min_bytes, record.max_wait_ms) == (3, 1, 7, 500)


def test_a_fetch_that_waits_with_records_is_held_back(stage: NodeStage) -> None:
    stage.append("t")
    connection = stage.connect()
    asked = stage.send(_fetch(1_000, wait_ms=500), 12, connection)
    stage.run(500)
    assert asked.answered
    assert stage.clients[connection].channel.record.held_back == 1
    (slow,) = stage.node.observations.slowest.largest(stage.now)
    assert (slow.took_ms, slow.api_key, slow.client_id, slow.awaited) == (500, ApiKey.FETCH, CLIENT, Awaited.MIN_BYTES)


def test_a_fetch_that_waits_for_its_first_record_is_not_held_back(stage: NodeStage) -> None:
    connection = stage.connect()
    stage.send(_fetch(1_000, wait_ms=500), 12, connection)
    stage.run(500)
    stage.send(_fetch(1, wait_ms=500), 12, connection)
    stage.append("t")
    stage.run(500)
    assert stage.clients[connection].channel.record.held_back == 0
    assert not stage.node.observations.slowest.largest(stage.now)


# ---- slow requests -------------------------------------------------------------------------------------------------


def test_a_produce_that_waits_for_the_disk_is_slow(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", ottla_durability="fsync")
    stage.create("t")
    stage.hold_syncs = True
    asked = stage.send(_produce(), 9)
    stage.run(300)
    stage.sync()
    stage.settle()
    assert asked.answered
    (slow,) = stage.node.observations.slowest.largest(stage.now)
    assert (slow.took_ms, slow.awaited) == (300, Awaited.DISK)


def test_the_nodes_own_requests_are_not_remembered(stage: NodeStage) -> None:
    seen = stage.node.observations
    seen.answered(stage.now, NODE_REQUEST, HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
    seen.waited(stage.now, NODE_REQUEST, Awaited.COORDINATOR)
    assert not len(seen.errors)
    assert not seen.slowest.largest(stage.now)


def _request(client_id: str = CLIENT, principal: str = "ada", connection: int = 1) -> Request:
    identity = Identity(Address(connection, "10.0.0.1"), Principal("User", principal))
    return Request(Channel(identity), ApiKey.PRODUCE, 9, CORRELATION_ID, client_id, 0, None)


def test_the_slowest_requests_of_two_periods_are_kept() -> None:
    ring = Slowest()
    for took in range(10, 200):
        ring.note(0, WallMillis(0), _request(), took, Awaited.REPLICAS)
    assert [each.took_ms for each in ring.largest(0)] == list(range(199, 199 - two_periods.KEPT, -1))
    assert ring.least_ms == 200 - two_periods.KEPT
    ring.note(PERIOD_MS, WallMillis(0), _request(), 50, Awaited.REPLICAS)
    assert ring.largest(PERIOD_MS)[0].took_ms == 199
    assert [each.took_ms for each in ring.largest(2 * PERIOD_MS)] == [50]
    assert not ring.largest(4 * PERIOD_MS)


# ---- the event loop ------------------------------------------------------------------------------------------------


def test_the_longest_turns_of_two_periods_are_kept() -> None:
    ring = LongTurns()
    for took in range(100, 200):
        ring.note(0, WallMillis(0), took, ApiKey.FETCH)
    ring.note(0, WallMillis(0), 100, ApiKey.FETCH)
    assert [each.took_ms for each in ring.largest(0)] == list(range(199, 199 - two_periods.KEPT, -1))
    ring.note(PERIOD_MS, WallMillis(0), 120, ApiKey.FETCH)
    assert ring.largest(PERIOD_MS)[0].took_ms == 199
    assert [each.took_ms for each in ring.largest(2 * PERIOD_MS)] == [120]
    assert not ring.largest(4 * PERIOD_MS)


def test_a_node_says_what_ran_in_long_turns(stage: NodeStage) -> None:
    connection = stage.connect()
    stage.ask(HeartbeatRequest("g", 1, "m"), 4, connection)
    channel = stage.clients[connection].channel
    stage.node.stood_still(stage.now, 100, ApiKey.PRODUCE, channel)
    stage.node.stood_still(stage.now, 120, ApiKey.DESCRIBE_OBSERVATIONS & 0xFF, channel)
    Timer(stage.node.schedule, Timed.UPKEEP, lambda now: None).set(stage.now)
    stage.node.schedule.tick(stage.now)
    stage.node.stood_still(stage.now, 800)
    answer = stage.ask(DescribeObservationsRequest())
    rows = [(each.took_ms, each.api_key, each.client_id, each.principal, each.timer) for each in answer.long_turns]
    assert rows == [
        (800, long_turns.TIMERS, "", "", "the upkeep of logs"),
        (120, ApiKey.DESCRIBE_OBSERVATIONS, CLIENT, ANONYMOUS, ""),
        (100, ApiKey.PRODUCE, CLIENT, ANONYMOUS, ""),
    ]


# ---- the request ---------------------------------------------------------------------------------------------------


def test_a_node_says_what_it_remembers(stage: NodeStage) -> None:
    stage.ask(_produce(), 9)
    stage.ask(HeartbeatRequest("billing", 1, "gone"), 4)
    stage.node.observations.groups.note(WallMillis(stage.now), "billing", 3, Cause.LEFT, _Member(1, ""), "why")
    answer = stage.ask(DescribeObservationsRequest())
    assert (answer.error_code, answer.now_ms) == (0, stage.now)
    (group,) = answer.groups
    (change,) = group.changes
    assert (group.group_id, change.generation, change.cause, change.reason) == ("billing", 3, Cause.LEFT, "why")
    (error,) = answer.errors
    assert (error.client_id, error.api_key, error.count, error.subject) == (CLIENT, ApiKey.HEARTBEAT, 1, "billing")
    (connection,) = answer.connections
    assert (connection.principal, connection.request_count) == (ANONYMOUS, 3)
    (topic,) = [each for each in answer.topics if each.name == "t"]
    assert (topic.batch_count, topic.record_count) == (1, 1)


def test_only_the_lists_that_are_asked_for_are_answered(stage: NodeStage) -> None:
    stage.ask(_produce(), 9)
    stage.ask(HeartbeatRequest("billing", 1, "gone"), 4)
    whole = stage.ask(DescribeObservationsRequest())
    assert whole.errors
    assert whole.topics
    some = stage.ask(DescribeObservationsRequest(lists=int(Lists.ERRORS | Lists.FOLLOWERS)))
    assert some.errors == whole.errors
    assert (some.topics, some.connections) == ([], [])
    assert {each.name.lower() for each in Lists if each.name} <= set(whole.__slots__)


def test_one_group_is_all_that_its_name_brings(stage: NodeStage) -> None:
    for name in ("billing", "other"):
        stage.node.observations.groups.note(WallMillis(stage.now), name, 3, Cause.LEFT)
    answer = stage.ask(DescribeObservationsRequest("billing"))
    assert [each.group_id for each in answer.groups] == ["billing"]
    assert not answer.connections
    assert not stage.ask(DescribeObservationsRequest("none")).groups


def test_a_long_answer_is_built_in_slices(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        stage.node.observations.groups.note(WallMillis(stage.now), f"g{number}", 3, Cause.LEFT)
    stage.ask(DescribeObservationsRequest())
    whole = stage.ask(DescribeObservationsRequest())
    monkeypatch.setattr(k10901_describe_observations, "SLICE_STEPS", 3)
    asked = stage.send(DescribeObservationsRequest())
    assert not asked.answered, "it took one turn"
    stage.run()
    assert asked.answer.groups == whole.groups
    assert len(asked.answer.groups) == 10


# ---- bounds --------------------------------------------------------------------------------------------------------

OBSERVED_BYTES_MAX = 30_000_000
"""As docs/operations.md says."""


def _bytes_of(value: Any, seen: set[int]) -> int:
    """The memory of a value and of all that it alone refers to."""
    if id(value) in seen or isinstance(value, type | int | None | WallClock):
        return 0
    seen.add(id(value))
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(_bytes_of(key, seen) + _bytes_of(each, seen) for key, each in value.items())
    if isinstance(value, str | bytes):
        return total
    if hasattr(value, "__slots__") and not isinstance(value, tuple):
        return total + sum(_bytes_of(getattr(value, name, None), seen) for name in value.__slots__)
    return total + sum(_bytes_of(each, seen) for each in value) if hasattr(value, "__iter__") else total


def test_hostile_clients_cannot_make_a_node_remember_more_than_its_bytes() -> None:
    observations = Observations(WallClock())
    wide = "\N{MUSICAL SYMBOL G CLEF}" * 300
    for number in range(CHANGES_MAX + 500):
        observations.groups.note(WallMillis(0), f"{number}{wide[:250]}", 1, Cause.LEFT, _Member(number, wide), wide)
    for number in range(KEPT + 500):
        request = _request(f"{number}{wide}", f"{number}{wide}")
        observations.refused(0, request.channel, request.client_id, 0, 1, f"{number}{wide}", f"{number}{wide}")
    for number in range(100):
        observations.slowest.note(
            0, WallMillis(0), _request(f"{number}{wide}", f"{number}{wide}"), 100 + number, Awaited.WORK
        )
        channel = _request(f"{number}{wide}", f"{number}{wide}").channel
        observations.named(channel, f"{number}{wide}")
        observations.stood_still(0, 100 + number, ApiKey.FETCH, channel)
    for number in range(CONFIG_CHANGES_MAX):
        request = _request(f"{number}{wide}", f"{number}{wide}")
        resource = Resource(2, f"{number}{wide[:250]}")
        observations.configured(0, request, resource, {"retention.ms": f"{number}{wide}"}, {"retention.ms": wide})
    for number in range(CONNECTIONS_MAX + 1):
        observations.opened(_request(connection=number).channel)
    assert len(observations.errors) == KEPT
    assert len(observations.configs) == CONFIG_CHANGES_MAX
    assert len(list(observations.connections())) == CONNECTIONS_MAX
    longest = max(len(text) for key, _ in observations.errors.counts() for text in key[:2])
    assert longest == TEXT_MAX
    channels = list(observations.connections())
    seen = {id(channel) for channel in channels}
    kept = _bytes_of(observations, seen) + sum(_bytes_of(each.record, seen) for each in channels)
    assert kept < OBSERVED_BYTES_MAX
    assert kept > OBSERVED_BYTES_MAX // 3, "the documents may name fewer bytes"


class _Member:
    def __init__(self, number: int, text: str) -> None:
        self.member_id, self.client_id, self.client_host = f"{number}m{text}", f"{number}c{text}", f"{number}h{text}"
        self.rebalance_timeout_ms = 1


def test_the_error_that_came_last_is_kept_longest() -> None:
    errors = Errors()
    for number in range(KEPT + 10):
        errors.note(WallMillis(number), "often", "", 0, 1)
        errors.note(WallMillis(number), f"c{number}", "", 0, 1)
    counted = {key[0]: each for key, each in errors.counts()}
    assert counted["often"].count == KEPT + 10
    assert "c0" not in counted
