"""Writes the client properties of a listener: for librdkafka, for Java, and as arguments of Python's clients.

It also reads librdkafka's properties about TLS.

Sources: librdkafka's table of properties; Kafka's SslConfigs.java and SaslConfigs.java; KIP-651.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.sasl import PLAIN, Login

_LOGIN_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class ClientSetUp:
    """How a client connects. `authority`: PEM file of the authority that it trusts, None for a listener without TLS.
    `certificate`: PEM file with the client's own key and certificate."""

    bootstrap: str
    authority: str | None = None
    certificate: str | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        protocol = "PLAINTEXT" if self.authority is None else "SSL"
        return protocol if self.login is None else f"SASL_{protocol}"

    def librdkafka(self) -> dict[str, str]:
        """Properties for librdkafka, kcat and `ottla`."""
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.authority is not None:
            found["ssl.ca.location"] = self.authority
        if self.certificate is not None:
            found |= {"ssl.certificate.location": self.certificate, "ssl.key.location": self.certificate}
        if self.login is not None:
            found["sasl.mechanism"] = self.login.mechanism
            found |= {"sasl.username": self.login.user, "sasl.password": self.login.password}
        return found

    def java(self) -> dict[str, str]:
        """Properties for Kafka's Java clients and tools, and for Spark."""
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.authority is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if self.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if self.login is not None:
            module = _LOGIN_MODULES[self.login.mechanism.partition("-")[0]]
            options = f"username={_quoted(self.login.user)} password={_quoted(self.login.password)}"
            found["sasl.mechanism"] = self.login.mechanism
            found["sasl.jaas.config"] = f"{module} required {options};"
        return found

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the clients of kafka-python and aiokafka."""
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        if (context := self.context()) is not None:
            found["ssl_context"] = context
        if self.login is not None:
            found["sasl_mechanism"] = self.login.mechanism
            found |= {"sasl_plain_username": self.login.user, "sasl_plain_password": self.login.password}
        return found

    def context(self) -> ssl.SSLContext | None:
        """The TLS context of Python's clients; None for a listener without TLS."""
        if self.authority is None:
            return None
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context


class WrongCertificatesError(ValueError):
    """The files of the ssl.* properties cannot be used; the text is one sentence."""


def tls_context(given: Mapping[str, Any]) -> ssl.SSLContext:
    """The TLS context for librdkafka's properties. Raises WrongCertificatesError."""
    try:
        tls = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if "ssl.certificate.location" in given:
            password = str(given.get("ssl.key.password", ""))  # without one, OpenSSL would ask the terminal
            tls.load_cert_chain(given["ssl.certificate.location"], given.get("ssl.key.location"), lambda: password)
        if str(given.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
            tls.check_hostname = False
    except (OSError, ValueError) as error:
        raise WrongCertificatesError(f"The certificates of ssl.* cannot be used: {error}.") from None
    return tls


def _quoted(text: str) -> str:
    """A value in a sasl.jaas.config."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
