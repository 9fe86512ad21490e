"""The shell over real sockets: frames in any pieces, answers in order, limits, and readers that do not read."""

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator

import pytest

from ottla.broker import slices
from ottla.broker.api import k00_produce
from ottla.broker.effects import Mute
from ottla.broker.topics.new_topic import NewTopic
from ottla.client import Client
from ottla.client.connection import Connection
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import Record, build_batch, decode_records
from ottla.server.decoding import Decoding
from ottla.server.listeners import Listener
from ottla.server.main import Server, ServerOptions
from ottla.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"connections.max.idle.ms": 3_600_000}) as running:
        yield running


@pytest.fixture
def raw(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(broker) as sock:
        yield sock


def connect(broker: EmbeddedBroker) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def versions_frame(correlation_id: int) -> bytes:
    return bytes(encode_request(RequestHeader(18, 3, correlation_id, "t"), ApiVersionsRequest("t", "1")))


def produce(topic: str, values: list[bytes], acks: int = -1, timeout_ms: int = 30_000) -> ProduceRequest:
    records = build_batch([Record(timestamp_ms=int(time.time() * 1000), key=None, value=value) for value in values])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, records)])]
    return ProduceRequest(None, acks, timeout_ms, data)


def produce_frame(correlation_id: int, topic: str, values: list[bytes], acks: int = -1) -> bytes:
    return bytes(encode_request(RequestHeader(0, 9, correlation_id, "t"), produce(topic, values, acks)))


def fetch_frame(correlation_id: int, topic: str, offset: int, *, max_bytes: int = 1 << 20, wait_ms: int = 500) -> bytes:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[part])],
    )
    return bytes(encode_request(RequestHeader(1, 12, correlation_id, "t"), request))


def read_frame(sock: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        chunk = sock.recv(size - len(found))
        if not chunk:
            raise ConnectionError(f"closed after {len(found)} of {size} bytes")
        found += chunk
    return bytes(found)


def correlation_of(frame: bytes) -> int:
    return struct.unpack_from(">i", frame)[0]


def values_in(frame: bytes) -> list[bytes]:
    _, answer = decode_response(1, 12, memoryview(frame))
    records = answer.responses[0].partitions[0].records
    return [bytes(r.value) for _, at in iter_batches(records) for r in decode_records(records, at)]


def is_closed(sock: socket.socket, seconds: float = 20) -> bool:
    sock.settimeout(seconds)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_frame_may_come_byte_by_byte(raw):
    for byte in versions_frame(5):
        raw.sendall(bytes((byte,)))
    assert correlation_of(read_frame(raw)) == 5


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 100, 70_000, 140_000, 3_000_000])
def test_a_large_frame_may_come_in_any_two_pieces(broker, raw, cut):
    topic = broker.create_topic(configs={"max.message.bytes": 10_000_000})
    value = os.urandom(4_000_000)
    frame = produce_frame(1, topic, [value]) + versions_frame(2)
    raw.sendall(frame[:cut])
    with Connection("127.0.0.1", broker.port) as other:  # its answer shows that the node has read the first piece
        other.send(MetadataRequest(topics=[]))
    raw.sendall(frame[cut:])
    assert [correlation_of(read_frame(raw)) for _ in range(2)] == [1, 2]
    raw.sendall(fetch_frame(3, topic, 0, max_bytes=8_000_000))
    assert values_in(read_frame(raw)) == [value]


def test_many_frames_in_one_packet_are_answered_in_order(broker, raw):
    topic = broker.create_topic()
    frames = b"".join(produce_frame(n, topic, [b"%d" % n]) if n % 3 else versions_frame(n) for n in range(300))
    raw.sendall(frames)
    assert [correlation_of(read_frame(raw)) for _ in range(300)] == list(range(300))


