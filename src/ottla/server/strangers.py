"""Tells clients of other protocols from Kafka's by what they say first, where the length of a request belongs.

A person reads the sentence in the log, usually because a client is set up for TLS or a browser was pointed here.
"""

from __future__ import annotations

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_HANDSHAKE = b"\x16\x03"


def stranger(first: bytes) -> str | None:
    """A sentence about the first four bytes of what should be a request, or None where nothing is known of them."""
    if first[:2] == _TLS_HANDSHAKE:
        return (
            "it began a TLS handshake on a plaintext listener; the client has to be set to security.protocol=PLAINTEXT"
        )
    if first in _HTTP:
        return "it sent an HTTP request to a listener that speaks the Kafka protocol"
    if first == b"SSH-":
        return "it spoke SSH to a listener that speaks the Kafka protocol"
    return None
