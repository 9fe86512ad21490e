"""What one client may cost the others: time on the event loop, and memory, while something hostile goes on.

Each attack runs against a node in a process of its own, whose memory is read from outside, beside a probe
(`fairness.py`).
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from ottla.client import Client
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.wire import ZERO_UUID, Message, write_uvarint
from tests.harness.server.fairness import NodeProcess, Probe, Waits, assert_fair_burst, running_node
from tests.server.test_connection import produce_frame, read_frame

BURST = 50
UNSENT_FRAME_BYTES_MAX = 64 << 10
TOPICS = 2000
VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("fair")) as running:
        with Client(running.address) as client:
            names = ["t", *(f"topic-{n}" for n in range(TOPICS))]
            topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=-1) for name in names]
            client.send(CreateTopicsRequest(topics=topics, timeout_ms=30_000))
        yield running


@contextlib.contextmanager
def connections(node: NodeProcess, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(node.connect()) for _ in range(count)]


def ask(node: NodeProcess) -> None:
    """Wait until the node has read what was sent to it before."""
    with node.connect() as sock:
        sock.sendall(VERSIONS)
        read_frame(sock)


@pytest.mark.parametrize(("claimed", "sent"), [(100_000_000, 4), (1_000_000, 12), (33_000, 4), (100_000_000, 20_000)])
def test_a_frame_that_has_not_come_takes_no_memory(node: NodeProcess, claimed: int, sent: int) -> None:
    """Also after large frames were served: their buffers are kept, and are not for those who only promise."""
    with node.connect() as sock:
        for _ in range(8):
            sock.sendall(produce_frame(1, "t", [os.urandom(900_000)]))
            read_frame(sock)
    count = 300
    with connections(node, count) as socks:
        ask(node)
        before = node.resident_bytes
        for sock in socks:
            sock.sendall((struct.pack(">ihhi", claimed, 0, 9, 1) + bytes(sent))[:sent])
        ask(node)
        each = (node.resident_bytes - before) / count
    assert each < UNSENT_FRAME_BYTES_MAX


def test_frames_that_do_not_come_leave_the_others_their_turn(node: NodeProcess, probe: Probe, idle: Waits) -> None:
    def burst() -> None:
        with connections(node, 300) as socks:
            for sock in socks:
                sock.sendall(struct.pack(">ihhi", 100_000_000, 0, 9, 1) + bytes(20_000))
            ask(node)

    assert_fair_burst(probe, idle, burst)


def metadata_of_all(count: int) -> bytes:
    return bytes(encode_request(RequestHeader(3, 9, 1, None), MetadataRequest(topics=None))) * count


def configs_of_all(resources: int) -> bytes:
    """One DescribeConfigs that asks for the broker's configuration so many times, with everything that can be told."""
    resource = DescribeConfigsResource(4, "1", None)
    request = DescribeConfigsRequest([resource] * resources, include_synonyms=True, include_documentation=True)
    return bytes(encode_request(RequestHeader(32, 4, 1, None), request))


@pytest.mark.parametrize(
    "request_bytes",
    [metadata_of_all(2600), configs_of_all(1) * 1500, configs_of_all(9000)],
    ids=["metadata", "configs", "configs-in-one"],
)
def test_pipelined_requests_leave_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits, request_bytes: bytes
) -> None:
    """Whether the client reads its answers or not; what it does not read takes no memory."""
    before = node.resident_bytes
    with probe.watch() as seen, node.connect() as reading, node.connect() as deaf:
        deaf.sendall(request_bytes)
        reading.sendall(request_bytes)
        reading.settimeout(1)
        ended = time.monotonic() + 1
        with contextlib.suppress(TimeoutError):  # when it has read everything
            while time.monotonic() < ended:
                reading.recv(1 << 20)
    seen.must_be_fair(idle)
    assert node.resident_bytes - before < 50_000_000


def test_clients_that_never_read_leave_the_others_their_turn(node: NodeProcess, probe: Probe, idle: Waits) -> None:
    def burst() -> None:
        with connections(node, BURST) as deaf:
            for sock in deaf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(configs_of_all(1) * 3)
            for _ in range(5):
                ask(node)

    assert_fair_burst(probe, idle, burst)


def test_many_clients_with_costly_requests_leave_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits
) -> None:
    def burst() -> None:
        with connections(node, 50) as socks:
            for _ in range(3):
                for sock in socks:
                    sock.sendall(metadata_of_all(1))
                for sock in socks:
                    read_frame(sock)

    assert_fair_burst(probe, idle, burst)


def test_a_burst_of_newcomers_leaves_the_others_their_turn(node: NodeProcess, probe: Probe, idle: Waits) -> None:
    """Of whom nobody knows that what they ask for costs some milliseconds each."""

    def burst() -> None:
        with connections(node, BURST) as socks:
            for sock in socks:
                sock.sendall(configs_of_all(3))
            for sock in socks:
                read_frame(sock)

    assert_fair_burst(probe, idle, burst)


def long_request(key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(frame)) + frame


def tagged(count: int) -> bytes:
    """The header of an ApiVersions with so many tagged fields."""
    section = bytearray()
    write_uvarint(section, count)
    return bytes(section) + bytes(2 * count)


