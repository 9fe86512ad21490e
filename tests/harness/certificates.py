"""Makes certificates for tests: authorities, and what they sign."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority; `file` has its certificate."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = subject_of(name)
        certificate = self._signed(self._subject, self._key.public_key(), is_authority=True)
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, password: bytes | None = None, *, organization: str | None = None, days: float = 1.9
    ) -> Path:
        """A PEM file with a key and its certificate; `name` is a host's name or address, or a client's name. It is
        valid for so many days, from the day before yesterday on."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(subject_of(name, organization), key.public_key(), host=name, days=days)
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pem = self._folder / f"{self._name}-{name}.pem"
        pem.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return pem

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        host: str = "",
        is_authority: bool = False,
        days: float = 2,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if host:
            made = made.add_extension(x509.SubjectAlternativeName([alternative_of(host)]), critical=False)
        return made.sign(self._key, hashes.SHA256())


def subject_of(name: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def alternative_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
