"""Plays the side of the node that is connected to, in the exchange by which nodes prove themselves
(`protocol/node_proof.py`).

Nodes are served on the listener that this node or the other one names for connections between nodes. A listener for
clients alone therefore lets no node in, not even one that knows the key.
"""

from __future__ import annotations

import hmac

from ottla.broker.cluster.trust import Trust
from ottla.broker.security.scram import AuthenticationError
from ottla.protocol.node_proof import (
    CONNECTED,
    CONNECTING,
    Hello,
    NotProvedError,
    decode_final,
    encode_answer,
    proof_of,
)


class NodeExchange:
    """One exchange with a node; `sasl.Exchange`. `user`: its id, once it is proved. `nonce`: random bytes, new for each
    exchange; `binding`: what only the two ends of the connection know, empty without TLS."""

    __slots__ = ("_binding", "_first", "_listener", "_nonce", "_sender", "_trust", "claimed", "ends_at_ms", "user")

    def __init__(self, trust: Trust, listener: str, nonce: bytes, binding: bytes) -> None:
        self._trust = trust
        self._listener = listener
        self._nonce = nonce
        self._binding = binding
        self._first = b""
        self._sender = -1
        self.user: str | None = None
        self.claimed = ""
        self.ends_at_ms: int | None = None

    def respond(self, message: bytes) -> bytes:
        """The answer to the node's next token. Raises AuthenticationError; the exchange is then over."""
        try:
            return self._final(message) if self._first else self._respond_first(message)
        except NotProvedError as failed:
            raise AuthenticationError(str(failed)) from None

    def _respond_first(self, message: bytes) -> bytes:
        hello = Hello.decode(message)
        trust = self._trust
        if hello.cluster_id != trust.cluster_id:
            raise NotProvedError(f"it is of cluster {hello.cluster_id}")
        if hello.receiver != trust.node_id:
            raise NotProvedError(f"it looks for node {hello.receiver}")
        if hello.sender == trust.node_id:
            raise NotProvedError("it claims to be this node")
        if not trust.meets(hello.sender, self._listener):
            raise NotProvedError(f"node {hello.sender} does not use the listener {self._listener} between nodes")
        self._first, self._sender, self.claimed = message, hello.sender, str(hello.sender)
        return encode_answer(self._nonce, self._proof(CONNECTED))

    def _final(self, message: bytes) -> bytes:
        if not hmac.compare_digest(decode_final(message), self._proof(CONNECTING)):
            raise NotProvedError(f"it has not proved that it is node {self._sender}")
        self.user = str(self._sender)
        return b""

    def _proof(self, role: bytes) -> bytes:
        return proof_of(self._trust.key, role, self._first, self._nonce, self._binding)
