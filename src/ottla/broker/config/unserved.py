"""Finds settings that promise protection which a node does not give: TLS, SASL, Java authorizers, policies.

It has Kafka's names for them, and the values that promise nothing: an empty one, and Kafka's default. With any other
value a node would look protected and be open to every client that can reach it, so it does not start.

Source: Kafka's BrokerSecurityConfigs, SslConfigs, SaslConfigs, SocketServerConfigs (4.3.1), ZkConfigs (3.9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

OPEN: Final = "a node without them is open to every client that can reach it"

_JAVA_PRINCIPALS = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_PROMISE_NOTHING: Final[dict[str, tuple[str, ...]]] = {
    "delegation.token.master.key": (),
    "delegation.token.secret.key": (),
    "principal.builder.class": (_JAVA_PRINCIPALS,),
    "sasl.kerberos.principal.to.local.rules": ("DEFAULT",),
    "sasl.mechanism.controller.protocol": ("GSSAPI",),
    "sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    ),
    "sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    ),
    "security.providers": (),
    "ssl.allow.dn.changes": ("false",),
    "ssl.allow.san.changes": ("false",),
    "ssl.keymanager.algorithm": ("SunX509", "PKIX"),
    "ssl.protocol": ("TLSv1.2", "TLSv1.3"),
    "ssl.trustmanager.algorithm": ("PKIX",),
}
"""The values of protective settings that promise nothing, beside an empty one."""
AUTHORIZER: Final = "authorizer.class.name"
AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Kafka's authorizers, which decide by ACLs: a node with either of these names does so too."""
_OF_ACLS = {"allow.everyone.if.no.acl.found": ("true",), "super.users": ()}
"""Settings of ACLs, and their values that promise nothing without an authorizer, beside an empty one."""
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""The SASL mechanisms that a node serves."""
NODE_MECHANISMS: Final = ("OTTLA-NODE", "GSSAPI")
"""Values of _BETWEEN_NODES that are accepted: the mechanism by which nodes prove themselves, and Kafka's default."""
_BETWEEN_NODES: Final = "sasl.mechanism.inter.broker.protocol"
_ENABLED: Final = "sasl.enabled.mechanisms"
_SERVED: Final = frozenset((
    "sasl.oauthbearer.clock.skew.seconds", "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms", "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name",
    "ssl.cipher.suites", "ssl.client.auth", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.type",
    "ssl.principal.mapping.rules", "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.type",
    "zookeeper.ssl.client.enable", "zookeeper.ssl.endpoint.identification.algorithm", "zookeeper.ssl.keystore.location",
    "zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.location", "zookeeper.ssl.truststore.type",
))  # fmt: skip
"""Protective settings that a node serves, for all listeners or for one."""
_PROTECTIVE_PREFIXES = ("sasl.", "ssl.", "zookeeper.ssl.")
_TUNING_PREFIXES = (
    "sasl.kerberos.kinit.",
    "sasl.kerberos.min.",
    "sasl.kerberos.ticket.",
    "sasl.login.connect.",
    "sasl.login.read.",
    "sasl.login.refresh.",
    "sasl.login.retry.",
    "sasl.server.max.receive.size",
)
"""Details of SASL, if it is on: whatever their values, they protect nothing."""
_PLUGINS = ("alter.config.policy.class.name", "client.quota.callback.class", "create.topic.policy.class.name")
_LISTENER = "listener.name."


def is_protective(name: str) -> bool:
    """Whether a setting of this name promises protection, unless its value says otherwise."""
    if name.startswith(_LISTENER):
        of_listener = name.removeprefix(_LISTENER).partition(".")[2]
        # A SASL mechanism may precede the name: listener.name.NAME.scram-sha-512.sasl.jaas.config.
        return is_protective(of_listener) or is_protective(of_listener.partition(".")[2])
    if name.startswith(_TUNING_PREFIXES) or name in _SERVED or name == _BETWEEN_NODES:
        return False
    return name in (AUTHORIZER, *_OF_ACLS, *_PROMISE_NOTHING) or name.startswith(_PROTECTIVE_PREFIXES)


def why_unserved(settings: Mapping[str, str]) -> str | None:
    """The message that refuses these settings: which of them promise a protection that the node does not give, and what
    to do.

    None if they promise nothing. Values are left out, as some are passwords.
    """
    why = _why_no_acls(settings) or _why_no_node_mechanism(settings)
    if why is not None:
        return why
    named = [name for name, text in settings.items() if is_protective(name) and _promises(name, text)]
    if named:
        return (
            f"{_listed(named)} would protect nothing: Ottla does not serve {'this' if len(named) == 1 else 'them'}, "
            f"and {OPEN}. Remove {'this setting' if len(named) == 1 else 'these settings'} only if you accept that."
        )
    plugins = [name for name in _PLUGINS if settings.get(name, "").strip()]
    if plugins:
        return (
            f"{_listed(plugins)} would limit nothing: Ottla can't load Java classes. Remove "
            f"{'this setting' if len(plugins) == 1 else 'these settings'} only if you accept that."
        )
    return None


def why_no_listener(listener: str, protocol: str) -> str:
    """The sentence for a listener with a security protocol that does not exist."""
    return (
        f"The listener {listener} has no security protocol: name one in listener.security.protocol.map, for example "
        f"{protocol}:PLAINTEXT or {protocol}:SASL_SSL."
    )


def protocols_of(protocol_map: str) -> dict[str, str]:
    """The security protocol of each listener name in a listener.security.protocol.map, in upper case."""
    entries = words(protocol_map.upper())
    return {name.strip(): protocol.strip() for name, _, protocol in (entry.partition(":") for entry in entries)}


def words(text: str) -> list[str]:
    """The entries of a list in a properties file."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _why_no_acls(settings: Mapping[str, str]) -> str | None:
    """The sentence for an authorizer that can't be loaded, or for settings of ACLs without one."""
    named = settings.get(AUTHORIZER, "").strip()
    if named in AUTHORIZERS:
        return None
    if named:
        return (
            f"{AUTHORIZER}={named} would protect nothing: Ottla can't load Java classes. "
            f"{AUTHORIZERS[0]} decides by ACLs, as in Kafka."
        )
    unused = [
        name
        for name, harmless in _OF_ACLS.items()
        if (text := settings.get(name, "").strip().lower()) and text not in harmless
    ]
    if unused:
        return (
            f"{_listed(unused)} would protect nothing without an authorizer, and {OPEN}. "
            f"{AUTHORIZER}={AUTHORIZERS[0]} decides by ACLs."
        )
    return None


def _why_no_node_mechanism(settings: Mapping[str, str]) -> str | None:
    """The sentence for a mechanism by which nodes don't prove themselves to each other."""
    named = settings.get(_BETWEEN_NODES, "").strip()
    if not named or named.upper() in NODE_MECHANISMS:
        return None
    return (
        f"{_BETWEEN_NODES}={named} is not served: the nodes of a cluster prove themselves to each other by "
        f"{NODE_MECHANISMS[0]}, with the key in their metadata store and ottla.cluster.secret. Remove this setting."
    )


def _promises(name: str, text: str) -> bool:
    if name == AUTHORIZER or name in _OF_ACLS:
        return False
    if name == _ENABLED:
        return any(each not in MECHANISMS for each in words(text))
    if name.startswith(_LISTENER):
        of_listener = name.removeprefix(_LISTENER).partition(".")[2]
        name = of_listener if of_listener in _PROMISE_NOTHING else of_listener.partition(".")[2]
    value = text.strip().lower()
    return value != "" and value not in (each.lower() for each in _PROMISE_NOTHING.get(name, ()))


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