def array(count: int, element: bytes) -> bytes:
    length = bytearray()
    write_uvarint(length, count + 1)
    return bytes(length) + element * count


LONG_TOO = pytest.mark.slow("tests/server/test_fairness.py::test_one_long_request_leaves_the_others_their_turn")
FETCH_HEAD = bytes(9) + b"\x7f\xff\xff\xff\x00" + bytes(4) + b"\xff" * 4


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: long_request(18, 3, tagged(45_000_000)), marks=LONG_TOO),
        lambda: long_request(3, 12, b"\x00" + array(1_000_000, bytes(18)) + b"\x00\x00\x00"),
        lambda: long_request(15, 5, b"\x00" + array(2_000_000, b"\x01") + b"\x00\x00"),
        lambda: long_request(1, 17, FETCH_HEAD + array(800_000, bytes(16) + b"\x01\x00") + b"\x01\x01\x00"),
        lambda: long_request(
            0, 9, bytes(2) + bytes(6) + array(900_000, b"\x02t" + array(9, bytes(6)) + b"\x00") + b"\x00"
        ),
    ],
    ids=["tagged-fields", "metadata", "too-many", "fetch", "produce"],
)
def test_one_long_request_leaves_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits, made: Callable[[], bytes]
) -> None:
    frame = made()

    def burst() -> None:
        with node.connect() as sock:
            sock.sendall(frame)
            with contextlib.suppress(ConnectionError):
                sock.recv(4)

    assert_fair_burst(probe, idle, burst)


MANY = 10_000
MANY_TOO = pytest.mark.slow("tests/server/test_fairness.py::test_requests_that_name_many_leave_the_others_their_turn")


def framed(version: int, message: Message) -> bytes:
    return bytes(encode_request(RequestHeader(message.API_KEY, version, 1, None), message))


def commit(count: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(0, 5, -1, None)]
    topics = [OffsetCommitRequestTopic(f"topic-{n}", ZERO_UUID, partitions) for n in range(count)]
    return OffsetCommitRequest("g", -1, topics=topics)


def creation(count: int) -> CreateTopicsRequest:
    topics = [CreatableTopic(f"more-{n}", 1, -1) for n in range(max(1, count // 40))]
    return CreateTopicsRequest(topics, validate_only=True)


def commit_of_one_group(count: int) -> OffsetCommitRequest:
    """Of what is there: so many records in one batch."""
    once = [OffsetCommitRequestPartition(0, 5, -1, None)]
    return OffsetCommitRequest("g", -1, topics=[OffsetCommitRequestTopic("t", ZERO_UUID, once * count)])


def often(count: int) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics("t", ZERO_UUID, [0] * count)


def deletion(count: int) -> OffsetDeleteRequest:
    """Of topics that are there and others, and of one partition over and over."""
    once = [OffsetDeleteRequestPartition(0)]
    topics = [OffsetDeleteRequestTopic(f"topic-{n}", once) for n in range(count)]
    return OffsetDeleteRequest("g", [*topics, OffsetDeleteRequestTopic("topic-0", once * count)])


def fetch(count: int, epoch: int) -> FetchRequest:
    topics = [FetchTopic(f"topic-{n}", partitions=[FetchPartition(partition=0)]) for n in range(count)]
    return FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=epoch, topics=topics)


@pytest.mark.parametrize(
    ("version", "made"),
    [
        pytest.param(12, lambda count: fetch(5 * count, -1), marks=MANY_TOO),
        pytest.param(12, lambda count: fetch(5 * count, 0), marks=MANY_TOO),
        (
            8,
            lambda count: OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(name, topics=[]) for name in names(count)]
            ),
        ),
        (8, lambda count: OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[often(12 * count)])])),
        (8, commit),
        pytest.param(8, lambda count: commit_of_one_group(3 * count // 5), marks=MANY_TOO),
        pytest.param(0, lambda count: deletion(5 * count // 2), marks=MANY_TOO),
        (5, creation),
        (5, lambda count: DescribeGroupsRequest(names(count))),
        (2, lambda count: DeleteGroupsRequest(names(count // 2))),
        (4, lambda count: FindCoordinatorRequest(key_type=0, coordinator_keys=names(count))),
    ],
    ids=[
        "fetch",
        "fetch-in-session",
        "offset-fetch",
        "offset-fetch-of-one-group",
        "offset-commit",
        "offset-commit-of-one-group",
        "offset-delete",
        "create-topics",
        "describe-groups",
        "delete-groups",
        "find-coordinator",
    ],
)
def test_requests_that_name_many_leave_the_others_their_turn(
    node: NodeProcess, probe: Probe, idle: Waits, version: int, made: Callable[[int], Message]
) -> None:
    """Back to back, each behind the answer to the one before; what serves them is there already."""
    few, many = framed(version, made(2)), framed(version, made(MANY))
    with node.connect() as sock:
        coordinator = framed(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        for small in (coordinator, framed(8, commit_of_one_group(1)), few):
            sock.sendall(small)
            read_frame(sock)
        with probe.watch() as seen:
            for _ in range(2):
                sock.sendall(many)
                read_frame(sock)
    seen.must_be_fair(idle)


def names(count: int) -> list[str]:
    return [f"g{n}" for n in range(count)]
