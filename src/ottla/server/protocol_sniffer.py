"""Recognizes clients of other protocols by their first bytes, at the place of a request's length.

The sentence is for the log. Usually a client is configured for TLS, or a browser uses this address.
"""

from __future__ import annotations

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_HANDSHAKE = b"\x16\x03"


def stranger(first: bytes) -> str | None:
    """A sentence about the first four bytes of a request, or None if they do not identify another protocol."""
    if first[:2] == _TLS_HANDSHAKE:
        return (
            "it began a TLS handshake on a plaintext listener; the client has to be set to security.protocol=PLAINTEXT"
        )
    if first in _HTTP:
        return "it sent an HTTP request to a listener that speaks the Kafka protocol"
    if first == b"SSH-":
        return "it spoke SSH to a listener that speaks the Kafka protocol"
    return None
