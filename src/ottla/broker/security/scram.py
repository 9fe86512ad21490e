"""Authenticates clients by SCRAM-SHA-256 and SCRAM-SHA-512: the server's side of one exchange, as a pure machine.

The node keeps no password. It stores, for each user and mechanism, a salt, a number of iterations, and two keys that
are derived from the password. A client sends two messages:

    n,,n=ada,r=<nonce>                  is answered  r=<nonce and more>,s=<salt>,i=<iterations>
    c=biws,r=<nonce and more>,p=<proof> is answered  v=<signature>

The answer to an unknown user looks like that to a known one: the salt is derived from the name and a secret of the
node, and the exchange fails at its end. Kafka fails at its beginning, which tells which users exist.

Sources: RFC 5802, RFC 7677; Kafka's ScramSaslServer.java, ScramMessages.java; CVE-2017-12610, CVE-2021-38153,
CVE-2024-56128.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable

from ottla.metadata.credentials import ScramCredential
from ottla.protocol.scram import DIGESTS, ITERATIONS_MIN, ScramError, decoded, xor

_FIRST = re.compile(
    rb"(?P<gs2>[ny],(?:a=(?P<authzid>[^,]*))?,)"
    rb"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?P<extensions>(?:,.*)?))"
)
_FINAL = re.compile(
    rb"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,.*)?),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_ESCAPED = re.compile("=(2C|3D)?")


class AuthenticationError(Exception):
    """The client has not proved who it is. The text is for the node's log; clients get one message for all."""


class ScramExchange:
    """One exchange with a client; `sasl.Exchange`. `credential_of`: the stored credential of a user, None for an
    unknown one. `nonce`: random characters, new for each exchange. `secret`: random bytes, the same while the node
    runs."""

    __slots__ = (
        "_credential",
        "_credential_of",
        "_digest",
        "_first",
        "_gs2",
        "_name",
        "_nonce",
        "_secret",
        "_sent",
        "user",
    )
    ends_at_ms = None

    def __init__(
        self, mechanism: str, credential_of: Callable[[str], ScramCredential | None], nonce: str, secret: bytes
    ) -> None:
        self._digest = DIGESTS[mechanism]
        self._credential_of = credential_of
        self._nonce = nonce.encode()
        self._secret = secret
        self._gs2 = self._first = self._sent = b""
        self._credential: ScramCredential | None = None
        self._name = ""
        self.user: str | None = None

    @property
    def claimed(self) -> str:
        """The user that the client has named, empty if there is no such user."""
        return "" if self._credential is None else self._name

    def respond(self, message: bytes) -> bytes:
        """The answer to the client's next message; `user` is set with the last one. Raises AuthenticationError; the
        exchange is then over."""
        try:
            return self._final(message) if self._sent else self._respond_first(message)
        except ScramError as failed:
            raise AuthenticationError(str(failed)) from None

    def _respond_first(self, message: bytes) -> bytes:
        found = _FIRST.fullmatch(message)
        if found is None:
            raise AuthenticationError("the first message is malformed")
        if b"tokenauth=true" in found["extensions"].split(b","):
            raise AuthenticationError("delegation tokens are not served")
        name = _unescaped(found["name"])
        if found["authzid"] and _unescaped(found["authzid"]) != name:
            raise AuthenticationError("the client asks to act as another user")
        self._name, self._gs2, self._first = name, found["gs2"], found["bare"]
        self._credential = self._credential_of(name)
        salt, iterations = hmac.digest(self._secret, name.encode(), "sha256")[:16], ITERATIONS_MIN
        if self._credential is not None:
            salt, iterations = self._credential.salt, self._credential.iterations
        self._nonce = found["nonce"] + self._nonce
        self._sent = b"r=%b,s=%b,i=%d" % (self._nonce, base64.b64encode(salt), iterations)
        return self._sent

    def _final(self, message: bytes) -> bytes:
        found = _FINAL.fullmatch(message)
        if found is None:
            raise AuthenticationError("the last message is malformed")
        if found["nonce"] != self._nonce:
            raise AuthenticationError("the last message has another nonce than the answer to the first")
        if decoded(found["binding"]) != self._gs2:
            raise AuthenticationError("the last message repeats another header than that of the first")
        # An unknown user has keys that no password fits.
        _, stored_key, server_key, _ = self._credential or ScramCredential(b"", self._secret, self._secret, 0)
        signed = b",".join((self._first, self._sent, found["unproved"]))
        signature, proof = hmac.digest(stored_key, signed, self._digest), decoded(found["proof"])
        if len(proof) != len(signature):
            raise AuthenticationError("the proof has a wrong length")
        proved = hmac.compare_digest(hashlib.new(self._digest, xor(proof, signature)).digest(), stored_key)
        if not proved or self._credential is None:
            raise AuthenticationError("the user is unknown or the password is wrong")
        self.user = self._name
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, self._digest))


def _unescaped(name: bytes) -> str:
    """A saslname as text (RFC 5802, section 5.1)."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("the name is not UTF-8") from None
    if any(found[1] is None for found in _ESCAPED.finditer(text)):
        raise AuthenticationError("the name has an equals sign that is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")
