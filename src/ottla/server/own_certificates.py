"""Checks the certificates that an operator brings for the nodes of one machine, before a node starts with them.

The check is a TLS handshake in memory, with the contexts that a node uses towards clients and towards other nodes. So
OpenSSL refuses here what it would refuse there, and the refusal becomes a sentence.
"""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from ottla.broker.config.values import BrokerSettings
from ottla.server.authority import hosts_of
from ottla.server.refusals import SettingsRefusedError
from ottla.server.tls_settings import TlsSettings, has_password

NODE: Final = "{node}"
"""Stands for the number of a node in the path of a file."""
LISTENER: Final = "SASL_SSL"
_FLIGHTS_MAX: Final = 10
"""A handshake has fewer flights of messages."""

_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_PURPOSE = 26
_WRONG_NAME = (62, 64)
"""OpenSSL's X509_V_ERR codes."""


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """PEM files. `key` is None if the certificate's file has the key. `authorities`: those that have signed the
    certificates, which clients and nodes trust."""

    certificate: str
    authorities: str
    key: str | None = None

    def settings_of(self, node: int) -> dict[str, str]:
        """The settings of a node that uses them. Nodes show their certificates to each other; clients need none."""
        found = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": _of(self.certificate, node),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authorities,
            "ssl.client.auth": "requested",
        }
        return found if self.key is None else {**found, "ottla.ssl.key.location": _of(self.key, node)}

    def check(self, nodes: Iterable[int], host: str) -> None:
        """Raises SettingsRefusedError unless each node can use its certificate, and all nodes listen on this host."""
        for settings in {tuple(self.settings_of(node).items()): None for node in nodes}:
            _check(dict(settings), host)


def _of(path: str, node: int) -> str:
    return path.replace(NODE, str(node))


def _check(settings: Mapping[str, str], host: str) -> None:
    path, authorities = settings["ssl.keystore.location"], settings["ssl.truststore.location"]
    key = settings.get("ottla.ssl.key.location", path)
    for file in (path, key, authorities):
        if not os.path.isfile(file):
            raise SettingsRefusedError(f"There is no file {file}.")
    if has_password(key):
        raise SettingsRefusedError(
            f"The key in {key} has a password, which a node can't ask for. `openssl pkey -in {key} -out FILE` writes "
            "it without one."
        )
    tls = TlsSettings(BrokerSettings.load(settings), LISTENER)
    server, client = tls.context(), tls.outgoing_context()
    try:
        _shake_hands(server, client, host)
    except ssl.SSLCertVerificationError as error:
        raise SettingsRefusedError(_sentence(error, path, authorities, host)) from None
    except (ssl.SSLError, ValueError) as error:
        raise SettingsRefusedError(f"{path} can't be used for TLS: {error}.") from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raises ssl.SSLError. In TLS 1.3, the server checks the client's certificate after the client is done."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_FLIGHTS_MAX):
        waits = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waits = True
        if not waits:
            return
    raise ssl.SSLError("the handshake does not end")


def _sentence(error: ssl.SSLCertVerificationError, path: str, authorities: str, host: str) -> str:
    code = error.verify_code
    if code in (_EXPIRED, _NOT_YET_VALID):
        return _about_time(path, error.verify_message)
    if code in _WRONG_NAME:
        with open(path, "rb") as file:
            names = _names(file.read())
        return (
            f"{path} is for {names}, and the nodes listen on {host}: clients would refuse it. Use --listen with one of "
            f"these names, or a certificate with the name {host}."
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            f"No authority in {authorities} has signed {path}. --tls-ca names a file with that authority; --tls-cert "
            "has the node's certificate first, then those between it and the authority."
        )
    if code == _WRONG_PURPOSE:
        return (
            f"{path} is not for servers and clients: nodes connect to each other, so its extended key usage has to "
            "have serverAuth and clientAuth, or be missing."
        )
    return f"{path} can't be used: {error.verify_message}."


def _about_time(path: str, message: str) -> str:
    with open(path, "rb") as file:
        found = x509.load_pem_x509_certificates(file.read())
    now = datetime.datetime.now(datetime.UTC)
    if ended := [each.not_valid_after_utc for each in found if each.not_valid_after_utc < now]:
        return f"{path} has expired on {min(ended):%Y-%m-%d}: renew the certificate."
    if begins := [each.not_valid_before_utc for each in found if each.not_valid_before_utc > now]:
        return f"{path} is valid from {max(begins):%Y-%m-%d %H:%M} UTC on: check the clock of this machine."
    return f"{path} can't be used: {message} (the authority's certificate)."


def _names(certificate: bytes) -> str:
    try:
        return ", ".join(hosts_of(certificate)) or "no host"
    except ValueError:
        return "no host"
