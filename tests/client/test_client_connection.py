"""The connection: versions, pipelining, raw frames, and what it says when the other side misbehaves."""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ottla.client import (
    BadResponseError,
    ClientError,
    Connection,
    ConnectionClosedError,
    TimedOutError,
    UnsupportedVersionError,
)
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_request, encode_response
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.testing import EmbeddedBroker

Answer = Callable[[socket.socket], None]


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[Connection]:
    with Connection("127.0.0.1", broker.port) as made:
        yield made


class Peer:
    """A broker that does what a test tells it: `behave` gets the accepted socket."""

    def __init__(self, behave: Answer) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._main, args=(behave,), daemon=True)
        self.thread.start()

    def _main(self, behave: Answer) -> None:
        accepted, _ = self.listener.accept()
        with accepted:
            behave(accepted)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(10)
        self.listener.close()


def read_frame(peer: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
    return peer.recv(length, socket.MSG_WAITALL)


def test_the_newest_common_version_is_spoken(connection: Connection) -> None:
    answer = connection.send(MetadataRequest([]))
    assert answer.brokers[0].port > 0
    assert connection.version_of(MetadataRequest.API_KEY) == APIS[MetadataRequest.API_KEY].max_version
    assert connection.ranges[1] == (4, 18)


def test_a_version_can_be_chosen(connection: Connection) -> None:
    old, new = (connection.send(MetadataRequest([]), version) for version in (1, 13))
    assert old.cluster_id is None
    assert new.cluster_id


def test_answers_are_taken_in_any_order(connection: Connection) -> None:
    names = ["a", "b", "c"]
    posted = [
        connection.post(MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False))
        for name in names
    ]
    taken = {name: connection.take(each) for name, each in reversed(list(zip(names, posted, strict=True)))}
    assert {name: answer.topics[0].name for name, answer in taken.items()} == {name: name for name in names}
    with pytest.raises(ValueError, match="no answer is on its way"):
        connection.take(posted[0])


def test_a_slow_answer_holds_the_next_one_back(connection: Connection) -> None:
    topics = [FetchTopic("nowhere", partitions=[FetchPartition(0)])]
    slow = connection.post(FetchRequest(max_wait_ms=50, min_bytes=1, topics=topics), 12)
    quick = connection.post(MetadataRequest([]))
    assert connection.take(quick).brokers
    assert connection.take(slow).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_kept_answers_are_bounded(broker: EmbeddedBroker) -> None:
    with Connection("127.0.0.1", broker.port, kept_max=2) as connection:
        posted = [connection.post(MetadataRequest([])) for _ in range(4)]
        with pytest.raises(ClientError, match="More than 2 answers"):
            connection.take(posted[-1])


def test_raw_frames(connection: Connection) -> None:
    frame = struct.pack(">ihhih", 10, 18, 0, 99, -1)
    for _ in range(2):
        connection.send_bytes(frame)
    for _ in range(2):
        frame = connection.receive_raw()
        assert struct.unpack_from(">i", frame) == (99,)
        answer, end = ApiVersionsResponse.decode(memoryview(frame), 4, 0)
        assert end == len(frame)
        assert answer.api_keys


def test_an_unknown_api_key_ends_the_connection(connection: Connection) -> None:
    connection.send_bytes(struct.pack(">ihhih", 10, 999, 0, 1, -1))
    with pytest.raises(ConnectionClosedError, match="hung up"):
        connection.receive_raw()
    with pytest.raises(ConnectionClosedError):
        connection.send(MetadataRequest([]))


def test_an_old_broker_is_asked_again_in_its_own_version() -> None:
    """ApiVersions v4 is answered in v0 with UNSUPPORTED_VERSION and the versions there are (KIP-511)."""
    asked: list[int] = []

    def behave(peer: socket.socket) -> None:
        for error in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE):
            header, _ = decode_request(memoryview(read_frame(peer)))
            asked.append(header.api_version)
            answer = ApiVersionsResponse(int(error), [ApiVersion(18, 0, 2), ApiVersion(3, 0, 5)])
            header.api_version = 0 if error else header.api_version
            peer.sendall(encode_response(header, answer))

    with Peer(behave) as peer, Connection("127.0.0.1", peer.port) as connection:
        assert connection.version_of(3) == 5
        with pytest.raises(UnsupportedVersionError, match="does not serve OffsetDelete"):
            connection.post(OffsetDeleteRequest())
    assert asked == [APIS[18].max_version, 2]


