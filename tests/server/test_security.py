"""Real clients on listeners with TLS, certificates of clients, and SASL: who is let in, and as whom."""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.client import BrokerError, Client, ClientError
from ottla.client.connection import Connection
from ottla.client.sasl import Login, WrongLoginError, login_of
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import ScramClient
from ottla.server.main import ServerOptions
from ottla.testing.embedded import Running, run_in_thread
from tests.harness.certificates import Authority
from tests.harness.waiting import soon
from tests.server.test_connection import read_frame

HOST = "127.0.0.1"
PATIENCE_S = 30.0
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
PASSWORD = "lovelace, ada=1843"


@contextmanager
def running(directory: Path, names: list[str], **settings: str) -> Iterator[dict[str, str]]:
    """A node with a listener of each name; yields their addresses."""
    options = ServerOptions(
        directory=str(directory),
        listen=tuple(f"{name}://{HOST}:0" for name in names),
        settings={"group.initial.rebalance.delay.ms": "0", **settings},
    )
    node: Running = run_in_thread(options)
    try:
        yield {each.name: f"{each.host}:{each.port}" for each in node.server.listening}
    finally:
        node.loop.call_soon_threadsafe(node.stop.set)
        node.ended.result(PATIENCE_S)
        node.thread.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A node with every kind of listener. User ada has a password; topic `t` is there; only ada, who is a super user,
    and `CN=client` may touch it."""
    names = {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL", "MUTUAL": "SSL", "SASL_PLAINTEXT": "", "SASL_SSL": ""}
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol or name}" for name, protocol in names.items()),
        "ssl.keystore.location": str(authority.issue(HOST)),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.location": str(authority.file),
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),O=(.*)$/$1 of $2/U,DEFAULT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:ADA OF EXAMPLE;User:ada;User:ANONYMOUS",
    }
    with running(tmp_path_factory.mktemp("node"), list(names), **settings) as addresses:
        admin = AdminClient({"bootstrap.servers": addresses["PLAINTEXT"]})
        admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
        changes = [
            UserScramCredentialUpsertion("ada", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256,)
        ]
        for change in changes:
            admin.alter_user_scram_credentials([change])["ada"].result(PATIENCE_S)
        other = UserScramCredentialUpsertion(
            "ada", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([other])["ada"].result(PATIENCE_S)
        bob = UserScramCredentialUpsertion("bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"builder")
        admin.alter_user_scram_credentials([bob])["bob"].result(PATIENCE_S)
        yield addresses


def librdkafka(node: dict[str, str], listener: str, authority: Authority, **more: str) -> dict[str, Any]:
    protocol = "SSL" if listener == "MUTUAL" else listener
    found = {"bootstrap.servers": node[listener], "security.protocol": protocol, "log_level": 0}
    if protocol.endswith("SSL"):
        found["ssl.ca.location"] = str(authority.file)
    return found | {name.replace("_", "."): value for name, value in more.items()}


def login(mechanism: str, user: str = "ada", password: str = PASSWORD) -> dict[str, str]:
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}


def produced(properties: dict[str, Any], topic: str = "t") -> tuple[KafkaError | None, list[KafkaError]]:
    """The error of a record, and what the client was told before."""
    told: list[KafkaError] = []
    outcomes: list[KafkaError | None] = []
    producer = Producer({**properties, "error_cb": told.append, "message.timeout.ms": 1_500})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
    while not outcomes and KafkaError._AUTHENTICATION not in [error.code() for error in told]:
        producer.poll(PATIENCE_S)
    producer.purge()  # of one that is not let in: it would wait for the end of its time
    producer.flush(PATIENCE_S)
    (outcome,) = outcomes
    return outcome, told


# ---- who is let in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_produces_and_consumes(
    node: dict[str, str], authority: Authority, listener: str, mechanism: str
) -> None:
    more = login(mechanism) if listener.startswith("SASL") else {}
    properties = librdkafka(node, listener, authority, **more)
    assert produced(properties) == (None, [])
    consumer = Consumer({**properties, "group.id": f"{listener}-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found = consumer.poll(PATIENCE_S)
    assert found is not None
    assert (found.error(), found.value()) == (None, b"v")
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_produces_and_consumes(node: dict[str, str], authority: Authority, mechanism: str) -> None:
    properties: dict[str, Any] = {
        "bootstrap_servers": node["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.file),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**properties)
    producer.send("t", b"v", partition=0).get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer("t", auto_offset_reset="earliest", consumer_timeout_ms=30_000, **properties)
    assert next(consumer).value == b"v"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_produces_and_consumes(node: dict[str, str], authority: Authority, mechanism: str) -> None:
    properties: dict[str, Any] = {
        "bootstrap_servers": node["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(authority.file)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }

    async def both() -> Any:
        async with AIOKafkaProducer(**properties) as producer:
            await producer.send_and_wait("t", b"v", partition=0)
        async with AIOKafkaConsumer("t", auto_offset_reset="earliest", **properties) as consumer:
            return (await consumer.getone()).value

    assert asyncio.run(both()) == b"v"


def test_a_certificate_says_who_the_client_is(node: dict[str, str], authority: Authority) -> None:
    """By the rules: `CN=ada,O=example` is the super user ADA OF EXAMPLE; `CN=other` may do nothing."""
    for name, organization, outcome in (
        ("ada", "example", None),
        ("other", None, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ):
        pem = str(authority.issue(name, organization=organization))
        certified = {"ssl_certificate_location": pem, "ssl_key_location": pem}
        error, _ = produced(librdkafka(node, "MUTUAL", authority, **certified))
        assert (error and error.code()) == outcome


# ---- who is not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["ada", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    node: dict[str, str], authority: Authority, mechanism: str, user: str
) -> None:
    properties = librdkafka(node, "SASL_SSL", authority, **login(mechanism, user, "wrong"))
    outcome, told = produced(properties)
    assert outcome is not None
    assert told[0].code() == KafkaError._AUTHENTICATION
    assert f"due to invalid credentials with SASL mechanism {mechanism}" in told[0].str()


def test_a_user_without_rights_learns_nothing(node: dict[str, str], authority: Authority) -> None:
    properties = librdkafka(node, "SASL_SSL", authority, **login("SCRAM-SHA-256", "bob", "builder"))
    for topic in ("t", "there-is-none"):
        outcome, _ = produced(properties, topic)
        assert outcome is not None
        assert outcome.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert AdminClient(properties).list_topics(timeout=PATIENCE_S).topics == {}


def test_a_client_without_a_certificate_is_not_let_in(node: dict[str, str], authority: Authority) -> None:
    strange = Authority(authority.file.parent, "strange").issue("ada", organization="example")
    for certified in ({}, {"ssl_certificate_location": str(strange), "ssl_key_location": str(strange)}):
        outcome, told = produced(librdkafka(node, "MUTUAL", authority, **certified))
        assert outcome is not None
        assert told[0].code() in (KafkaError._SSL, KafkaError._TRANSPORT)


def test_a_client_that_does_not_authenticate_gets_nothing(node: dict[str, str]) -> None:
    """Metadata before the handshake: the connection is closed without an answer."""
    host, port = node["SASL_PLAINTEXT"].split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
        sock.sendall(encode_request(RequestHeader(3, 12, 7, "t"), MetadataRequest(None)))
        sock.settimeout(PATIENCE_S)
        assert sock.recv(1) == b""


# ---- before authentication -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01"])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SSL"])
def test_a_client_that_does_not_go_on_is_let_go(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str, says: bytes
) -> None:
    """The log of a node reports only one that has begun."""
    caplog.set_level(logging.DEBUG, "ottla.connection")
    certificate = {"ssl.keystore.location": str(authority.issue(HOST))} if listener == "SSL" else {}
    with running(tmp_path, [listener], **certificate, **{"ottla.authentication.timeout.ms": "300"}) as addresses:
        host, port = addresses[listener].split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
            sock.sendall(says)
            assert sock.recv(1) == b""
    (record,) = (each for each in caplog.records if "it has not authenticated within 0.3 s" in each.message)
    assert record.levelno == (logging.INFO if says else logging.DEBUG)


def test_a_long_request_of_a_stranger_is_refused_by_its_length(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No memory is set aside for it (CVE-2022-34917)."""
    caplog.set_level(logging.INFO, "ottla.connection")
    with running(tmp_path, ["SASL_PLAINTEXT"]) as addresses:
        host, port = addresses["SASL_PLAINTEXT"].split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
            sock.sendall((524_289).to_bytes(4, "big") + b"\0\x24\0\0")
            assert sock.recv(1) == b""
    assert "a request claims 524289 bytes, the limit is 524288" in caplog.text


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_without_a_header_are_served(node: dict[str, str], mechanism: str) -> None:
    """A handshake of version 0, as old clients send it (KIP-43)."""
    host, port = node["SASL_PLAINTEXT"].split(":")

    def exchange(token: bytes) -> bytes:
        sock.sendall(len(token).to_bytes(4, "big") + token)
        return read_frame(sock)

    for password in (PASSWORD, "wrong"):
        with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
            sock.sendall(encode_request(RequestHeader(17, 0, 7, "t"), SaslHandshakeRequest(mechanism)))
            assert read_frame(sock)[4:6] == b"\0\0"
            last = b"\0ada\0" + password.encode()
            if mechanism != "PLAIN":
                client = ScramClient(mechanism, "ada", password, "nonce")
                last = client.final(exchange(client.first()))
            sock.sendall(len(last).to_bytes(4, "big") + last)
            if password != PASSWORD:
                assert sock.recv(1) == b""
                continue
            read_frame(sock)
            sock.sendall(encode_request(RequestHeader(3, 12, 8, "t"), MetadataRequest(None)))
            assert read_frame(sock)[:4] == (8).to_bytes(4, "big")


