"""Computes the proofs by which nodes of a cluster recognize each other, and plays the side of the node that connects.

Both nodes have the key of their cluster, which never leaves them. Each gives the other a fresh random nonce:

    v=1,cluster=<id>,from=2,to=3,nonce=<nonce>    is answered  nonce=<nonce>,proof=<proof of node 3>
    proof=<proof of node 2>                       is answered  with an empty token

A proof is a MAC over the role of its maker, the first token as it was sent, the other nonce, and the binding: what only
the two ends of a TLS connection know. So a recorded proof fits no other connection, and neither does one that was made
for another cluster or another node, or by the other side. The node that is connected to proves itself first. The node
that connects may therefore send requests right behind its own proof.

The tokens travel as those of a SASL mechanism. SCRAM is not used, because its proofs name no nodes and no cluster, and
it needs another round trip.

Sources: RFC 5802 (the form of the tokens); RFC 5929 (tls-unique); ISO/IEC 9798-4 (mutual authentication by MACs).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from typing import Final, NamedTuple

NONCE_BYTES: Final = 32
CONNECTING: Final = b"the node that connects"
CONNECTED: Final = b"the node that is connected to"
"""The roles. Each side accepts only a proof of the other role, so its own proof can't be sent back to it."""
STRETCHINGS: Final = 16_384
"""An operator may have chosen a short secret: each guess takes milliseconds."""
_FIRST: Final = re.compile(
    rb"v=1,cluster=(?P<cluster>[A-Za-z0-9_-]{1,64}),from=(?P<sender>\d{1,10}),to=(?P<receiver>\d{1,10}),"
    rb"nonce=(?P<nonce>[A-Za-z0-9+/]{43}=)"
)
_ANSWER: Final = re.compile(rb"nonce=(?P<nonce>[A-Za-z0-9+/]{43}=),proof=(?P<proof>[A-Za-z0-9+/]{43}=)")
_FINAL: Final = re.compile(rb"proof=(?P<proof>[A-Za-z0-9+/]{43}=)")


class NotProvedError(Exception):
    """The other side has not proved that it is the node that it should be. The text has no secret."""


class Hello(NamedTuple):
    """The content of the first token. `sender` and `receiver`: ids of nodes."""

    cluster_id: str
    sender: int
    receiver: int
    nonce: bytes

    def encode(self) -> bytes:
        nonce = base64.b64encode(self.nonce)
        return b"v=1,cluster=%b,from=%d,to=%d,nonce=%b" % (self.cluster_id.encode(), self.sender, self.receiver, nonce)

    @classmethod
    def decode(cls, token: bytes) -> Hello:
        """Raises NotProvedError."""
        found = _FIRST.fullmatch(token)
        if found is None:
            raise NotProvedError("the first token is malformed")
        return cls(found["cluster"].decode(), int(found["sender"]), int(found["receiver"]), _bytes(found["nonce"]))


@lru_cache(maxsize=16)
def key_of(stored: bytes, secret: str) -> bytes:
    """The key that both sides use. `stored`: the random key in the metadata store; `secret`: that of the operator, may
    be empty. A node needs both."""
    stretched = hashlib.pbkdf2_hmac("sha256", secret.encode(), stored, STRETCHINGS) if secret else b""
    return hmac.digest(stored, b"the key between nodes" + stretched, "sha256")


def proof_of(key: bytes, role: bytes, first: bytes, nonce: bytes, binding: bytes) -> bytes:
    """The proof that a side makes. `first`: the first token; `nonce`: that of the answer to it."""
    parts = (b"proof of a node of Ottla", role, first, nonce, binding)
    return hmac.digest(key, b"".join(len(each).to_bytes(4, "big") + each for each in parts), "sha256")


def encode_answer(nonce: bytes, proof: bytes) -> bytes:
    return b"nonce=%b,proof=%b" % (base64.b64encode(nonce), base64.b64encode(proof))


def encode_final(proof: bytes) -> bytes:
    return b"proof=" + base64.b64encode(proof)


def decode_final(token: bytes) -> bytes:
    """The proof in the second token of the node that connects. Raises NotProvedError."""
    found = _FINAL.fullmatch(token)
    if found is None:
        raise NotProvedError("the second token is malformed")
    return _bytes(found["proof"])


class NodeClient:
    """The side of the node that connects, on one connection: `first`, then `final` with the answer. `binding`: see the
    module's docstring; empty without TLS."""

    __slots__ = ("_binding", "_first", "_key")

    def __init__(self, key: bytes, hello: Hello, binding: bytes) -> None:
        self._key = key
        self._binding = binding
        self._first = hello.encode()

    def first(self) -> bytes:
        return self._first

    def final(self, answer: bytes) -> bytes:
        """The token that proves this node, once the other one is proved. Raises NotProvedError."""
        found = _ANSWER.fullmatch(answer)
        if found is None:
            raise NotProvedError("its answer is malformed")
        nonce = _bytes(found["nonce"])
        expected = proof_of(self._key, CONNECTED, self._first, nonce, self._binding)
        if not hmac.compare_digest(expected, _bytes(found["proof"])):
            raise NotProvedError("it does not know the key of the cluster, or is another node")
        return encode_final(proof_of(self._key, CONNECTING, self._first, nonce, self._binding))


def _bytes(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotProvedError("a part of a token is not Base64") from None