@pytest.mark.parametrize(
    ("answer", "failure", "sentence"),
    [
        (b"", ConnectionClosedError, "hung up"),
        (b"\x00\x00\x00\x08\x00", ConnectionClosedError, "hung up"),
        (b"\xff\xff\xff\xff", BadResponseError, "does not use Kafka's protocol: it sent a frame of -1 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", BadResponseError, "does not use Kafka's protocol"),
        (struct.pack(">ii", 4, 77), BadResponseError, "answered request 77 where 1 was due"),
        (struct.pack(">ib", 1, 0), BadResponseError, "answered request -1|answered request 0"),
        (struct.pack(">ii", 4, 1), BadResponseError, "to DescribeCluster v1 can't be read"),
    ],
)
def test_what_a_broken_peer_says(answer: bytes, failure: type[ClientError], sentence: str) -> None:
    def behave(peer: socket.socket) -> None:
        read_frame(peer)
        peer.sendall(answer)

    with Peer(behave) as peer, Connection("127.0.0.1", peer.port) as connection:
        with pytest.raises(failure, match=sentence):
            connection.send(DescribeClusterRequest(), 1)
        with pytest.raises(ClientError):
            connection.send(ApiVersionsRequest(), 0)


def test_no_answer_in_time() -> None:
    release = threading.Event()
    with Peer(lambda peer: release.wait(10) and None) as peer:
        with (
            Connection("127.0.0.1", peer.port, timeout_s=0.05) as connection,
            pytest.raises(TimedOutError, match="in time"),
        ):
            connection.send(MetadataRequest([]), 1)
        release.set()


def fetch_answer(header: RequestHeader, records: bytes) -> bytes:
    part = PartitionData(0, 0, 9, 9, 0, aborted_transactions=None, records=records)
    return bytes(encode_response(header, FetchResponse(0, 0, 0, [FetchableTopicResponse("t", partitions=[part])])))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_large_answer_comes_in_pieces(ahead: bool) -> None:
    """`ahead`: it follows another answer in one piece, so that its beginning has been read already."""
    records = bytes(range(256)) * 4096
    begun = threading.Event()

    def behave(peer: socket.socket) -> None:
        versions = ApiVersionsResponse(0, [ApiVersion(18, 0, 3)])
        first, _ = decode_request(memoryview(read_frame(peer)))
        second, _ = decode_request(memoryview(read_frame(peer)))
        start, answer = bytes(encode_response(first, versions)), fetch_answer(second, records)
        cuts = [0, 1000, 1001, 300_000, len(answer)]
        pieces = [answer[a:b] for a, b in itertools.pairwise(cuts)]
        pieces = [start + pieces[0], *pieces[1:]] if ahead else [start, *pieces]
        for piece in pieces:
            peer.sendall(piece)
            begun.set()
            time.sleep(0.01)

    with Peer(behave) as peer, Connection("127.0.0.1", peer.port) as connection:
        versions = connection.post(ApiVersionsRequest(), 3)
        fetch = connection.post(FetchRequest(topics=[FetchTopic("t", partitions=[FetchPartition(0)])]), 12)
        assert not ahead or begun.wait(30)
        assert connection.take(versions).api_keys
        (part,) = connection.take(fetch).responses[0].partitions
        assert part.records == records
        assert isinstance(part.records, memoryview)


def test_a_large_answer_that_stops_half_way() -> None:
    release = threading.Event()

    def behave(peer: socket.socket) -> None:
        header, _ = decode_request(memoryview(read_frame(peer)))
        peer.sendall(fetch_answer(header, bytes(1 << 20))[: 1 << 19])
        release.wait(10)

    with Peer(behave) as peer:
        with (
            Connection("127.0.0.1", peer.port, timeout_s=0.1) as connection,
            pytest.raises(TimedOutError, match="in time"),
        ):
            connection.send(FetchRequest(topics=[FetchTopic("t", partitions=[FetchPartition(0)])]), 12)
        release.set()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionClosedError, match=f"No broker can be reached at 127.0.0.1:{port}"):
        Connection("127.0.0.1", port)
