"""A client that has used too much, over a real socket: it is told at once, and read again when its time is over."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from ottla.broker.requests import Session
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker

LIST_GROUPS = 16
NOTICED_S = 0.95
"""Whoever is throttled for a second waits as long at least, counted from before the request was sent that it is for."""


class ScriptedQuotas:
    """Throttles one request after the other as long as it was told, and then none."""

    def __init__(self, *throttle_ms: int) -> None:
        self.throttle_ms = list(throttle_ms)
        self.spent_micros: list[int] = []

    def charge(self, now: int, session: Session, client_id: str, *, produced: int, fetched: int) -> int:
        return self.throttle_ms.pop(0) if self.throttle_ms else 0

    def uncharge(self, now: int, session: Session, client_id: str, *, fetched: int) -> None: ...

    def spent(self, now: int, session: Session, micros: int) -> None:
        self.spent_micros.append(micros)

    def fetched_max(self, session: Session, client_id: str) -> int | None:
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


def test_a_shorter_time_does_not_end_a_longer_one(broker: Throttling, client: socket.socket) -> None:
    broker.plant(ScriptedQuotas(1_000, 1))
    began = time.monotonic()
    client.sendall(question(1) + question(2))  # both are served before the first mutes
    time.sleep(0.1)
    client.sendall(question(3))
    assert [told(client) for _ in range(3)] == [(1, 1_000), (2, 1), (3, 0)]
    assert time.monotonic() - began > NOTICED_S


def test_a_produce_without_an_answer_holds_up_what_follows_it(broker: Throttling, client: socket.socket) -> None:
    topic = broker.create_topic()
    broker.plant(ScriptedQuotas(1_000))
    appends = [PartitionProduceData(0, build_batch([Record(-1, 1, b"k", b"v")]))]
    request = ProduceRequest(None, 0, 1_000, [TopicProduceData(topic, partition_data=appends)])
    began = time.monotonic()
    client.sendall(encode_request(RequestHeader(0, 9, 1, "t"), request))
    time.sleep(0.1)
    client.sendall(question(2))
    assert told(client) == (2, 0)
    assert time.monotonic() - began > NOTICED_S
