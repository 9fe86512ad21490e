"""Raw load: request frames built once and sent again and again, pipelined, from one thread.

Its cost per request is so small and so even that the broker is the bottleneck; a whole client is often slower than what
it measures. The frames come from the project's own codec, which speaks to any Kafka.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import NoReturn

from bench.brokers import BenchFailedError, Broker
from ottla.client import Connection
from ottla.protocol.apis import ApiKey
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch

PRODUCE_VERSION, FETCH_VERSION = 9, 12
"""The newest versions that know topics by name."""

IN_FLIGHT = 5
"""Requests on their way per connection; `max.in.flight.requests.per.connection` of Kafka's clients."""

FETCH_BYTES = 1 << 20


def record_batch(count: int, size: int) -> bytearray:
    """One uncompressed batch of `count` records whose values have `size` bytes, of the present time."""
    value, now_ms = os.urandom(size), int(time.time() * 1000)
    return build_batch([Record(key=None, value=value, timestamp_ms=now_ms) for _ in range(count)])


def produce_frame(topic: str, partition: int, batch: bytes | bytearray, acks: int = 1) -> bytearray:
    places = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])]
    request = ProduceRequest(None, acks, 30_000, places)
    return encode_request(RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench"), request)


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES) -> bytearray:
    part = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic, partitions=[part])],
    )
    return encode_request(RequestHeader(ApiKey.FETCH, FETCH_VERSION, 1, "bench"), request)


def connect(broker: Broker, connections: int = 1) -> list[Connection]:
    return [Connection(broker.host, broker.port, client_id="bench", **broker.security) for _ in range(connections)]


def pipeline(connections: Sequence[Connection], frames: Sequence[bytearray], total: int) -> float:
    """Send `total` Produce frames over each connection, taking turns through `frames`; seconds until all are answered.

    Raises BenchFailedError where an answer holds an error.
    """
    answers: list[bytes] = []
    several = len(frames)
    began = time.perf_counter()
    for connection in connections:
        for i in range(min(IN_FLIGHT, total)):
            connection.send_bytes(frames[i % several])
    for following in range(IN_FLIGHT, total + IN_FLIGHT):
        if len(answers) == total * len(connections):
            break
        for connection in connections:
            answers.append(connection.receive_raw())
            if following < total:
                connection.send_bytes(frames[following % several])
    spent_s = time.perf_counter() - began
    for answer in answers:
        check_produced(answer)
    return spent_s


def stream(address: str, frame: bytes | bytearray, together: int, total: int) -> list[bytearray]:
    """Send `total` times the same Produce frame over a connection of its own, `together` of them in one write, and
    IN_FLIGHT such writes on their way. It costs the client little: all answers are as long as the first, so that they
    are told apart only at the end. Returns them, for `check_produced`.
    """
    host, _, port = address.rpartition(":")
    block, answers = bytes(frame) * together, bytearray()
    with socket.create_connection((host.strip("[]"), int(port)), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame)
        answer_bytes = len(connection.recv(1 << 16))
        sent, blocks = 0, total // together
        while len(answers) < blocks * together * answer_bytes:
            while sent < min(blocks, len(answers) // (together * answer_bytes) + IN_FLIGHT):
                connection.sendall(block)
                sent += 1
            answers += connection.recv(1 << 16) or hung_up()
    return [answers[at + 4 : at + answer_bytes] for at in range(0, len(answers), answer_bytes)]


def hung_up() -> NoReturn:
    raise BenchFailedError("the broker hung up")


def check_produced(answer: bytes | bytearray) -> int:
    """The base offset that a Produce answer for one partition tells. Raises BenchFailedError for an error code."""
    (topic,) = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, answer)[1].responses
    (part,) = topic.partition_responses
    if part.error_code:
        raise BenchFailedError(
            f"raw produce to {topic.name}-{part.index} was answered with error code {part.error_code}"
        )
    return part.base_offset


class Reader:
    """One connection that fetches one partition, a request at a time, its answers read into one buffer. It does not log
    in."""

    def __init__(self, broker: Broker) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (context := broker.security["tls"]) is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=broker.host)
        self._buffer = memoryview(bytearray(16 << 20))

    def close(self) -> None:
        self._socket.close()

    def fetch(self, topic: str, offset: int) -> memoryview:
        """The records that the broker has at `offset`; valid until the next fetch."""
        self._socket.sendall(fetch_frame(topic, 0, offset))
        (size,) = struct.unpack(">i", self._exactly(4))
        _, answer = decode_response(ApiKey.FETCH, FETCH_VERSION, self._exactly(size))
        (place,) = answer.responses
        (part,) = place.partitions
        if answer.error_code or part.error_code:
            raise BenchFailedError(f"raw fetch was answered with error code {answer.error_code or part.error_code}")
        return memoryview(part.records or b"")

    def _exactly(self, size: int) -> memoryview:
        got = 0
        while got < size:
            step = self._socket.recv_into(self._buffer[got:size])
            if not step:
                hung_up()
            got += step
        return self._buffer[:size]
