"""Makes a certificate authority of a node's own, and issues the node's certificate (X.509, keys on the curve P-256).

Keys and certificates are PEM texts; this module writes no file. `cryptography` is imported with this module, so only
what makes certificates should import it.

Source: RFC 5280.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
NODE_DAYS: Final = 365
CLOCK_AHEAD: Final = datetime.timedelta(minutes=5)
"""Certificates are valid for clients whose clocks are this much behind."""
NAME_LENGTH_MAX: Final = 64
"""Of a common name."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A private key and its certificate, in PEM. `until`: the last moment at which it is valid."""

    key: str
    certificate: str
    until: datetime.datetime


class Authority:
    """A certificate authority that has its private key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def made(cls) -> Authority:
        """A new authority. Its name is random, so that clients can tell two of them apart."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Ottla authority {secrets.token_hex(4)}")
        certificate = (
            _unsigned(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def loaded(cls, key: bytes, certificate: bytes) -> Authority:
        """The authority of these PEM texts. Raises ValueError."""
        found = serialization.load_pem_private_key(key, None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not on an elliptic curve")
        return cls(found, x509.load_pem_x509_certificate(certificate))

    @property
    def itself(self) -> Issued:
        """Its own key and certificate."""
        return _issued(self._key, self._certificate)

    def issue(self, hosts: Sequence[str]) -> Issued:
        """A certificate for a node with these names and addresses, as a server and as a client of other nodes. Raises
        ValueError for a name that can't be in a certificate."""
        alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        return self._issue(hosts[0], [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH], alternatives)

    def issue_client(self, name: str) -> Issued:
        """A certificate for a client, with this common name."""
        return self._issue(name, [ExtendedKeyUsageOID.CLIENT_AUTH], None)

    def _issue(
        self, name: str, usages: list[x509.ObjectIdentifier], hosts: x509.SubjectAlternativeName | None
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        unsigned = (
            _unsigned(_name(name[:NAME_LENGTH_MAX]), self._certificate.subject, key.public_key(), NODE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts is not None:
            unsigned = unsigned.add_extension(hosts, critical=False)
        return _issued(key, unsigned.sign(self._key, hashes.SHA256()))


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses in a certificate. Raises ValueError."""
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        found = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as missing:
        raise ValueError("the certificate has no names") from missing
    return [
        *found.get_values_for_type(x509.DNSName),
        *(str(address) for address in found.get_values_for_type(x509.IPAddress)),
    ]


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_AHEAD)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Issued:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    text = certificate.public_bytes(serialization.Encoding.PEM)
    return Issued(secret.decode(), text.decode(), certificate.not_valid_after_utc)
