"""Produce requests for more partitions than one turn has room for: the same answer, the same order, in slices."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.broker import slices
from ottla.broker.api import k00_produce
from ottla.broker.effects import Close, Parked, Part, Reply, Sync
from ottla.broker.schedule import Timed
from ottla.log import segments as log_segments
from ottla.log import validation
from ottla.log.answers import StorageError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import outline
from ottla.protocol.records.batch import HEADER_BYTES, peek, set_crc
from ottla.protocol.records.compression import GZIP, decompress
from ottla.protocol.records.record import PARTS_MAX, Record, build_batch
from tests.harness.node_stage import CHANNEL, NOW, NodeStage

PARTITIONS = 7
OLDEST, NEWEST = 3, 13


def begun(directory: Path, durability: str = "page-cache") -> NodeStage:
    stage = NodeStage(directory, ottla_durability=durability)
    stage.create("t", PARTITIONS, {})
    stage.create("kept", PARTITIONS, {"cleanup.policy": "compact"})
    return stage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return begun(tmp_path / "node")


@pytest.fixture
def fsync(tmp_path: Path) -> Iterator[NodeStage]:
    made = begun(tmp_path / "node", "fsync")
    made.run()
    yield made
    made.run()


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions in each, be it their first record or not."""
    monkeypatch.setattr(log_segments, "SEGMENT", 0)
    for module in (k00_produce, slices):
        monkeypatch.setattr(module, "SLICE_STEPS", 2)


def batch(value: bytes = b"v", key: bytes | None = b"k", count: int = 1, compression: str = "none") -> bytes:
    return bytes(build_batch([Record(-1, NOW, key, value)] * count, compression=compression))


def frame_of(request: ProduceRequest, version: int) -> memoryview:
    return memoryview(encode_request(RequestHeader(0, version, 7, "stage"), request))[4:]


def to_all(octets: bytes, acks: int = -1, topic: str = "t", timeout_ms: int = 1000) -> ProduceRequest:
    parts = [PartitionProduceData(index, octets) for index in range(PARTITIONS)]
    return ProduceRequest(None, acks, timeout_ms, [TopicProduceData(topic, partition_data=parts)])


def mixed(stage: NodeStage, version: int) -> ProduceRequest:
    """Good ones, and every kind of refusal."""
    parts = [PartitionProduceData(index, batch()) for index in (0, 3, 99, 3)]
    parts += [PartitionProduceData(1, None), PartitionProduceData(2, batch()[:-1])]
    keyless = [PartitionProduceData(index, batch(key=None, count=5)) for index in range(3)]
    topics = [TopicProduceData("t", partition_data=parts), TopicProduceData("nosuch", partition_data=parts[:2])]
    topics.append(TopicProduceData("kept", partition_data=[*keyless, PartitionProduceData(3, batch())]))
    for topic in topics:
        known = stage.node.image.topics.get(topic.name)
        topic.topic_id = bytes(15) + b"\x01" if known is None else known.id
    return ProduceRequest(None, -1, 1000, topics)


def answer_of(parts: Sequence[Part], version: int) -> Any:
    _, answer = decode_response(0, version, memoryview(b"".join(cast(list[bytes], parts)))[4:])
    return answer


def receive(stage: NodeStage, request: ProduceRequest, version: int = 9) -> Parked:
    """Its memory is the shell's again afterwards."""
    frame = frame_of(request, version)
    parked = stage.node.receive(stage.now, CHANNEL, frame)
    assert isinstance(parked, Parked)
    frame[:] = bytes(len(frame))
    return parked


def ends(stage: NodeStage, topic: str = "t") -> list[int]:
    return [partition.log.log_end_offset for partition in stage.node.replicas.by_name[topic].partitions.values()]