def test_a_request_behind_a_waiting_fetch_is_answered_after_it(broker, raw):
    topic = broker.create_topic()
    raw.sendall(fetch_frame(1, topic, 0, wait_ms=400) + versions_frame(2) + fetch_frame(3, topic, 0, wait_ms=0))
    assert [correlation_of(read_frame(raw)) for _ in range(3)] == [1, 2, 3]


def test_a_waiting_fetch_is_woken_by_a_produce(broker, raw):
    topic = broker.create_topic()
    raw.sendall(fetch_frame(1, topic, 0, wait_ms=60_000))
    with Client(broker.bootstrap_servers) as client:
        client.send(produce(topic, [b"now"]), version=9)
    raw.settimeout(20)
    assert values_in(read_frame(raw)) == [b"now"]


async def test_a_muted_connection_stays_muted_when_an_answer_of_it_leaves(tmp_path):
    server = Server(ServerOptions(directory=str(tmp_path / "node"), listen=("127.0.0.1:0",)))
    await server.start()
    try:
        node = server.node
        node.metadata.at_once(server.now(), node.topics.creating(server.now(), [NewTopic("t", 1)]))
        muted, other = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        muted[1].write(fetch_frame(1, "t", 0, wait_ms=60_000))
        while not len(server.node.parking):
            await asyncio.sleep(0)
        identity = min(server._connections)
        server.node.outbox.add(Mute(identity, server.now() + 3_600_000))
        server.settle()
        muted[1].write(versions_frame(2))
        other[1].write(bytes(encode_request(RequestHeader(0, 9, 8, "t"), produce("t", [b"now"]))))
        assert await read_correlation(other[0]) == 8
        assert await read_correlation(muted[0]) == 1
        for number in range(5):
            other[1].write(versions_frame(number))
            assert await read_correlation(other[0]) == number
        assert not muted[0]._buffer, "answered while it was muted"
        connection = server._connections[identity]
        connection._muted.cancel()  # the hour has passed
        connection._unmute()
        assert await read_correlation(muted[0]) == 2
        for _, writer in (muted, other):
            writer.close()
    finally:
        await server.stop()


async def read_correlation(reader: asyncio.StreamReader) -> int:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return correlation_of(await reader.readexactly(size))


def test_a_claimed_size_above_the_limit_closes_the_connection(raw):
    raw.sendall(struct.pack(">i", 2**31 - 1) + b"x" * 100)
    assert is_closed(raw)


@pytest.mark.parametrize("frame", [b"", b"\x00\x12", struct.pack(">hhi", 999, 0, 1) + b"\xff\xff", b"\xff" * 64])
def test_a_frame_that_means_nothing_closes_the_connection(raw, frame):
    raw.sendall(struct.pack(">i", len(frame)) + frame)
    assert is_closed(raw)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_long_request_is_not_read_before_its_client_is_authenticated(broker, monkeypatch):
    read: list[int] = []
    monkeypatch.setattr(Decoding, "decode", lambda self, frame, done: read.append(len(frame)))
    monkeypatch.setattr(Listener, "security_protocol", "SASL_PLAINTEXT")
    names = [MetadataRequestTopic(name=f"{index:0100}") for index in range(1000)]
    with connect(broker) as sock:
        sock.sendall(encode_request(RequestHeader(3, 9, 1, "t"), MetadataRequest(names)))
        assert is_closed(sock)
    assert read == []


def test_promised_bytes_take_no_memory(broker):
    """Forty clients promise 90 MB each and send little of it."""
    before = resident_bytes()
    socks = [connect(broker) for _ in range(40)]
    try:
        for sock in socks:
            sock.sendall(struct.pack(">i", 90_000_000) + struct.pack(">hhi", 0, 9, 1))
        with Connection("127.0.0.1", broker.port) as other:
            other.send(MetadataRequest(topics=[]))
        assert resident_bytes() - before < 200_000_000
    finally:
        for sock in socks:
            sock.close()


