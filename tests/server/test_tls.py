"""Connections over TLS: everything that a plain connection does, clients of other projects, and broken handshakes."""

import contextlib
import gc
import logging
import os
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from ottla.broker.config.values import BrokerSettings
from ottla.client import Client
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.server.tls import Tls, TlsTransport
from ottla.server.tls_settings import TlsSettings
from ottla.testing import EmbeddedBroker
from tests.harness.certificates import Authority
from tests.harness.waiting import soon
from tests.server.test_connection import (
    correlation_of,
    fetch_frame,
    is_closed,
    produce_frame,
    read_frame,
    values_in,
    versions_frame,
)

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Secured:
    """A broker whose only listener speaks TLS."""

    broker: EmbeddedBroker
    certificate: Path

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def plain(self) -> socket.socket:
        sock = socket.create_connection((HOST, self.broker.port), 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        return (context or self.context()).wrap_socket(self.plain(), server_hostname=HOST)

    def client(self) -> Client:
        return Client(f"{HOST}:{self.broker.port}", tls=self.context(), timeout_s=30)

    def create_topic(self, **configs: str) -> str:
        name = f"t-{uuid4().hex[:8]}"
        given = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        with self.client() as client:
            topic = CreatableTopic(name, 1, -1, configs=given)
            (answer,) = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics
        assert not answer.error_code
        return name


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


def with_tls(authority: Authority) -> dict[str, object]:
    """The settings of a broker whose listener speaks TLS."""
    return {"listener.security.protocol.map": "PLAINTEXT:SSL", "ssl.keystore.location": str(authority.issue(HOST))}


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Secured]:
    with EmbeddedBroker(settings={"connections.max.idle.ms": 3_600_000, **with_tls(authority)}) as broker:
        yield Secured(broker, authority.file)


@pytest.fixture
def raw(secured: Secured) -> Iterator[ssl.SSLSocket]:
    with secured.connect() as sock:
        yield sock


# ---- clients of other projects -------------------------------------------------------------------------------------


