"""Settings that promise protection stop the start, and what promises nothing passes."""

import json
from pathlib import Path

import pytest

from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.key import printed
from ottla.broker.config.unserved import AUTHORIZERS, is_protective, why_unserved
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError, super_users_of
from ottla.metadata.store import Put
from ottla.server.listeners import SettingsRefusedError
from ottla.testing import EmbeddedBroker, ServeRefusedError
from tests.harness.node_stage import NodeStage

from test_admin_configs import BROKER, DELETE, SET, change, replace  # isort: skip

INVALID_REQUEST = 42
MECHANISM = "sasl.enabled.mechanisms"
PROMISES = [
    ("authorizer.class.name", "org.example.Authorizer"),
    ("super.users", "User:admin"),
    ("allow.everyone.if.no.acl.found", "false"),
    (MECHANISM, "GSSAPI"),
    (MECHANISM, "SCRAM-SHA-512,OAUTHBEARER,GSSAPI"),
    ("sasl.oauthbearer.jwt.validator.class", "org.example.Validator"),
    ("sasl.server.callback.handler.class", "org.example.Handler"),
    ("listener.name.external.oauthbearer.sasl.jaas.config", "OAuthBearerLoginModule required hush=1;"),
    ("sasl.jaas.config", "hush"),
    ("sasl.kerberos.service.name", "kafka"),
    ("ssl.keystore.password", "hush"),
    ("ssl.unheard.of", "1"),
    ("sasl.mechanism.inter.broker.protocol", "SCRAM-SHA-512"),
    ("security.providers", "org.example.Provider"),
    ("principal.builder.class", "org.example.Builder"),
    ("listener.name.external.scram-sha-512.sasl.jaas.config", "hush"),
    ("listener.name.external.principal.builder.class", "org.example.Builder"),
    ("delegation.token.secret.key", "hush"),
    ("zookeeper.ssl.ocsp.enable", "true"),
    ("zookeeper.ssl.keystore.password", "hush"),
    ("create.topic.policy.class.name", "org.example.Policy"),
    ("client.quota.callback.class", "org.example.Quotas"),
]
PROMISE_NOTHING = {
    "authorizer.class.name": " ",
    "super.users": "",
    "allow.everyone.if.no.acl.found": "true",
    MECHANISM: "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
    "listener.name.external.oauthbearer.sasl.oauthbearer.expected.issuer": "https://issuer.example",
    "listener.name.external.oauthbearer.sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    ),
    "ssl.client.auth": "required",
    "ssl.keystore.location": "/node.pem",
    "listener.name.external.ssl.client.auth": "required",
    "connections.max.reauth.ms": "3600000",
    "sasl.login.refresh.window.factor": "0.7",
    "sasl.kerberos.min.time.before.relogin": "58000",
    "ssl.keystore.type": "JKS",
    "ssl.endpoint.identification.algorithm": "",
    "security.inter.broker.protocol": "SASL_SSL",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI",
    "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    "listener.name.external.max.connections": "10",
    "listener.name.external.sasl.login.retry.backoff.ms": "10",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CTL://127.0.0.1:9093",
    "controller.listener.names": "ctl",
    "listener.security.protocol.map": "CTL:SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
    "inter.broker.listener.name": "PLAINTEXT",
}


@pytest.mark.parametrize(("name", "value"), PROMISES)
def test_a_setting_that_promises_protection_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigRefusedError) as refused:
        BrokerSettings.load({name: value})
    said = str(refused.value)
    assert name in said or value.rpartition(" ")[2] in said or value == "SSL" or name.endswith("map")
    assert "hush" not in said


def test_one_sentence_names_all_of_them() -> None:
    said = why_unserved({name: "hush" for name in ("sasl.jaas.config", "ssl.keystore.password", "ssl.unheard.of")})
    assert said == (
        "sasl.jaas.config, ssl.keystore.password and ssl.unheard.of would protect nothing: Ottla does not serve them, "
        "and a node without them is open to every client that can reach it. Remove these settings only if you accept "
        "that."
    )


def test_settings_of_acls_need_an_authorizer() -> None:
    of_acls = {"super.users": "User:admin;User:CN=a,O=b", "allow.everyone.if.no.acl.found": "false"}
    assert why_unserved(of_acls) == (
        "allow.everyone.if.no.acl.found and super.users would protect nothing without an authorizer, and a node "
        "without them is open to every client that can reach it. "
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer decides by ACLs."
    )
    settings = BrokerSettings.load({"authorizer.class.name": AUTHORIZERS[0], **of_acls})
    assert super_users_of(settings) == ["User:admin", "User:CN=a,O=b"]
    with pytest.raises(ConfigRefusedError, match="principalType:principalName but got admin"):
        BrokerSettings.load({"authorizer.class.name": AUTHORIZERS[0], "super.users": "admin"})


def test_values_that_promise_nothing_pass() -> None:
    assert why_unserved(PROMISE_NOTHING) is None
    BrokerSettings.load(PROMISE_NOTHING)


def test_every_default_passes_but_that_of_acls() -> None:
    """In Kafka a resource without ACLs is closed by default; who writes that down counts on it."""
    defaults = {name: printed(key.default) or "" for name, key in BROKER_CONFIGS.items() if is_protective(name)}
    assert defaults.pop("allow.everyone.if.no.acl.found") == "false"
    assert why_unserved(defaults) is None


def test_it_can_not_be_set_at_run_time_either(stage: NodeStage) -> None:
    for name, value in PROMISES:
        assert change(stage, BROKER, "1", (name, SET, value)) == (INVALID_REQUEST, why_unserved({name: value}))
    assert replace(stage, BROKER, "1", ssl_client_auth="required")[0] == INVALID_REQUEST
    assert not stage.node.settings.of_broker("1")


def test_what_an_older_version_stored_is_warned_of_and_can_be_removed(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    stored = {"sasl.kerberos.service.name": "kafka", "ssl.unheard.of": "required", "message.max.bytes": "5000"}
    stage.store.commit([Put("config/broker/1", json.dumps(stored).encode())])
    stage.restart()
    assert stage.node.settings["message.max.bytes"] == 5000
    first, second = stage.notes
    assert first.startswith("The stored broker config sasl.kerberos.service.name has no effect: ")
    assert second.endswith("`ottla configs alter broker 1 --delete ssl.unheard.of` removes it.")
    assert change(stage, BROKER, "1", ("message.max.bytes", SET, "6000")) == (0, None)
    assert stage.node.settings["message.max.bytes"] == 6000
    assert len(stage.notes) == 2
    assert change(stage, BROKER, "1", ("ssl.unheard.of", DELETE, None)) == (0, None)
    assert change(stage, BROKER, "1", ("ssl.unheard.of", SET, "required"))[0] == INVALID_REQUEST
    assert change(stage, BROKER, "1", ("sasl.kerberos.service.name", DELETE, None)) == (0, None)
    assert stage.node.settings.of_broker("1") == {"message.max.bytes": "6000"}
    stage.stop()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"authorizer.class.name": "org.example.Authorizer"},
            r"authorizer.class.name=org.example.Authorizer would protect nothing",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, r"EmbeddedBroker\(port="),
        ({"log.dirs": "/tmp/elsewhere"}, "data directory"),
    ],
)
def test_an_embedded_broker_refuses_too(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ServeRefusedError, match=says) as refused:
        EmbeddedBroker(settings=settings).start()
    assert isinstance(refused.value, SettingsRefusedError)