def test_a_session_has_to_be_renewed_within_its_lifetime(tmp_path: Path, authority: Authority) -> None:
    """librdkafka re-authenticates before a session ends (KIP-368): it notices nothing."""
    settings = {"connections.max.reauth.ms": "1500"}
    with running(tmp_path, ["PLAINTEXT", "SASL_PLAINTEXT"], **settings) as node:
        admin = AdminClient({"bootstrap.servers": node["PLAINTEXT"]})
        admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("ada", info, PASSWORD.encode())])[
            "ada"
        ].result(PATIENCE_S)
        told: list[KafkaError] = []
        producer = Producer(
            {**librdkafka(node, "SASL_PLAINTEXT", authority, **login("SCRAM-SHA-256")), "error_cb": told.append}
        )
        outcomes: list[KafkaError | None] = []
        until = time.monotonic() + 4
        while time.monotonic() < until:
            producer.produce("t", b"v", on_delivery=lambda error, _: outcomes.append(error))
            assert producer.flush(PATIENCE_S) == 0
            producer.poll(0.05)
        assert len(outcomes) > 10
        assert set(outcomes) == {None}
        assert told == []


def test_a_new_certificate_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The authorities are this test's own: the other node of this file reads what its own one has issued."""
    monkeypatch.setattr("ottla.server.main.RELOAD_S", 0.05)
    caplog.set_level(logging.INFO, "ottla.server")
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    pem = tmp_path / "node.pem"
    pem.write_bytes(authority.issue(HOST).read_bytes())

    def presented() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = node["SSL"].split(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as sock,
            context.wrap_socket(sock) as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""

    def await_log(text: str) -> None:
        soon(lambda: text in caplog.text, lambda: caplog.text)

    with running(tmp_path / "data", ["SSL"], **{"ssl.keystore.location": str(pem)}) as node:
        first = presented()
        pem.write_text("nonsense")
        await_log("The old certificate stays in force.")
        assert presented() == first
        pem.write_bytes(other.issue(HOST).read_bytes())
        await_log("the listener SSL uses a new certificate")
        assert presented() != first


# ---- Ottla's own client --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ottlas_client_authenticates(node: dict[str, str], authority: Authority, listener: str, mechanism: str) -> None:
    tls = ssl.create_default_context(cafile=str(authority.file)) if listener == "SASL_SSL" else None
    with Client(node[listener], tls=tls, login=Login(mechanism, "ada", PASSWORD)) as client:
        assert [topic.name for topic in client.metadata(["t"]).topics] == ["t"]
    with (
        pytest.raises(BrokerError, match="due to invalid credentials"),
        Client(node[listener], tls=tls, login=Login(mechanism, "ada", "wrong")) as client,
    ):
        client.metadata(["t"])


def test_ottlas_client_renews_its_session(tmp_path: Path) -> None:
    settings = {"connections.max.reauth.ms": "1200"}
    with running(tmp_path, ["PLAINTEXT", "SASL_PLAINTEXT"], **settings) as node:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("ada", info, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": node["PLAINTEXT"]})
        admin.alter_user_scram_credentials([change])["ada"].result(PATIENCE_S)
        host, port = node["SASL_PLAINTEXT"].split(":")
        with Connection(host, int(port), login=Login("SCRAM-SHA-256", "ada", PASSWORD)) as connection:
            sessions: set[float] = set()

            def has_three() -> bool:
                assert connection.send(MetadataRequest(None)).brokers
                sessions.add(connection._renew_at)
                return len(sessions) == 3

            soon(has_three)


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(node: dict[str, str], tmp_path: Path) -> None:
    with (
        running(tmp_path, ["SASL_PLAINTEXT"]) as other,
        pytest.raises(ClientError, match="does not take PLAIN: it takes SCRAM-SHA-512, SCRAM-SHA-256"),
        Client(other["SASL_PLAINTEXT"], login=Login("PLAIN", "ada", PASSWORD)) as client,
    ):
        client.metadata([])


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ada", "sasl.password": 'a"b'},
        {"sasl.mechanisms": "scram-sha-512", "sasl.username": "ada", "sasl.password": 'a"b'},
        {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="ada" password="a\\"b";',
        },
    ],
)
def test_a_login_is_read_from_librdkafkas_and_javas_properties(given: dict[str, str]) -> None:
    assert login_of({"security.protocol": "sasl_ssl", **given}) == Login("SCRAM-SHA-512", "ada", 'a"b')
    assert login_of(given) is None, "without SASL there is none"
    assert "a" not in repr(Login("PLAIN", "u", "aaa")).replace("Login(mechanism='PLAIN', user='u')", "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "sasl.mechanism is missing"),
        ({"sasl.mechanism": "GSSAPI"}, "not 'GSSAPI'"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "com.example.Login required;"}, "ScramLoginModule"),
    ],
)
def test_a_login_that_can_not_be_used_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongLoginError, match=says):
        login_of({"security.protocol": "SASL_SSL", **given})