def test_librdkafka_produces_and_consumes(secured: Secured) -> None:
    properties = {
        "bootstrap.servers": f"{HOST}:{secured.broker.port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.certificate),
    }
    topic, values = secured.create_topic(), [b"%d" % number * 1_000 for number in range(200)]
    producer = Producer(properties)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({**properties, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    give_up = time.monotonic() + 60
    while len(found) < len(values) and time.monotonic() < give_up:
        found += [message.value() for message in consumer.consume(100, 1) if not message.error()]
    consumer.close()
    assert found == values


def test_kafka_python_produces_and_consumes(secured: Secured) -> None:
    properties: dict[str, Any] = {
        "bootstrap_servers": f"{HOST}:{secured.broker.port}",
        "security_protocol": "SSL",
        "ssl_cafile": str(secured.certificate),
    }
    topic = secured.create_topic()
    producer = KafkaProducer(**properties)
    for number in range(10):
        producer.send(topic, b"%d" % number, partition=0).get(30)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **properties)
    assert [next(consumer).value for _ in range(10)] == [b"%d" % number for number in range(10)]
    consumer.close()


# ---- bytes in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(secured: Secured, version: ssl.TLSVersion) -> None:
    context = secured.context()
    context.minimum_version = context.maximum_version = version
    with secured.connect(context) as sock:
        assert sock.version() == version.name.replace("v1_", "v1.")
        sock.sendall(versions_frame(9))
        assert correlation_of(read_frame(sock)) == 9


def test_ciphertext_may_come_byte_by_byte(secured: Secured) -> None:
    """The handshake and a request, through a client that has no socket of its own."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = secured.context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with secured.plain() as sock:

        def until_done(step: Any) -> Any:
            while True:
                try:
                    done = step()
                except ssl.SSLWantReadError:
                    done = None
                for octet in outgoing.read():
                    sock.sendall(bytes([octet]))
                if done is not None:
                    return done
                incoming.write(sock.recv(1 << 16))

        until_done(lambda: tls.do_handshake() or True)
        tls.write(versions_frame(3))
        answer = until_done(lambda: tls.read(1 << 16))
        assert struct.unpack_from(">i", answer, 4)[0] == 3


def until_read(secured: Secured) -> None:
    """Wait until the node has read what was sent to it before: another connection is answered, and then served again,
    which it is in a later turn of the node's loop."""
    with secured.connect() as other:
        for number in range(2):
            other.sendall(versions_frame(number))
            read_frame(other)


def test_many_frames_in_one_record_are_answered_in_order(raw: ssl.SSLSocket) -> None:
    raw.sendall(b"".join(versions_frame(number) for number in range(100)))
    assert [correlation_of(read_frame(raw)) for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("cut", [3, 100_000, 3_999_999])
def test_a_large_frame_may_come_in_any_two_pieces(secured: Secured, raw: ssl.SSLSocket, cut: int) -> None:
    topic = secured.create_topic(max_message_bytes="10000000")
    value = os.urandom(4_000_000)
    frame = produce_frame(1, topic, [value]) + versions_frame(2)
    raw.sendall(frame[:cut])
    until_read(secured)
    raw.sendall(frame[cut:])
    assert [correlation_of(read_frame(raw)) for _ in range(2)] == [1, 2]
    raw.sendall(fetch_frame(3, topic, 0, max_bytes=8_000_000))
    assert values_in(read_frame(raw)) == [value]


def test_frames_that_waited_for_an_answer_are_served_after_it(secured: Secured, raw: ssl.SSLSocket) -> None:
    """While the fetch waits, the connection is not read: what TLS has already decrypted must not be forgotten."""
    topic = secured.create_topic()
    raw.sendall(fetch_frame(1, topic, 0, wait_ms=300) + b"".join(versions_frame(n) for n in range(2, 3_000)))
    assert [correlation_of(read_frame(raw)) for _ in range(1, 3_000)] == list(range(1, 3_000))


# ---- answers out ---------------------------------------------------------------------------------------------------


def test_a_slow_reader_gets_everything_and_others_are_served_meanwhile(secured: Secured) -> None:
    topic = secured.create_topic(max_message_bytes="2000000")
    sent = [os.urandom(1_000_000) for _ in range(8)]
    with secured.connect() as slow, secured.connect() as other:
        for number, value in enumerate(sent):
            other.sendall(produce_frame(number, topic, [value]))
            assert correlation_of(read_frame(other)) == number
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.sendall(b"".join(fetch_frame(number, topic, 0, max_bytes=30_000_000) for number in range(5)))
        for number in range(20):
            other.sendall(versions_frame(number))
            assert correlation_of(read_frame(other)) == number
        for number in range(5):
            frame = read_frame(slow)
            assert correlation_of(frame) == number
            assert values_in(frame) == sent


def test_a_client_that_ends_tls_is_let_go(secured: Secured) -> None:
    sock = secured.connect()
    sock.sendall(versions_frame(1))
    read_frame(sock)
    with sock.unwrap() as plain:  # waits for the node's own end
        assert is_closed(plain)


def test_a_closed_connection_is_freed_without_a_garbage_collection(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of OpenSSL it has 20 KiB, of which the collector knows nothing."""
    opened: list[weakref.ref[TlsTransport]] = []
    begin = TlsTransport.__init__

    def noted(self: TlsTransport, *args: Any) -> None:
        begin(self, *args)
        opened.append(weakref.ref(self))

    monkeypatch.setattr(TlsTransport, "__init__", noted)
    gc.disable()
    try:
        with secured.connect() as sock:
            sock.sendall(versions_frame(1))
            read_frame(sock)
        soon(lambda: opened[0]() is None)
    finally:
        gc.enable()


# ---- handshakes that fail ------------------------------------------------------------------------------------------


def test_a_client_without_tls_is_refused_and_the_log_says_why(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.connection")
    with secured.plain() as sock:
        sock.sendall(versions_frame(1))
        while sock.recv(100):  # an alert
            pass
    assert "TLS fails" in caplog.text


def test_a_client_that_does_not_trust_the_certificate_is_let_go(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.connection")
    with pytest.raises(ssl.SSLCertVerificationError), secured.plain() as sock:
        ssl.create_default_context().wrap_socket(sock, server_hostname=HOST)
    with secured.connect() as another:
        another.sendall(versions_frame(1))
        read_frame(another)
    assert "TLS fails" in caplog.text


def test_a_connection_counts_before_its_handshake_and_is_closed_when_idle(authority: Authority) -> None:
    settings = {"max.connections.per.ip": 1, "connections.max.idle.ms": 1_000, **with_tls(authority)}
    with EmbeddedBroker(settings=settings) as broker:
        secured = Secured(broker, authority.file)
        with secured.plain() as silent:
            with secured.plain() as one_too_many:
                assert is_closed(one_too_many)
            assert is_closed(silent)


# ---- order ---------------------------------------------------------------------------------------------------------


class Stream:
    """An event loop's transport whose queue does not leave, over a socket that accepts everything."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.queued = b""

    def get_extra_info(self, name: str) -> Any:
        return self.sock if name == "socket" else (HOST, 1)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return len(self.queued)

    def write(self, octets: bytes) -> None:
        self.queued += octets

    def pause_reading(self) -> None: ...

    resume_reading = close = abort = pause_reading


class Nothing:
    """A receiver that the node has not admitted."""

    def opened(self, transport: object) -> None: ...

    def shakes_hands(self) -> None: ...

    def secured(self, certificate: object, binding: object) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(100))


def test_nothing_overtakes_the_queue(authority: Authority) -> None:
    """The socket may have room before the loop has sent the queue: ciphertext out of order ends the connection."""
    given = {"ssl.keystore.location": str(authority.issue(HOST))}
    tls = Tls(TlsSettings(BrokerSettings.load(given), "SSL"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(authority.file)).wrap_bio(incoming, outgoing, server_hostname=HOST)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream, transport = Stream(ours), TlsTransport(tls, cast(Any, Nothing()))
        transport.connection_made(cast(Any, stream))
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        for _ in range(2):
            hello = outgoing.read()
            transport.get_buffer(-1)[: len(hello)] = hello
            transport.buffer_updated(len(hello))
            incoming.write(theirs.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
        assert transport.write([b"one ", b"two "]) == 8
        stream.queued = b"x"
        with pytest.raises(BlockingIOError):
            transport.write([b"never"])
        transport.queue(b"three")
        assert len(stream.queued) > 1
        incoming.write(theirs.recv(1 << 16) + stream.queued[1:])
        assert client.read(100) + client.read(100) == b"one two three"
