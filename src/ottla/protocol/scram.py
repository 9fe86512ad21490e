"""Computes the keys and messages of SCRAM-SHA-256 and SCRAM-SHA-512, and plays the client's side of an exchange.

Names and passwords are not normalized (SASLprep), as in Kafka.

Sources: RFC 5802, RFC 7677; Kafka's ScramFormatter.java, ScramSaslClient.java.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, NamedTuple

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By their codes in requests (Kafka's ScramMechanism.java)."""
ITERATIONS: Final = 8192
SALT_BYTES: Final = 24
"""The value that Ottla's own tools choose for a new password."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's bounds for what is stored. The client computes all iterations."""
ITERATIONS_ACCEPTED: Final = 1_000_000
"""A client refuses more: a server could block it indefinitely (CVE-2026-10143 of kafka-python)."""
_SERVER_FIRST = re.compile(rb"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})(?:,.*)?")


class ScramError(Exception):
    """The server's message is malformed, or the server does not know the password. The text is a sentence."""


class Keys(NamedTuple):
    """The form in which a server stores a password."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Keys(...)"


def salted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The salted password, after this many rounds of PBKDF2. Takes milliseconds."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, iterations)


def keys_of(mechanism: str, salted_password: bytes) -> Keys:
    """The keys that belong to a salted password."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return Keys(hashlib.new(digest, client_key).digest(), hmac.digest(salted_password, b"Server Key", digest))


class ScramClient:
    """One exchange with a server: `first`, then `final` with its answer, then `verify` with the next answer. `nonce`:
    random characters, new for each exchange."""

    __slots__ = ("_bare", "_digest", "_mechanism", "_nonce", "_password", "_signature")

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce.encode()
        escaped = user.replace("=", "=3D").replace(",", "=2C").encode()
        self._bare = b"n=%b,r=%b" % (escaped, self._nonce)
        self._signature = b""

    def first(self) -> bytes:
        return b"n,," + self._bare

    def final(self, server_first: bytes) -> bytes:
        """The message that proves the password. Raises ScramError."""
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise ScramError("the server's first message is malformed")
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise ScramError("the server has not extended the client's nonce")
        iterations = int(found["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_ACCEPTED:
            raise ScramError(f"the server asks for {iterations} iterations")
        salted_password = salted(self._mechanism, self._password.encode(), decoded(found["salt"]), iterations)
        unproved = b"c=biws,r=" + found["nonce"]
        signed = b",".join((self._bare, server_first, unproved))
        client_key = hmac.digest(salted_password, b"Client Key", self._digest)
        keys = keys_of(self._mechanism, salted_password)
        proof = xor(client_key, hmac.digest(keys.stored_key, signed, self._digest))
        self._signature = hmac.digest(keys.server_key, signed, self._digest)
        return b"%b,p=%b" % (unproved, base64.b64encode(proof))

    def verify(self, server_final: bytes) -> None:
        """Raise ScramError unless the server has proved that it knows the password."""
        if not hmac.compare_digest(server_final, b"v=" + base64.b64encode(self._signature)):
            raise ScramError("the server has not proved that it knows the password")


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def decoded(text: bytes) -> bytes:
    """The bytes of a Base64 text. Raises ScramError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("a part of the message is not Base64") from None