@pytest.mark.parametrize("version", [OLDEST, 8, 9, NEWEST])
def test_the_answer_is_the_same_as_in_one_go(
    stage: NodeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    whole = stage.ask(mixed(stage, version), version)
    other = begun(tmp_path / "other")
    for module in (k00_produce, slices):
        monkeypatch.setattr(module, "SLICE_STEPS", 2)
    parked = receive(other, mixed(other, version), version)
    assert parked.goes_on
    assert ends(other)[0] == 1
    assert sum(ends(other)) < sum(ends(stage))
    assert answer_of(other.in_slices(parked), version) == whole
    assert (ends(other), ends(other, "kept")) == (ends(stage), ends(stage, "kept"))
    assert other.node.replicas.by_name["t"].partitions[3].log.log_end_offset == 2


def test_what_costs_much_to_look_into_is_a_slice_of_its_own(stage: NodeStage) -> None:
    """Of a hundred honest batches many fit into one."""
    dear = batch(bytes(10_000_000), compression="zstd")
    parked = receive(stage, to_all(dear, topic="kept"))
    assert ends(stage, "kept") == [1, 0, 0, 0, 0, 0, 0]
    stage.node.tick(stage.now)
    assert ends(stage, "kept") == [1, 1, 0, 0, 0, 0, 0]
    stage.in_slices(parked)
    assert ends(stage, "kept") == [1] * PARTITIONS
    assert isinstance(stage.node.receive(stage.now, CHANNEL, frame_of(to_all(dear), 9)), list)
    light = batch(bytes(100), count=20, compression="zstd")
    assert isinstance(stage.node.receive(stage.now, CHANNEL, frame_of(to_all(light, topic="kept"), 9)), list)
    assert ends(stage, "kept") == [21] * PARTITIONS


def test_first_records_of_many_partitions_are_appended_in_slices(stage: NodeStage) -> None:
    """Each makes a directory and files, which takes as long as ten ordinary appends."""
    stage.create("wide", 60)
    to_each = [PartitionProduceData(index, batch()) for index in range(60)]
    request = ProduceRequest(None, 1, 1000, [TopicProduceData("wide", partition_data=to_each)])
    parked = receive(stage, request)
    appended = [0, sum(ends(stage, "wide"))]
    while appended[-1] < 59:
        stage.node.tick(stage.now)
        appended.append(sum(ends(stage, "wide")))
    assert max(after - before for before, after in pairwise(appended)) <= 20
    stage.in_slices(parked)
    assert ends(stage, "wide") == [1] * 60
    assert isinstance(stage.node.receive(stage.now, CHANNEL, frame_of(request, 9)), list)


def test_records_to_blame_are_named_up_to_a_bound(stage: NodeStage) -> None:
    parked = receive(stage, to_all(batch(b"", None, 6_000, "gzip"), topic="kept"))
    parts = answer_of(stage.in_slices(parked), 9).responses[0].partition_responses
    assert {part.error_code for part in parts} == {ErrorCode.INVALID_RECORD}
    assert [len(part.record_errors) for part in parts] == [6_000, 4_000, 0, 0, 0, 0, 0]
    assert k00_produce.RECORD_ERRORS_MAX < PARTS_MAX


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("acks", [0, 1])
def test_it_goes_on_when_its_client_is_gone(stage: NodeStage, acks: int) -> None:
    receive(stage, to_all(batch(), acks))
    stage.node.disconnected(stage.now, CHANNEL.identity.address.connection_id)
    stage.run()
    assert ends(stage) == [1] * PARTITIONS
    assert len(stage.node.parking) == 0


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("topic", ["t", "nosuch"])
def test_without_acks_there_is_no_answer_and_a_failure_closes(stage: NodeStage, topic: str) -> None:
    request = to_all(batch(), acks=0)
    request.topic_data.append(TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch())]))
    parked = receive(stage, request)
    while stage.deadline_of(Timed.SLICES) is not None:
        stage.node.tick(stage.now)
    effects = stage.node.take_effects(stage.now)
    assert [each.parts for each in effects if isinstance(each, Reply) and each.ticket == parked.ticket] == [[]]
    closed = [each.connection for each in effects if isinstance(each, Close)]
    assert closed == ([] if topic == "t" else [CHANNEL.identity.address.connection_id])


def carry_out(stage: NodeStage, failure: str = "") -> list[Reply]:
    """End the syncs that are asked for, and let one slice follow."""
    effects = stage.node.take_effects(stage.now)
    for sync in (each for each in effects if isinstance(each, Sync)):
        stage.node.synced(stage.now, sync.token, dict.fromkeys(range(len(sync.files)), failure) if failure else {})
    stage.node.tick(stage.now)
    return [each for each in effects if isinstance(each, Reply)]


@pytest.mark.usefixtures("small_slices")
def test_a_slice_waits_for_its_commit(fsync: NodeStage) -> None:
    receive(fsync, to_all(batch()))
    replies: list[Reply] = []
    for appended in (2, 4, 6, 7):
        assert sum(ends(fsync)) == appended
        assert fsync.deadline_of(Timed.SLICES) is None
        replies += carry_out(fsync)
    while not replies:
        replies += carry_out(fsync)
    answer = answer_of(replies[0].parts, 9)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0] * PARTITIONS


@pytest.mark.usefixtures("small_slices")
def test_what_an_fsync_took_back_is_not_acknowledged(fsync: NodeStage) -> None:
    """Though others have written to its place before the request was through."""
    receive(fsync, to_all(batch(b"first")))
    replies = carry_out(fsync, "Input/output error")
    for index in (0, 1):
        with contextlib.suppress(StorageError):
            fsync.append("t", index, value=b"second")
    while not replies:
        replies = carry_out(fsync)
    parts = answer_of(replies[0].parts, 9).responses[0].partition_responses
    assert [part.error_code != 0 for part in parts] == [True] * 2 + [False] * (PARTITIONS - 2)


