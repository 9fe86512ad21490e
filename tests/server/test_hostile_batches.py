"""What small batches that unpack to very much cost the others: a stream of them, beside a probe (`fairness.py`)."""

import itertools
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from ottla.client import Client
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import batch as b
from ottla.protocol.records.compression import UNPACKED_BYTES_MAX
from ottla.protocol.records.record import PARTS_MAX, Record, build_batch
from tests.harness.server.fairness import NodeProcess, Probe, Waits, assert_fair_burst, running_node
from tests.server.test_connection import read_frame

PARTITIONS = 20
MANY_PARTITIONS = 30
STREAM_S = 0.7
MEMORY_MAX = 100_000_000
NOW = int(time.time() * 1000)
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "zstd": {"compression.type": "zstd"},
    "stamped": {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
}

UNPACKED_TOO = pytest.mark.slow(
    "tests/server/test_hostile_batches.py::test_batches_that_unpack_to_much_leave_the_others_their_turn"
)
MANY_TOO = pytest.mark.slow(
    "tests/server/test_hostile_batches.py::test_one_produce_for_many_partitions_leaves_the_others_their_turn"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("hostile")) as running:
        with Client(running.address) as client:
            topics = [
                CreatableTopic(name, PARTITIONS, -1, configs=[CreatableTopicConfig(*each) for each in configs.items()])
                for name, configs in TOPICS.items()
            ]
            topics.append(
                CreatableTopic("wide", MANY_PARTITIONS, -1, configs=[CreatableTopicConfig("cleanup.policy", "compact")])
            )
            client.send(CreateTopicsRequest(topics=topics, timeout_ms=30_000))
        yield running


def claiming(batch: bytearray, records: int, max_timestamp: int = NOW) -> bytes:
    """The same batch with another count of records in its header, and another latest time."""
    struct.pack_into(">i", batch, 23, records - 1)
    struct.pack_into(">i", batch, 57, records)
    struct.pack_into(">q", batch, b.MAX_TIMESTAMP_AT, max_timestamp)
    b.set_crc(batch)
    return bytes(batch)


def bomb(records: int) -> bytes:
    """32 MiB of zeros in about a kilobyte."""
    return claiming(build_batch([Record(-1, NOW, b"k", bytes(UNPACKED_BYTES_MAX - 100))], compression="zstd"), records)


def crowd(records: int, value_bytes: int, key: bytes | None = b"k") -> bytes:
    """So many small records in little space."""
    return bytes(build_batch([Record(-1, NOW, key, bytes(value_bytes))] * records, compression="gzip"))


CROWD = crowd(PARTS_MAX, 0)


def a_crowd() -> memoryview:
    """As many records as one batch may have: a node does not divide what it does with one batch."""
    return memoryview(CROWD)


def produce(topic: str, partitions: int, batch: bytes) -> bytes:
    parts = [PartitionProduceData(index, batch) for index in range(partitions)]
    request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=parts)])
    return bytes(encode_request(RequestHeader(0, 9, 1, "hostile"), request))


def stream(node: NodeProcess, frames: list[bytes]) -> None:
    """Each of two connections has a request under way all the time, for a while."""
    following = itertools.cycle(frames)
    ends = time.monotonic() + STREAM_S
    with node.connect() as one, node.connect() as other:
        for sock in (one, other):
            sock.sendall(next(following))
        for sock in itertools.cycle((one, other)):
            read_frame(sock)
            if time.monotonic() >= ends:
                return
            sock.sendall(next(following))


@pytest.mark.parametrize(
    "topic", [pytest.param(topic, marks=() if topic in ("plain", "stamped") else UNPACKED_TOO) for topic in TOPICS]
)
def test_batches_that_unpack_to_much_leave_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits, topic: str
) -> None:
    batches = [bomb(4_000_000), bomb(PARTS_MAX), crowd(PARTS_MAX, 0), crowd(PARTS_MAX, 600), crowd(PARTS_MAX + 1, 0)]
    frames = [produce(topic, 1, batch) for batch in batches]
    assert_fair_burst(probe, idle, lambda: stream(node, frames), a_crowd)


@pytest.mark.parametrize(
    "made",
    [
        lambda: bomb(1),
        pytest.param(lambda: bomb(PARTS_MAX), marks=MANY_TOO),
        pytest.param(lambda: crowd(PARTS_MAX, 0), marks=MANY_TOO),
        pytest.param(lambda: crowd(PARTS_MAX, 0, None), marks=MANY_TOO),
    ],
    ids=["bombs", "claiming-bombs", "crowds", "keyless-crowds"],
)
def test_one_produce_for_many_partitions_leaves_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits, made: Callable[[], bytes]
) -> None:
    """Each of whose batches has to be unpacked."""
    frame, before = produce("wide", MANY_PARTITIONS, made()), node.resident_bytes

    def burst() -> None:
        with node.connect() as sock:
            sock.sendall(frame)
            read_frame(sock)

    assert_fair_burst(probe, idle, burst, a_crowd)
    assert node.resident_bytes - before < MEMORY_MAX


def test_searches_by_time_leave_the_others_their_turn(node: NodeProcess, probe: Probe, idle: Waits) -> None:
    """Of batches whose headers claim a time that none of their records has."""
    late = NOW + 1_000
    records = [Record(-1, NOW, b"k", None)] * (PARTS_MAX - 1)
    lying = claiming(build_batch(records, compression="zstd"), len(records), late)
    bombs = claiming(bytearray(bomb(100)), 100, late)
    with node.connect() as sock:
        for batch in (lying, bombs) * 5:
            sock.sendall(produce("plain", PARTITIONS, batch))
            read_frame(sock)
    asked = [ListOffsetsPartition(partition, -1, late) for partition in range(PARTITIONS)]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic("plain", asked)])
    frame = bytes(encode_request(RequestHeader(2, 6, 1, "hostile"), request))
    assert_fair_burst(probe, idle, lambda: stream(node, [frame]), a_crowd)
