"""A stranger with a valid certificate or token may do nothing, unless the operator has said otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client import Client
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.metadata.credentials import credential_of, key_of
from ottla.metadata.store import Put
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.server.main import ServerOptions
from ottla.server.refusals import SettingsRefusedError
from ottla.server.standalone_metadata import open_own
from ottla.testing.embedded import run_in_thread
from tests.harness.certificates import Authority
from tests.harness.tokens import AUDIENCE, ISSUER, Issuer
from tests.server.test_security import running

HOST = "127.0.0.1"
MUTUAL, TOKENS = "mutual TLS", "tokens"
Connect = Callable[[str], Client]


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def known(tmp_path: Path, authority: Authority, issuer: Issuer) -> dict[str, tuple[str, dict[str, str], Connect]]:
    """By way to log in: the listener, its settings, and how the stranger connects."""
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set)
    certified = ClientSetUp("", str(authority.file), str(authority.issue("stranger"))).context()
    mutual = {
        "ssl.keystore.location": str(authority.issue(HOST)),
        "ssl.truststore.location": str(authority.file),
        "ssl.client.auth": "required",
    }
    tokens = {
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    login = Login("OAUTHBEARER", tokens=lambda: issuer.token(sub="stranger"))
    return {
        MUTUAL: ("SSL", mutual, lambda address: Client(address, tls=certified)),
        TOKENS: ("SASL_PLAINTEXT", tokens, lambda address: Client(address, login=login)),
    }


def may_create(connect: Connect, address: str) -> bool:
    with connect(address) as client:
        (result,) = client.send(CreateTopicsRequest([CreatableTopic("t", 1, 1)])).topics
    assert result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED), result
    return result.error_code == ErrorCode.NONE


@pytest.mark.parametrize("way", [MUTUAL, TOKENS])
def test_the_operator_decides_what_a_stranger_may_do(tmp_path: Path, known: dict[str, Any], way: str) -> None:
    listener, settings, connect = known[way]
    directory = tmp_path / "data"
    options = ServerOptions(str(directory), (f"{listener}://{HOST}:0",), settings)
    with pytest.raises(SettingsRefusedError, match=rf"could do everything on the listener {listener}\."):
        run_in_thread(options)
    for decided, allowed in (({AUTHORIZER: ""}, True), ({AUTHORIZER: AUTHORIZERS[0]}, False)):
        with running(directory / str(allowed), [listener], **settings, **decided) as addresses:
            assert may_create(connect, addresses[listener]) is allowed


def test_a_node_with_users_has_acls_for_strangers_too(tmp_path: Path, known: dict[str, Any]) -> None:
    listener, settings, connect = known[TOKENS]
    (tmp_path / "data").mkdir()
    store = open_own(str(tmp_path / "data"))
    store.commit([Put(key_of("ada", "SCRAM-SHA-512"), credential_of("SCRAM-SHA-512", "secret", 4096).encode())])
    store.close()
    with running(tmp_path / "data", [listener], **settings) as addresses:
        assert not may_create(connect, addresses[listener])


def test_the_listener_between_nodes_asks_for_no_decision(tmp_path: Path, known: dict[str, Any]) -> None:
    """The other nodes may do everything anyway, and clients have the other listener."""
    _, mutual, _ = known[MUTUAL]
    settings = {**mutual, "listener.security.protocol.map": "NODES:SSL,PLAINTEXT:PLAINTEXT"}
    settings |= {"inter.broker.listener.name": "NODES", "ottla.cluster.watchdog": "false"}
    options = ServerOptions(
        str(tmp_path / "1"),
        (f"PLAINTEXT://{HOST}:0", f"NODES://{HOST}:0"),
        settings,
        metadata=str(tmp_path / "metadata.sqlite"),
    )
    node = run_in_thread(options)
    node.loop.call_soon_threadsafe(node.stop.set)
    node.ended.result(30)
    node.thread.join()