@pytest.mark.usefixtures("small_slices")
def test_what_is_not_committed_in_time_is_told_so_and_the_rest_goes_on(fsync: NodeStage) -> None:
    parked = receive(fsync, to_all(batch(), timeout_ms=50))
    fsync.node.take_effects(fsync.now)  # and never synced
    fsync.now += 50
    for _ in range(30):
        fsync.node.tick(fsync.now)
    (reply,) = (each for each in fsync.node.take_effects(fsync.now) if isinstance(each, Reply))
    assert reply.ticket == parked.ticket
    parts = answer_of(reply.parts, 9).responses[0].partition_responses
    assert {part.error_code for part in parts} == {ErrorCode.REQUEST_TIMED_OUT}
    assert ends(fsync) == [1] * PARTITIONS


@pytest.mark.usefixtures("small_slices")
def test_a_client_that_goes_while_a_slice_waits_does_not_hold_the_rest(fsync: NodeStage) -> None:
    receive(fsync, to_all(batch()))
    fsync.node.disconnected(fsync.now, CHANNEL.identity.address.connection_id)
    fsync.run()
    assert ends(fsync) == [1] * PARTITIONS
    assert len(fsync.node.parking) == 0


def largest_slice(stage: NodeStage, parked: Parked, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """The answer, and how many records were looked at in one turn at the most."""
    walked: list[int] = [0]
    walk = outline._walk

    def counted(plain: bytes | bytearray, indexes: range, *rest: Any) -> tuple[int, int]:
        walked[-1] += len(indexes)
        return walk(plain, indexes, *rest)

    monkeypatch.setattr(outline, "_walk", counted)
    while True:
        replies = [each for each in stage.node.take_effects(stage.now) if isinstance(each, Reply)]
        if replies:
            assert [each.ticket for each in replies] == [parked.ticket]
            return answer_of(replies[0].parts, 9), max(walked)
        walked.append(0)
        stage.node.tick(stage.now)


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("partitions", [1, 2])
def test_many_records_are_looked_into_in_slices(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, key: bytes | None, partitions: int
) -> None:
    count = 20_000
    octets = batch(b"", key, count, "gzip")
    parts = [PartitionProduceData(index, octets) for index in range(partitions)]
    request = ProduceRequest(None, 1, 1000, [TopicProduceData("kept", partition_data=parts)])
    answer, walked = largest_slice(stage, receive(stage, request), monkeypatch)
    assert walked == outline.RECORDS_A_SLICE
    codes = [part.error_code for part in answer.responses[0].partition_responses]
    if key is None:
        assert codes == [ErrorCode.INVALID_RECORD] * partitions
        named = sum(len(part.record_errors) for part in answer.responses[0].partition_responses)
        assert named == k00_produce.RECORD_ERRORS_MAX
    else:
        assert codes == [0] * partitions
        assert ends(stage, "kept")[:partitions] == [count] * partitions


def test_many_records_that_are_damaged_are_walked_once(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bytearray(batch(b"", b"k", 5_000))
    plain[-1] = 9  # the last one says that it has headers
    set_crc(plain)
    parked = receive(stage, one("kept", bytes(plain)))
    answer, walked = largest_slice(stage, parked, monkeypatch)
    (part,) = answer.responses[0].partition_responses
    assert (part.error_code, walked) == (ErrorCode.INVALID_RECORD, outline.RECORDS_A_SLICE)


def test_what_nobody_looks_into_is_appended_at_once(stage: NodeStage) -> None:
    for octets in (batch(count=5_000), b"x" * 100, batch(count=5_000)[:-1]):
        assert isinstance(stage.node.receive(stage.now, CHANNEL, frame_of(one("t", octets), 9)), list)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_gzip_is_compressed_in_slices(stage: NodeStage, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    stage.create("packed", 1, {"compression.type": "gzip"})
    monkeypatch.setattr(validation, "compress", None)  # what compresses in one step
    octets = batch(random.Random(5).randbytes(40_000), count=20, compression=compression)
    parked = receive(stage, one("packed", octets))
    ticks = 0
    while not (replies := stage.slice()):
        ticks += 1
    assert replies[0].ticket == parked.ticket
    assert answer_of(replies[0].parts, 9).responses[0].partition_responses[0].error_code == 0
    assert ticks >= 800_000 // (64 * 1024)
    log = stage.node.replicas.by_name["packed"].partitions[0].log
    found = log.read(0, 1 << 20).slice
    assert found is not None
    stored = memoryview(found.read())
    assert peek(stored).compression == GZIP
    plain = memoryview(batch(random.Random(5).randbytes(40_000), count=20))[HEADER_BYTES:]
    assert decompress(GZIP, stored[HEADER_BYTES:]) == plain


def one(topic: str, octets: bytes) -> ProduceRequest:
    return ProduceRequest(None, 1, 1000, [TopicProduceData(topic, partition_data=[PartitionProduceData(0, octets)])])
