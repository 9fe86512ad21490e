"""A client that has used too much, over a real socket: it is told at once, and read again when its time is over."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Identity
from ottla.client import Connection
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import soon

LIST_GROUPS, METADATA = 16, 3
NOTICED_S = 0.95
"""Whoever is throttled for a second waits as long at least, counted from before the request was sent that it is for."""


class ScriptedQuotas:
    """Throttles one request after the other as long as it was told, and then none."""

    def __init__(self, *throttle_ms: int) -> None:
        self.throttle_ms = list(throttle_ms)
        self.spent_micros: list[int] = []

    def charge(self, now: int, channel: Channel, client_id: str, *, produced: int, fetched: int) -> int:
        channel.charged_as = client_id
        return self.throttle_ms.pop(0) if self.throttle_ms else 0

    def uncharge(self, now: int, channel: Channel, client_id: str, *, fetched: int) -> None: ...

    def spent(self, now: int, channel: Channel, micros: int) -> None:
        self.spent_micros.append(micros)

    def mutated(self, now: int, identity: Identity, client_id: str, partitions: int, *, strict: bool) -> int:
        return 0

    def fetched_max(self, channel: Channel, client_id: str) -> int | None:
        return None


class Throttling(EmbeddedBroker):
    def plant(self, quotas: ScriptedQuotas | None) -> None:
        assert self._running is not None
        self._running.server.node.throttle.quotas = quotas


@pytest.fixture(scope="module")
def broker() -> Iterator[Throttling]:
    with Throttling() as running:
        yield running


@pytest.fixture
def client(broker: Throttling) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", broker.port), 20) as sock:
        yield sock
    broker.plant(None)


def question(correlation_id: int) -> bytes:
    return bytes(encode_request(RequestHeader(LIST_GROUPS, 4, correlation_id, "t"), ListGroupsRequest()))


def told(sock: socket.socket) -> tuple[int, int]:
    """(correlation id, throttle time) of the next answer."""
    (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    octets = bytearray(sock.recv(size, socket.MSG_WAITALL))
    correlation_id, answer = decode_response(LIST_GROUPS, 4, memoryview(octets))
    return correlation_id, answer.throttle_time_ms


def test_the_answer_comes_at_once_and_the_next_when_the_time_is_over(broker: Throttling, client: socket.socket) -> None:
    quotas = ScriptedQuotas(1_000)
    broker.plant(quotas)
    began = time.monotonic()
    client.sendall(question(1))
    assert told(client) == (1, 1_000)
    client.sendall(question(2))
    assert told(client) == (2, 0)
    assert time.monotonic() - began > NOTICED_S
    assert len(quotas.spent_micros) == 2
    assert min(quotas.spent_micros) > 0


def test_what_came_together_with_a_throttled_request_waits_too(broker: Throttling, client: socket.socket) -> None:
    """All of it is answered as it is read, in one turn: Metadata requests about nothing, once the node has had some."""
    asked = encode_request(RequestHeader(METADATA, 12, 1, "t"), MetadataRequest([], allow_auto_topic_creation=False))

    def throttle_ms() -> int:
        (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
        _, answer = decode_response(METADATA, 12, memoryview(bytearray(client.recv(size, socket.MSG_WAITALL))))
        return answer.throttle_time_ms

    for _ in range(20):
        client.sendall(asked)
        assert throttle_ms() == 0
    broker.plant(ScriptedQuotas(1_000, 1))
    began = time.monotonic()
    client.sendall(asked + asked)
    assert [throttle_ms(), throttle_ms()] == [1_000, 1]
    assert time.monotonic() - began > NOTICED_S


def test_an_address_that_connects_too_often_is_closed_later_and_nobody_else(broker: Throttling) -> None:
    """Its first ten connections are within the quota: what ten of the eleven windows may have."""
    entity, key = [RequestEntityData("ip", "127.0.0.2")], "connection_creation_rate"

    def alter(op: OpData) -> None:
        with Connection("127.0.0.1", broker.port) as admin:
            assert not admin.send(AlterClientQuotasRequest([RequestEntryData(entity, [op])])).entries[0].error_code

    def connected(address: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", broker.port), 20, source_address=(address, 0))

    with contextlib.ExitStack() as opened:
        alter(OpData(key, 1.0))
        began = time.monotonic()  # the quota counts from here: the slower these come, the shorter the last one waits
        for n in range(10):
            served = opened.enter_context(connected("127.0.0.2"))
            served.sendall(question(n))
            assert told(served) == (n, 0)
        throttled = opened.enter_context(connected("127.0.0.2"))
        throttled.sendall(question(1))
        other = opened.enter_context(connected("127.0.0.1"))
        other.sendall(question(2))
        assert told(other) == (2, 0)
        with contextlib.suppress(ConnectionError):
            assert throttled.recv(1) == b"", "it is answered"
        assert time.monotonic() - began > NOTICED_S
        served.sendall(question(11))
        assert told(served) == (11, 0), "those it has go on"
        alter(OpData(key, remove=True))
        again = opened.enter_context(connected("127.0.0.2"))
        again.sendall(question(12))
        assert told(again) == (12, 0)


def test_connections_that_come_too_fast_wait_for_their_turn() -> None:
    with EmbeddedBroker(settings={"max.connection.creation.rate": 1, "quota.window.num": 3}) as own:
        began = time.monotonic()
        for n in range(3):
            with socket.create_connection(("127.0.0.1", own.port), 20) as client:
                client.sendall(question(n))
                assert told(client) == (n, 0)
        assert time.monotonic() - began > NOTICED_S


def test_a_produce_without_an_answer_holds_up_what_follows_it(broker: Throttling, client: socket.socket) -> None:
    topic = broker.create_topic()
    quotas = ScriptedQuotas(1_000)
    broker.plant(quotas)
    appends = [PartitionProduceData(0, build_batch([Record(-1, 1, b"k", b"v")]))]
    request = ProduceRequest(None, 0, 1_000, [TopicProduceData(topic, partition_data=appends)])
    began = time.monotonic()
    client.sendall(encode_request(RequestHeader(0, 9, 1, "t"), request))
    soon(lambda: not quotas.throttle_ms, "the produce has been charged")
    client.sendall(question(2))
    assert told(client) == (2, 0)
    assert time.monotonic() - began > NOTICED_S
