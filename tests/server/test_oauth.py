"""Real clients that log in by OAUTHBEARER, and how a node gets the keys that check their tokens."""

import asyncio
import logging
import pickle
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from ottla.broker.config.values import BrokerSettings
from ottla.cli.connection import Cluster, TokensForLibrdkafka, client_properties, own_clients
from ottla.cli.output import CommandError
from ottla.client import BrokerError, Client, ClientError
from ottla.client.connection import Connection
from ottla.client.oauth import ClientCredentials, TokenFile
from ottla.client.sasl import Login, WrongLoginError, login_of
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.server.refusals import SettingsRefusedError
from ottla.server.token_keys import TokenKeys
from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.platform.client_properties import client_properties as spark_properties
from tests.harness.certificates import Authority
from tests.harness.tokens import AUDIENCE, ISSUER, SECRET, Endpoints, Issuer, serving
from tests.harness.waiting import soon, soon_in_loop
from tests.server.test_security import HOST, PATIENCE_S, produced, running

JWKS = "sasl.oauthbearer.jwks.endpoint.url"


def settings_of(url: str, **more: str) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        JWKS: url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": "",
        **more,
    }


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def endpoints(issuer: Issuer) -> Iterator[Endpoints]:
    with serving(issuer) as started:
        yield started


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def node(issuer: Issuer, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A node whose keys are in a file, with Kafka's names for a listener's mechanism."""
    folder = tmp_path_factory.mktemp("oauth")
    (folder / "keys.json").write_bytes(issuer.key_set)
    settings = settings_of(
        "https://unused.example/keys",
        **{
            "ssl.keystore.location": str(authority.issue(HOST)),
            f"listener.name.sasl_ssl.oauthbearer.{JWKS}": f"file://{folder}/keys.json",
            f"listener.name.sasl_plaintext.oauthbearer.{JWKS}": f"file://{folder}/keys.json",
            "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;"
            ),
        },
    )
    with running(folder / "data", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"], **settings) as addresses:
        admin = AdminClient({"bootstrap.servers": addresses["PLAINTEXT"]})
        admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
        yield addresses


# ---- librdkafka ----------------------------------------------------------------------------------------------------


def rdkafka(node: dict[str, str], listener: str, authority: Authority, **more: Any) -> dict[str, Any]:
    found = {"bootstrap.servers": node[listener], "security.protocol": listener, "log_level": 0}
    return {**found, "sasl.mechanisms": "OAUTHBEARER", "ssl.ca.location": str(authority.file), **more}


def from_callback(token: str) -> dict[str, Any]:
    return {"oauth_cb": lambda _: (token, time.time() + 300)}


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_by_a_callback(node: dict[str, str], issuer: Issuer, authority: Authority, listener: str) -> None:
    properties = rdkafka(node, listener, authority, **from_callback(issuer.token()))
    assert produced(properties) == (None, [])
    consumer = Consumer({**properties, "group.id": f"g-{listener}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    until = time.monotonic() + PATIENCE_S
    while (record := consumer.poll(0.5)) is None:
        assert time.monotonic() < until
    assert record.value() == b"v"
    consumer.close()


def test_librdkafka_by_its_own_client_credentials(
    node: dict[str, str], authority: Authority, endpoints: Endpoints
) -> None:
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "billing",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"{endpoints.url}/token",
    }
    assert produced(rdkafka(node, "SASL_SSL", authority, **oidc)) == (None, [])


def test_librdkafka_with_another_token_gets_nothing(node: dict[str, str], issuer: Issuer, authority: Authority) -> None:
    for token in (issuer.token(aud="other"), Issuer().token(), issuer.token(exp=int(time.time()) - 60)):
        outcome, told = produced(rdkafka(node, "SASL_PLAINTEXT", authority, **from_callback(token)))
        assert outcome is not None
        assert KafkaError._AUTHENTICATION in {each.code() for each in told}


def test_librdkafka_renews_its_session_before_its_token_expires(
    node: dict[str, str], issuer: Issuer, authority: Authority
) -> None:
    """KIP-368: it authenticates again while its connection is open, and notices nothing. It asks for a token often, so
    that it has a new one by then."""

    def renewed(_: str) -> tuple[str, float]:
        now = time.time()
        return issuer.token(exp=int(now) + 5), now + 1

    told: list[KafkaError] = []
    producer = Producer({**rdkafka(node, "SASL_PLAINTEXT", authority), "oauth_cb": renewed, "error_cb": told.append})
    outcomes: list[KafkaError | None] = []
    until = time.monotonic() + 7  # later than the expiry of the first token
    while time.monotonic() < until:
        producer.produce("t", b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(PATIENCE_S) == 0
        producer.poll(0.1)
    assert len(outcomes) > 10
    assert set(outcomes) == {None}
    assert told == []


# ---- the clients in Python -----------------------------------------------------------------------------------------


class Provider(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AsyncProvider(AsyncTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def test_kafka_python(node: dict[str, str], issuer: Issuer, authority: Authority) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": node["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.file),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(issuer.token()),
    }
    producer = KafkaProducer(**settings)
    assert producer.send("t", b"from kafka-python").get(PATIENCE_S).topic == "t"
    producer.close()
    consumer = KafkaConsumer("t", auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings)
    assert next(iter(consumer)).topic == "t"
    consumer.close()


async def test_aiokafka(node: dict[str, str], issuer: Issuer, authority: Authority) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": node["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(authority.file)),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": AsyncProvider(issuer.token()),
    }
    async with AIOKafkaProducer(**settings) as producer:
        assert (await producer.send_and_wait("t", b"from aiokafka")).topic == "t"
    async with AIOKafkaConsumer("t", auto_offset_reset="earliest", **settings) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).topic == "t"


# ---- Ottla's own client --------------------------------------------------------------------------------------------


def test_ottlas_client(node: dict[str, str], issuer: Issuer, endpoints: Endpoints, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{issuer.token()}\n")
    url = f"{endpoints.url}/token"
    for tokens in (issuer.token, TokenFile(str(file)), ClientCredentials(url, "billing", SECRET, "read write")):
        with Client(node["SASL_PLAINTEXT"], login=Login("OAUTHBEARER", tokens=tokens)) as client:
            assert [topic.name for topic in client.metadata(["t"]).topics] == ["t"]
    with (
        pytest.raises(BrokerError, match="due to invalid credentials"),
        Client(node["SASL_PLAINTEXT"], login=Login("OAUTHBEARER", tokens=lambda: issuer.token(iss="x"))) as client,
    ):
        client.metadata(["t"])
    asked = len(endpoints.asked)
    for _ in range(3):
        ClientCredentials(url, "billing", SECRET, "read write")()
    assert len(endpoints.asked) == asked, "tokens are kept"


def test_ottlas_client_renews_its_session(node: dict[str, str], issuer: Issuer) -> None:
    given: list[str] = []

    def renewed() -> str:
        given.append(issuer.token(exp=int(time.time()) + 3))
        return given[-1]

    host, port = node["SASL_PLAINTEXT"].split(":")
    with Connection(host, int(port), login=Login("OAUTHBEARER", tokens=renewed)) as connection:
        soon(lambda: connection.send(MetadataRequest([])).brokers and len(given) == 3)


def test_commands_give_librdkafka_the_tokens_of_files_and_of_kafkas_names(
    node: dict[str, str], issuer: Issuer, endpoints: Endpoints, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token())
    common = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"]
    kafkas = [
        f"sasl.oauthbearer.token.endpoint.url={endpoints.url}/token",
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="billing" clientSecret="{SECRET}" scope="read";',
        "sasl.login.callback.handler.class="
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    ]
    for given in ([f"sasl.oauthbearer.token.endpoint.url=file://{file}"], kafkas):
        properties = client_properties(Cluster(node["SASL_PLAINTEXT"], None, [*common, *given]))
        assert isinstance(properties["oauth_cb"], TokensForLibrdkafka)
        assert SECRET not in repr(properties)
        assert "t" in AdminClient(properties).list_topics(timeout=PATIENCE_S).topics
        assert produced(properties) == (None, [])
        with own_clients(properties)() as client:
            assert client.metadata(["t"]).topics
    with pytest.raises(CommandError, match="OAUTHBEARER needs"):
        client_properties(Cluster(node["SASL_PLAINTEXT"], None, common))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://issuer.example/token"}, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://issuer.example/token"}, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://user@issuer.example/token"}, "user"),
        ({"sasl.oauthbearer.token.endpoint.url": "file://host/token"}, "file:///PATH"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token"}, "client.id"),
        (
            {
                "sasl.oauthbearer.token.endpoint.url": "file:///token",
                "sasl.login.callback.handler.class": "com.example.Handler",
            },
            "OAuthBearerLoginCallbackHandler",
        ),
    ],
)
def test_a_login_without_usable_tokens_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongLoginError, match=says):
        login_of({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **given})


def test_a_file_or_an_answer_that_is_no_token_never_leaves_the_machine(tmp_path: Path, endpoints: Endpoints) -> None:
    """A property that names another file, or another server, must not send what is there (CVE-2025-27817)."""
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n")
    with pytest.raises(ClientError, match="does not hold a token") as failed:
        TokenFile(str(file))()
    assert "root" not in str(failed.value).replace(str(file), "")
    with pytest.raises(ClientError, match="cannot be read"):
        TokenFile(str(tmp_path / "none"))()
    wrong = ClientCredentials(f"{endpoints.url}/token", "billing", "hush")
    assert "hush" not in repr(wrong)
    with pytest.raises(ClientError, match="HTTP status 401"):
        wrong()
    try:
        for endpoints.body in (b"<html>secret</html>", b'{"access_token": "a b"}', b"[]", b"x" * 300_000):
            with pytest.raises(ClientError) as failed:
                ClientCredentials(f"{endpoints.url}/token", "billing", SECRET, "again")()
            assert "secret" not in str(failed.value)
        endpoints.body, endpoints.status, endpoints.location = None, 302, "file:///etc/passwd"
        with pytest.raises(ClientError, match="HTTP status 302"):
            ClientCredentials(f"{endpoints.url}/token", "billing", SECRET, "again")()
    finally:
        endpoints.body, endpoints.status, endpoints.location = None, 200, None


def test_spark_takes_the_same_properties() -> None:
    given = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
        "kafka.sasl.oauthbearer.client.credentials.client.id": "spark",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": "hush",
    }
    properties = spark_properties(given)
    assert properties.login is not None
    assert properties.login.tokens == ClientCredentials("https://issuer.example/token", "spark", "hush")
    assert pickle.loads(pickle.dumps(properties)) == properties
    assert hash(properties)
    assert "hush" not in repr(properties)
    with pytest.raises(WrongOptionError, match=r"client\.id"):
        spark_properties({name: value for name, value in given.items() if "credentials" not in name})


# ---- where the keys come from --------------------------------------------------------------------------------------


def can_log_in(node: dict[str, str], token: str) -> bool:
    try:
        with Client(node["SASL_PLAINTEXT"], login=Login("OAUTHBEARER", tokens=lambda: token)) as client:
            client.metadata([])
    except BrokerError:
        return False
    return True


def test_keys_are_fetched_again_for_an_unknown_one_and_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.server.token_keys.EXPEDITED_S", 0.0)
    caplog.set_level(logging.INFO, "ottla.server")
    old, new = Issuer("old"), Issuer("new")
    with serving(old) as endpoints:
        endpoints.status = 500
        settings = settings_of(
            f"{endpoints.url}/keys", **{"sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "200"}
        )
        with running(tmp_path, ["SASL_PLAINTEXT"], **settings) as node:
            soon(lambda: len(endpoints.asked) > 2)
            assert not can_log_in(node, old.token()), "no keys, no login"
            assert caplog.text.count("can't be renewed: 127.0.0.1: HTTP status 500") == 1
            endpoints.status = 200
            soon(lambda: can_log_in(node, old.token()))
            endpoints.issuer = new
            soon(lambda: can_log_in(node, new.token()))
            assert not can_log_in(node, old.token()), "the old key is gone"
            endpoints.body = b"{}"
            asked = len(endpoints.asked)
            assert not can_log_in(node, Issuer("third").token())
            soon(lambda: len(endpoints.asked) > asked)
            assert can_log_in(node, new.token()), "keys that can't be used replace nothing"


async def test_unknown_keys_are_fetched_at_most_every_ten_seconds_and_stale_ones_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer()
    with serving(issuer) as endpoints:
        settings = BrokerSettings.load(settings_of(f"{endpoints.url}/keys"))
        given: list[Any] = []
        keys = TokenKeys(settings, "EXTERNAL", lambda _, found: given.append(found))
        keys.start()
        await soon_in_loop(lambda: len(given) == 1)
        for _ in range(100):
            keys.wanted()
        assert not keys._is_fetching
        assert len(endpoints.asked) == 1
        endpoints.status = 503
        monkeypatch.setattr("ottla.server.token_keys.EXPEDITED_S", 0.0)
        monkeypatch.setattr("ottla.server.token_keys.STALE_REFRESHES", 0)
        keys.wanted()
        await soon_in_loop(lambda: len(given) == 2)
        assert (bool(given[0]), bool(given[1])) == (True, False)
        keys.stop()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({JWKS: ""}, "needs sasl.oauthbearer.jwks.endpoint.url"),
        ({JWKS: "http://issuer.example/keys"}, "https://"),
        ({JWKS: "ftp://issuer.example/keys"}, "https://"),
        ({JWKS: "https://user:hush@issuer.example/keys"}, "neither a user"),
        ({JWKS: "file://keys.json"}, "file:///PATH"),
        ({JWKS: "file:///no/such/file"}, "can't be read"),
        ({JWKS: "file:///dev/zero"}, "is not a file"),
        ({JWKS: "file:///etc/passwd"}, "it is not JSON"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience"),
        ({"sasl.jaas.config": 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";'}, "would protect"),
        ({"sasl.server.callback.handler.class": "com.example.Handler"}, "would protect"),
    ],
)
def test_settings_by_which_tokens_could_not_be_checked_stop_the_start(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    with (
        pytest.raises(SettingsRefusedError, match=says) as refused,
        running(tmp_path, ["SASL_PLAINTEXT"], **settings_of("https://issuer.example/keys", **settings)),
    ):
        pass
    assert "hush" not in str(refused.value)


def test_a_client_can_not_change_where_the_keys_come_from(node: dict[str, str]) -> None:
    """CVE-2025-27817, CVE-2025-27818: neither URLs nor login modules can be set by requests."""
    admin = AdminClient({"bootstrap.servers": node["PLAINTEXT"]})
    for name, value in (
        (JWKS, "file:///etc/passwd"),
        ("sasl.oauthbearer.expected.issuer", "x"),
        (
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config",
            "com.sun.security.auth.module.JndiLoginModule required;",
        ),
    ):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        with pytest.raises(Exception, match=r"INVALID|Invalid|Cannot update|protect"):
            admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
