"""Produce requests that begin like an earlier one of their connection: they are read and answered as any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.api import k00_produce
from ottla.broker.api.produce_frames import PartitionAppend, answer_of_all
from ottla.broker.produce_head import HEAD_BYTES_MAX, ProduceHead, answer_of_one, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.records import Record, build_batch
from tests.broker.test_produce_parsing import CLIENTS, FLEXIBLE, by_the_codec, frame_of
from tests.harness.node_stage import NOW, Asked, NodeStage

ID = bytes(range(16))
SIZES = st.sampled_from([0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 40_000])


def request_of(topic: str, index: int, records: bytes | None, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(None, acks, 30_000, [TopicProduceData(topic, ID, [PartitionProduceData(index, records)])])


def head_of(version: int, client_id: str | None, topic: str) -> ProduceHead | None:
    frame = frame_of(version, client_id, request_of(topic, 7, b"first"))
    return ProduceHead.of(frame, version, ID if version >= 13 else topic, 1, 30_000)


@pytest.mark.parametrize("version", FLEXIBLE)
@settings(max_examples=40, deadline=None)
@given(client_id=CLIENTS, topic=st.text("äb.", min_size=1, max_size=60), index=st.integers(0, 2**31 - 1), size=SIZES)
def test_a_frame_that_begins_alike_is_read_as_the_codec_reads_it(version, client_id, topic, index, size):
    head = head_of(version, client_id, topic)
    assert head is not None
    found = head.partition_in(frame_of(version, client_id, request_of(topic, index, b"r" * size)))
    if size < 3:
        assert found is None  # it is no batch
    else:
        assert found is not None
        assert (found[0], bytes(found[1])) == (index, b"r" * size)


@settings(max_examples=300, deadline=None)
@given(version=st.sampled_from(FLEXIBLE), at=st.integers(4, 500), noise=st.binary(max_size=8), cut=st.integers(0, 9))
def test_a_damaged_frame_is_not_read_as_something_else(version, at, noise, cut):
    """The API key and the version, the first four bytes, are read before."""
    head = head_of(version, "c", "orders")
    assert head is not None
    whole = bytes(frame_of(version, "c", request_of("orders", 3, b"r" * 300)))
    damaged = memoryview((whole[:at] + noise + whole[at + len(noise) :])[: len(whole) + 9 - cut])
    found = head.partition_in(damaged)
    if found is not None:
        header, body = by_the_codec(damaged, version)
        (topic,) = body.topic_data
        (partition,) = topic.partition_data
        assert (header.client_id, topic.topic_id if version >= 13 else topic.name) == ("c", head.topic)
        assert (body.transactional_id, body.acks, body.timeout_ms) == (None, head.acks, head.timeout_ms)
        assert (partition.index, bytes(partition.records or b"")) == (found[0], bytes(found[1]))


@pytest.mark.parametrize("topic", ["t", "x" * 126, "x" * 127, "x" * 249, "ä", ID])
def test_the_answer_is_what_the_codec_writes(topic):
    partition = PartitionProduceResponse(5, 0, 1 << 40, 1_800_000_000_000, 17)
    named = TopicProduceResponse(topic_id=topic) if isinstance(topic, bytes) else TopicProduceResponse(topic)
    named.partition_responses = [partition]
    version = 13 if isinstance(topic, bytes) else 12
    expected = encode_response(RequestHeader(0, version, 9, "c"), ProduceResponse([named], 250))
    assert answer_of_one(key_of(topic), 9, 5, 1 << 40, 1_800_000_000_000, 17, 250) == expected


@given(parts=st.lists(st.tuples(st.sampled_from(["a", "b", "x" * 200]), st.integers(0, 300)), max_size=150))
@settings(max_examples=30, deadline=None)
def test_the_answer_to_many_partitions_is_what_the_codec_writes(parts):
    appends = [PartitionAppend(topic, index, None) for topic, index in parts]
    topics: dict[str, TopicProduceResponse] = {}
    for at, append in enumerate(appends):
        append.base_offset, append.log_append_time_ms, append.log_start_offset = at, at << 40, 3
        topic = topics.setdefault(str(append.topic), TopicProduceResponse(str(append.topic), partition_responses=[]))
        topic.partition_responses.append(PartitionProduceResponse(append.index, 0, at, at << 40, 3))
    expected = encode_response(RequestHeader(0, 11, 9, "c"), ProduceResponse(list(topics.values()), 250))
    assert answer_of_all(9, appends, 250) == expected


def test_a_long_head_is_not_kept():
    assert head_of(12, "c" * HEAD_BYTES_MAX, "orders") is None


def batch(count: int = 1, size: int = 1, **how: Any) -> bytes:
    return bytes(build_batch([Record(timestamp_ms=NOW, value=b"v" * size) for _ in range(count)], **how))


def damaged() -> bytes:
    octets = bytearray(batch())
    octets[-1] ^= 1
    return bytes(octets)


REQUESTS: list[tuple[str, Callable[[NodeStage], None] | None, tuple[str, int, bytes | None, int]]] = [
    ("the first one", None, ("orders", 0, batch(), 1)),
    ("the second one, whose head is kept", None, ("orders", 0, batch(), 1)),
    ("the same", None, ("orders", 0, batch(), 1)),
    ("another partition, more records", None, ("orders", 1, batch(50), 1)),
    ("a damaged batch", None, ("orders", 0, damaged(), 1)),
    ("half a batch", None, ("orders", 0, batch()[:40], 1)),
    ("no batch", None, ("orders", 0, b"", 1)),
    ("no records", None, ("orders", 0, None, 1)),
    ("a partition that does not exist", None, ("orders", 9, batch(), 1)),
    ("a compressed batch", None, ("orders", 0, batch(compression="zstd"), 1)),
    ("a batch of many records", None, ("orders", 0, batch(5_000), 1)),
    ("a long batch", None, ("orders", 0, batch(1, size=70_000), 1)),
    ("a transactional batch", None, ("orders", 0, batch(producer_id=1, producer_epoch=0, transactional=True), 1)),
    ("an idempotent batch", None, ("orders", 0, batch(producer_id=5, producer_epoch=0, base_sequence=0), 1)),
    ("its duplicate", None, ("orders", 0, batch(producer_id=5, producer_epoch=0, base_sequence=0), 1)),
    ("a gap in its sequence", None, ("orders", 0, batch(producer_id=5, producer_epoch=0, base_sequence=9), 1)),
    ("other acks", None, ("orders", 0, batch(), -1)),
    ("the same acks", None, ("orders", 0, batch(), -1)),
    ("wrong acks", None, ("orders", 0, batch(), 7)),
    ("acks 0", None, ("orders", 0, batch(), 0)),
    ("another topic", None, ("sales", 0, batch(), -1)),
    ("the former topic", None, ("orders", 0, batch(), -1)),
    ("a topic that waits for an fsync", None, ("synced", 0, batch(), -1)),
    ("the same, whose head is kept", None, ("synced", 0, batch(), -1)),
    ("the same again", None, ("synced", 0, batch(), -1)),
    ("a topic that was deleted", lambda stage: stage.delete("synced"), ("synced", 0, batch(), -1)),
]


@pytest.mark.parametrize("version", [9, 12])
def test_the_short_way_answers_as_the_long_way(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that remembers how its frames begin, and a new connection for each request."""
    long_way: list[int] = []

    def counted(*args: Any, any_way: Any = k00_produce._receive_any) -> Any:
        long_way.append(version)
        return any_way(*args)

    monkeypatch.setattr(k00_produce, "_receive_any", counted)
    by_the_long_way = answers(tmp_path / "long", version, one_connection=False)
    assert len(long_way) == len(REQUESTS)
    long_way.clear()
    assert answers(tmp_path / "short", version, one_connection=True) == by_the_long_way
    assert len(long_way) + 6 < len(REQUESTS)
    errors = {part[0] for _, parts in by_the_long_way for part in parts}
    assert {E.CORRUPT_MESSAGE, E.UNKNOWN_TOPIC_OR_PARTITION, E.OUT_OF_ORDER_SEQUENCE_NUMBER} <= errors


