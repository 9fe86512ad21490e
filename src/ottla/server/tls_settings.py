"""Makes the TLS of a listener from Kafka's ssl.* settings: certificate, key, trusted certificates, protocols.

The listener between nodes has a second context, for the connections of this node to others.

Files and texts are PEM, as Kafka accepts them since KIP-651; Java's own formats (JKS, PKCS12) are refused with the
command that converts them. Texts that are given in the settings themselves reach OpenSSL through a file in memory, so a
private key is never written to a disk.

The files are read again when they change (`Tls.reload`). A certificate that can't be used leaves the old one in force.

Sources: Kafka's SslConfigs.java, DefaultSslEngineFactory.java, SslFactory.java; KIP-519, KIP-651.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ottla.broker.security.certificates import Rule, rules_of
from ottla.server.refusals import SettingsRefusedError

PEM: Final = "PEM"
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
"""ssl.client.auth: whether a client must present a certificate."""


class ListenerSettings(Protocol):
    """The settings of a node, as they are for one listener."""

    def of_listener(self, listener: str, name: str, /) -> Any: ...


class TlsSettings:
    """The ssl.* settings of one listener."""

    def __init__(self, settings: ListenerSettings, listener: str) -> None:
        self._settings = settings
        self.listener = listener

    def __getitem__(self, name: str) -> Any:
        return self._settings.of_listener(self.listener, name)

    @property
    def files(self) -> list[str]:
        """The files that the context is made from."""
        named = ("ssl.keystore.location", "ottla.ssl.key.location", "ssl.truststore.location")
        return [path for path in map(self.__getitem__, named) if path]

    def context(self) -> ssl.SSLContext:
        """A server's context. Raises SettingsRefusedError with one sentence."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._choose_versions(context)
        self._load_certificate(context)
        context.verify_mode = CLIENT_AUTH[self["ssl.client.auth"]]
        if context.verify_mode is not ssl.CERT_NONE:
            self._load_trusted(context, "ssl.client.auth asks for clients' certificates")
        return context

    def outgoing_context(self) -> ssl.SSLContext:
        """The context of a node that connects to this listener of another node: it presents the same certificate.
        Raises SettingsRefusedError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self["ssl.endpoint.identification.algorithm"] == "https"
        self._choose_versions(context)
        self._load_certificate(context)
        self._load_trusted(context, "the nodes of a cluster check each other's certificates")
        return context

    def principal_rules(self) -> list[Rule]:
        """The rules that make principals of certificates. Raises SettingsRefusedError."""
        try:
            return rules_of(self["ssl.principal.mapping.rules"])
        except ValueError as error:
            raise self._refused(str(error)) from None

    def valid_until_ms(self) -> int | None:
        """When the first certificate of the chain expires, in milliseconds since 1970; None if it can't be read."""
        from cryptography import x509  # only a listener with TLS needs it

        path, chain = self["ssl.keystore.location"], str(self["ssl.keystore.certificate.chain"]).encode()
        try:
            if path:
                with open(path, "rb") as file:
                    chain = file.read()
            certificates = x509.load_pem_x509_certificates(chain)
        except (OSError, ValueError):
            return None
        return int(min(each.not_valid_after_utc for each in certificates).timestamp() * 1000)

    def _choose_versions(self, context: ssl.SSLContext) -> None:
        named = self["ssl.enabled.protocols"]
        unknown = [each for each in named if each not in VERSIONS]
        if unknown or not named:
            raise self._refused(f"ssl.enabled.protocols can name {' and '.join(VERSIONS)}, not {', '.join(unknown)}")
        versions = sorted(VERSIONS[each] for each in named)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        if self["ssl.cipher.suites"]:
            try:
                context.set_ciphers(":".join(self["ssl.cipher.suites"]))
            except ssl.SSLError:
                raise self._refused("OpenSSL has none of the ssl.cipher.suites") from None

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        self._require_pem("keystore")
        chain, key = self["ssl.keystore.certificate.chain"], self["ssl.keystore.key"]
        path, password = self["ssl.keystore.location"], self["ssl.key.password"]
        if not path and not (chain and key):
            raise self._refused(
                "it needs a certificate: ssl.keystore.location names a PEM file with the private key and the "
                "certificate chain"
            )
        secret = "" if password is None else str(password)  # without one, OpenSSL would ask the terminal
        try:
            if path:
                context.load_cert_chain(path, self["ottla.ssl.key.location"] or None, lambda: secret)
            else:
                with in_memory(f"{key}\n{chain}\n") as there:
                    context.load_cert_chain(there, None, lambda: secret)
        except OSError as error:  # ssl.SSLError too
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                own = self["ottla.ssl.key.location"]
                whose = f"the key in {own}" if own else "its key"
                raise self._refused(f"{whose} does not match the certificate in {path}") from None
            if path and password is None and has_password(self["ottla.ssl.key.location"] or path):
                raise self._refused("its key has a password: set ssl.key.password") from None
            raise self._refused(f"{path or 'its certificate'} can't be used: {reason(error)}") from None

    def _load_trusted(self, context: ssl.SSLContext, why: str) -> None:
        self._require_pem("truststore")
        path, text = self["ssl.truststore.location"], self["ssl.truststore.certificates"]
        if not path and not text:
            raise self._refused(
                f"{why}, so ssl.truststore.location has to name a PEM file with the authorities that it trusts"
            )
        try:
            context.load_verify_locations(path or None, None, str(text) if not path else None)
        except OSError as error:
            raise self._refused(f"{path or 'ssl.truststore.certificates'} can't be used: {reason(error)}") from None

    def _require_pem(self, store: str) -> None:
        kind, path = self[f"ssl.{store}.type"], self[f"ssl.{store}.location"]
        if kind != PEM and path:
            raise self._refused(
                f"{path} is a {kind} file, which Java reads. `openssl pkcs12 -in {path} -nodes -out FILE.pem` converts "
                f"a PKCS12 file; then set ssl.{store}.type=PEM"
            )

    def _refused(self, why: str) -> SettingsRefusedError:
        return SettingsRefusedError(f"The listener {self.listener} can't serve TLS: {why}.")


def reason(error: OSError) -> str:
    """The fault of a file, in a few words."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    return error.strerror or str(error)


def has_password(path: str) -> bool:
    """Whether this file has a private key that is encrypted."""
    try:
        with open(path, "rb") as file:
            return b"ENCRYPTED" in file.read()
    except OSError:
        return False


@contextmanager
def in_memory(text: str) -> Iterator[str]:
    """The path of a file in memory with this text; it is gone afterwards."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