def test_a_slow_reader_holds_little_memory_and_gets_everything(broker):
    """Asks for 400 MB in one go and reads none of it for a while; others are served meanwhile."""
    topic = broker.create_topic(configs={"max.message.bytes": 2_000_000})
    with Client(broker.bootstrap_servers) as client:
        sent = [os.urandom(1_000_000) for _ in range(20)]
        for value in sent:
            client.send(produce(topic, [value]), version=9)
    with connect(broker) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(b"".join(fetch_frame(n, topic, 0, max_bytes=30_000_000) for n in range(20)))
        assert select.select([slow], [], [], 30)[0]
        with Connection("127.0.0.1", broker.port) as other:
            for _ in range(50):
                other.send(MetadataRequest(topics=[]))
        before = resident_bytes()
        with Connection("127.0.0.1", broker.port) as other:
            for _ in range(50):
                other.send(MetadataRequest(topics=[]))
        assert resident_bytes() - before < 50_000_000
        for n in range(20):
            frame = read_frame(slow)
            assert correlation_of(frame) == n
            assert values_in(frame) == sent


def test_a_client_that_leaves_in_the_middle_of_an_answer_harms_nobody(broker):
    topic = broker.create_topic(configs={"max.message.bytes": 2_000_000})
    with Client(broker.bootstrap_servers) as client:
        for _ in range(10):
            client.send(produce(topic, [os.urandom(1_000_000)]), version=9)
        for _ in range(5):
            with connect(broker) as leaver:
                leaver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                leaver.sendall(fetch_frame(1, topic, 0, max_bytes=30_000_000) * 3)
                leaver.recv(1000)
        assert client.list_offsets(topic, [0]) == {0: 10}


@pytest.mark.parametrize("acks", [0, 1])
def test_produce_that_takes_many_slices_is_appended_before_what_is_behind_it(broker, raw, monkeypatch, acks):
    for module in (k00_produce, slices):
        monkeypatch.setattr(module, "SLICE_STEPS", 1)
    count = 20
    topic = broker.create_topic(partitions=count)

    def frame(correlation_id: int, indexes: Iterable[int], acks: int) -> bytes:
        records = build_batch([Record(timestamp_ms=int(time.time() * 1000), key=None, value=b"%d" % correlation_id)])
        data = TopicProduceData(topic, partition_data=[PartitionProduceData(index, records) for index in indexes])
        return bytes(
            encode_request(RequestHeader(0, 9, correlation_id, "t"), ProduceRequest(None, acks, 9_000, [data]))
        )

    last = versions_frame(3) + frame(4, (count - 1,), 1)
    raw.sendall(frame(1, range(count), acks) + frame(2, reversed(range(count)), 1) + last)
    answers = [read_frame(raw) for _ in range(4 if acks else 3)]
    assert [correlation_of(each) for each in answers] == [1, 2, 3, 4][-len(answers) :]
    offsets = [
        [part.base_offset for part in decode_response(0, 9, memoryview(each))[1].responses[0].partition_responses]
        for each in (answers[-3], answers[-1])
    ]
    assert offsets == [[1] * count, [2]]


@pytest.mark.parametrize("size", [0, 1])
def test_a_request_without_an_api_behind_a_waiting_one_keeps_no_answer_from_others(broker, raw, size):
    """It was served while the answers of several connections were given out: those behind it were lost."""
    topic = broker.create_topic()
    with connect(broker) as other:
        raw.sendall(fetch_frame(1, topic, 0, wait_ms=60_000) + struct.pack(">i", size) + b"x" * size)
        other.sendall(fetch_frame(2, topic, 0, wait_ms=60_000))
        with Client(broker.bootstrap_servers) as client:
            client.send(produce(topic, [b"now"]), version=9)
        other.settimeout(20)
        assert values_in(read_frame(other)) == [b"now"]
        assert is_closed(raw)