def answers(directory: Path, version: int, *, one_connection: bool) -> list[tuple[str, list[Any]]]:
    """What a new node answers to each of REQUESTS."""
    stage = NodeStage(directory)
    stage.create("orders", 2, {})
    stage.create("sales", 1, {})
    stage.create("synced", 1, {"flush.messages": "1"})
    connection = stage.connect()
    told: list[tuple[str, list[Any]]] = []
    for name, before, (topic, index, records, acks) in REQUESTS:
        if before is not None:
            before(stage)
        asked = Asked(request_of(topic, index, records, acks), version)
        stage.hand_in(asked, connection if one_connection else stage.connect())
        stage.run()
        assert asked.answered, name
        parts = [] if asked.answer is None else asked.answer.responses[0].partition_responses
        told.append((name, [vars_of(part) for part in parts]))
    stage.stop()
    return told


def vars_of(part: PartitionProduceResponse) -> list[Any]:
    return [part.error_code, part.base_offset, part.log_start_offset, part.log_append_time_ms, part.error_message]


def test_what_was_remembered_does_not_outlive_a_request_of_another_kind(tmp_path: Path) -> None:
    """A transactional request to the same topic is no reason to expect others like it."""
    stage = NodeStage(tmp_path)
    stage.create("orders", 1, {})
    connection = stage.connect()
    channel = stage.clients[connection].channel
    for transactional_id in ("tid", "tid"):
        request = request_of("orders", 0, batch())
        request.transactional_id = transactional_id
        assert stage.ask(request, 12, connection).responses[0].partition_responses[0].error_code == 0
    assert channel.produce_head is None
    for expected in (None, "orders"):
        stage.ask(request_of("orders", 0, batch()), 12, connection)
        assert (channel.produce_head and channel.produce_head.topic) == expected
    kept = channel.produce_head
    stage.ask(request_of("orders", 0, batch(compression="zstd")), 12, connection)
    assert channel.produce_head is kept
    stage.stop()
