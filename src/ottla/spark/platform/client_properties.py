"""Reads Kafka's client properties (`kafka.*` options): those that the thin client honours, those
without effect, and an error message for all other properties.

The names are those of Kafka's consumer; PEM files configure TLS (KIP-651). The module opens no connection.

Invariant: a property that would change which records are read, or which users may read them, is never ignored.

Source: ConsumerConfig.java, CommonClientConfigs.java, SslConfigs.java.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.client import Client
from ottla.client.oauth import PROPERTIES as TOKENS
from ottla.client.sasl import Login, WrongLoginError, login_of


class WrongOptionError(ValueError):
    """Raised for an option that is missing, unknown or invalid; one sentence says which and why."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Kafka's `ssl.*` as PEM: paths or the text itself. Hashable, so that connections can be kept by it."""

    truststore_path: str | None = None
    truststore_pem: str | None = None
    keystore_path: str | None = None
    keystore_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises WrongOptionError where a file cannot be read or is no PEM."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.check_hostname = self.checks_hostname
        try:
            if self.truststore_path or self.truststore_pem:
                context.load_verify_locations(cafile=self.truststore_path, cadata=self.truststore_pem)
            if self.keystore_path:
                context.load_cert_chain(self.keystore_path, password=self.key_password)
            elif self.keystore_pem:
                _load_pem(context, self.keystore_pem, self.key_password)
        except (OSError, ssl.SSLError) as error:
            where = self.keystore_path or self.truststore_path or "given"
            raise WrongOptionError(f"The PEM {where} can't be used for TLS: {error}.") from error
        return context