def test_acks_0_gets_no_answer_and_an_error_closes(broker, raw):
    topic = broker.create_topic()
    raw.sendall(produce_frame(1, topic, [b"a"], acks=0) + versions_frame(2))
    assert correlation_of(read_frame(raw)) == 2
    raw.sendall(produce_frame(3, "no-such-topic", [b"a"], acks=0))
    assert is_closed(raw)


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not():
    with EmbeddedBroker(settings={"connections.max.idle.ms": 600}) as broker:
        topic = broker.create_topic()
        with connect(broker) as idle, connect(broker) as waiting:
            waiting.sendall(fetch_frame(1, topic, 0, wait_ms=2500))
            assert is_closed(idle)
            waiting.settimeout(20)
            assert correlation_of(read_frame(waiting)) == 1


def test_a_client_that_never_reads_is_closed_when_idle():
    """Its answers are stuck in the socket; the node drops them, and the bytes it has not read reset the connection."""
    with EmbeddedBroker(settings={"connections.max.idle.ms": 600}) as broker, connect(broker) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(0.2)
        requests = b"".join(versions_frame(n) for n in range(3000))
        with contextlib.suppress(TimeoutError, ConnectionError):  # nothing is read any more, or already the end
            while True:
                deaf.sendall(requests)
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(20_000), "the connection stays although nobody reads its answers"


def test_a_slow_reader_that_goes_on_reading_is_not_idle():
    with EmbeddedBroker(settings={"connections.max.idle.ms": 600}) as broker:
        topic = broker.create_topic(configs={"max.message.bytes": 3_000_000})
        with Client(broker.bootstrap_servers) as client:
            for _ in range(8):
                client.send(produce(topic, [os.urandom(2_500_000)]), version=9)
        with connect(broker) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            slow.sendall(fetch_frame(7, topic, 0, max_bytes=30_000_000))
            (size,) = struct.unpack(">i", read_exactly(slow, 4))
            assert size > 20_000_000
            ended = time.monotonic() + 1.5
            while size and time.monotonic() < ended:
                size -= len(slow.recv(min(size, 100_000)))
                time.sleep(0.01)
            read_exactly(slow, size)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS handshake on a plaintext listener"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP request"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"\x7f\xff\xff\xff", "a request claims 2147483647 bytes"),
    ],
)
def test_clients_of_other_protocols_are_told_apart_in_the_log(raw, caplog, first, said):
    with caplog.at_level(logging.INFO, "ottla.connection"):
        raw.sendall(first)
        assert is_closed(raw)
    assert said in caplog.text


def test_connections_beyond_the_limits_are_refused_and_room_comes_back():
    with EmbeddedBroker(settings={"max.connections.per.ip": 3}) as broker:
        socks = [connect(broker) for _ in range(3)]
        for n, sock in enumerate(socks):
            sock.sendall(versions_frame(n))
            assert correlation_of(read_frame(sock)) == n
        with connect(broker) as one_too_many:
            assert is_closed(one_too_many)
        socks.pop().close()
        deadline = time.monotonic() + 20
        while True:
            with connect(broker) as again:
                again.sendall(versions_frame(9))
                try:
                    assert correlation_of(read_frame(again)) == 9
                    break
                except ConnectionError:
                    assert time.monotonic() < deadline, "room never came back"
        for sock in socks:
            sock.close()


def test_fsync_durability_shares_syncs_and_keeps_order():
    with EmbeddedBroker(settings={"ottla.durability": "fsync"}) as broker:
        topic = broker.create_topic()
        with connect(broker) as sock:
            count = 400
            sock.sendall(b"".join(produce_frame(n, topic, [b"%d" % n], acks=1 + -2 * (n % 2)) for n in range(count)))
            offsets = []
            for n in range(count):
                frame = read_frame(sock)
                assert correlation_of(frame) == n
                _, answer = decode_response(0, 9, memoryview(frame))
                part = answer.responses[0].partition_responses[0]
                assert part.error_code == 0
                offsets.append(part.base_offset)
            assert offsets == list(range(count))
            sock.sendall(fetch_frame(1, topic, 0))
            assert values_in(read_frame(sock)) == [b"%d" % n for n in range(count)]