def _load_pem(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    """Load a PEM text through a file that is removed at once, because Python loads a key only from a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        os.chmod(file.name, 0o600)
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=password)


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Settings of the thin client. Hashable: a worker keeps its connections by this value."""

    bootstrap: str
    client_id: str = "ottla-spark"
    request_timeout_ms: int = 30_000
    fetch_max_bytes: int = 8 << 20
    partition_fetch_max_bytes: int = 4 << 20
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    read_committed: bool = False
    check_crcs: bool = True
    excludes_internal: bool = True
    tls: Tls | None = None
    login: Login | None = None

    @property
    def isolation_level(self) -> int:
        return 1 if self.read_committed else 0

    def connect(self) -> Client:
        """Return a client that has not connected to a broker yet. Raises WrongOptionError."""
        tls = None if self.tls is None else self.tls.context()
        timeout_s = self.request_timeout_ms / 1000
        return Client(self.bootstrap, client_id=self.client_id, timeout_s=timeout_s, tls=tls, login=self.login)


WITHOUT_EFFECT = frozenset(
    """group.id group.instance.id group.protocol group.remote.assignor session.timeout.ms heartbeat.interval.ms
    max.poll.records max.poll.interval.ms auto.commit.interval.ms partition.assignment.strategy metadata.max.age.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms retries default.api.timeout.ms
    connections.max.idle.ms client.dns.lookup client.rack socket.connection.setup.timeout.ms
    socket.connection.setup.timeout.max.ms send.buffer.bytes receive.buffer.bytes metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms enable.metrics.push
    metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms security.providers
    acks linger.ms batch.size compression.type compression.gzip.level compression.lz4.level compression.zstd.level
    enable.idempotence delivery.timeout.ms max.in.flight.requests.per.connection max.request.size max.block.ms
    buffer.memory""".split()  # noqa: SIM905
)
"""Accepted without effect: this source has no group, no polling thread and no Java. Producer properties are also here,
because a pipeline has one set of properties for both ends."""

_REFUSED = {
    "auto.offset.reset": "set 'startingOffsets' instead; the query keeps its own offsets",
    "key.deserializer": "keys come as bytes; decode them in the DataFrame",
    "value.deserializer": "values come as bytes; decode them in the DataFrame",
    "enable.auto.commit": "the query keeps its own offsets",
    "interceptor.classes": "interceptors could change what is read",
}
_HONOURED = frozenset(
    """bootstrap.servers client.id request.timeout.ms fetch.max.bytes max.partition.fetch.bytes fetch.min.bytes
    fetch.max.wait.ms isolation.level check.crcs exclude.internal.topics allow.auto.create.topics
    security.protocol""".split()  # noqa: SIM905
)
_TLS = frozenset(
    """truststore.type truststore.location truststore.certificates keystore.type keystore.location
    keystore.certificate.chain keystore.key key.password endpoint.identification.algorithm protocol
    enabled.protocols""".split()  # noqa: SIM905
)


_SASL = frozenset({"sasl.mechanism", "sasl.jaas.config", "sasl.username", "sasl.password", *TOKENS})


def client_properties(given: Mapping[str, str]) -> ClientProperties:
    """The options that begin with `kafka.`, names in lower case. Raises WrongOptionError."""
    kafka = {name.removeprefix("kafka."): value.strip() for name, value in given.items() if name.startswith("kafka.")}
    if not kafka.get("bootstrap.servers"):
        raise WrongOptionError("Option 'kafka.bootstrap.servers' must be given: the brokers' host:port, with commas.")
    for name in kafka:
        _refuse(name)
    if kafka.get("allow.auto.create.topics", "false").lower() == "true":
        raise WrongOptionError("Option 'kafka.allow.auto.create.topics' can't be true: reading never makes a topic.")
    isolation = kafka.get("isolation.level", "read_uncommitted").lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise WrongOptionError(
            f"Option 'kafka.isolation.level' must be read_uncommitted or read_committed, not '{isolation}'."
        )
    plain = ClientProperties("")
    _check_address(kafka["bootstrap.servers"])
    return ClientProperties(
        bootstrap=kafka["bootstrap.servers"],
        client_id=kafka.get("client.id", plain.client_id),
        request_timeout_ms=_whole(kafka, "request.timeout.ms", plain.request_timeout_ms),
        fetch_max_bytes=_whole(kafka, "fetch.max.bytes", plain.fetch_max_bytes),
        partition_fetch_max_bytes=_whole(kafka, "max.partition.fetch.bytes", plain.partition_fetch_max_bytes),
        fetch_min_bytes=_whole(kafka, "fetch.min.bytes", plain.fetch_min_bytes),
        fetch_max_wait_ms=_whole(kafka, "fetch.max.wait.ms", plain.fetch_max_wait_ms),
        read_committed=isolation == "read_committed",
        check_crcs=kafka.get("check.crcs", "true").lower() == "true",
        excludes_internal=kafka.get("exclude.internal.topics", "true").lower() == "true",
        tls=_tls(kafka),
        login=_login(kafka),
    )


def _check_address(text: str) -> None:
    """Check the address's syntax; the client connects later."""
    try:
        Client(text)
    except ValueError as error:
        raise WrongOptionError(f"Option 'kafka.bootstrap.servers' can't be used: {error}.") from error


def _refuse(name: str) -> None:
    if name in _REFUSED:
        raise WrongOptionError(f"Option 'kafka.{name}' is not supported: {_REFUSED[name]}.")
    if name in _SASL:
        return
    if name.startswith("sasl."):
        raise WrongOptionError(f"Option 'kafka.{name}' is not supported: this source knows {', '.join(sorted(_SASL))}.")
    if name.removeprefix("ssl.") in _TLS and name.startswith("ssl."):
        return
    if name not in _HONOURED and name not in WITHOUT_EFFECT:
        raise WrongOptionError(f"Option 'kafka.{name}' is not supported by this source.")


def _tls(kafka: Mapping[str, str]) -> Tls | None:
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    given = {name.removeprefix("ssl."): value for name, value in kafka.items() if name.startswith("ssl.")}
    if protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return None
    if protocol not in ("SSL", "SASL_SSL"):
        raise WrongOptionError(
            f"Option 'kafka.security.protocol' must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not '{protocol}'."
        )
    for store in ("truststore", "keystore"):
        if f"{store}.location" in given and given.get(f"{store}.type", "JKS").upper() != "PEM":
            raise WrongOptionError(
                f"Option 'kafka.ssl.{store}.type' must be PEM: Java's key stores can't be read from Python."
            )
    algorithm = given.get("endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "https"):
        raise WrongOptionError(f"Option 'kafka.ssl.endpoint.identification.algorithm' can't be '{algorithm}'.")
    chain, key = given.get("keystore.certificate.chain"), given.get("keystore.key")
    return Tls(
        truststore_path=given.get("truststore.location"),
        truststore_pem=given.get("truststore.certificates"),
        keystore_path=given.get("keystore.location"),
        keystore_pem=None if chain is None and key is None else f"{key or ''}\n{chain or ''}\n",
        key_password=given.get("key.password"),
        checks_hostname=algorithm == "https",
    )


def _login(kafka: Mapping[str, str]) -> Login | None:
    try:
        login = login_of(kafka)
    except WrongLoginError as wrong:
        raise WrongOptionError(f"Option 'kafka.sasl.*' can't be used: {wrong}") from None
    unused = sorted(_SASL & kafka.keys()) if login is None else []
    if unused:
        raise WrongOptionError(
            f"Option 'kafka.{unused[0]}' needs 'kafka.security.protocol' SASL_SSL or SASL_PLAINTEXT."
        )
    return login


def _whole(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d+", text) or not 0 <= int(text) < 1 << 31:
        raise WrongOptionError(f"Option 'kafka.{name}' must be a whole number of 0 to {(1 << 31) - 1}, not '{text}'.")
    return int(text)
