"""Checks whether a listener's security protocol matches a client's settings: TLS or not, SASL or not.

If it does not, librdkafka retries for half a minute, and then reports that the transport failed. One request shows it
sooner. A listener without SASL answers SaslHandshake with ILLEGAL_SASL_STATE, and one with SASL names its mechanisms;
both do so in plaintext or over TLS. Only a certain mismatch is reported: a listener that does not answer is left to
librdkafka.

Source: Kafka's SaslServerAuthenticator.java, KafkaApis.handleSaslHandshakeRequest.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.protocol.apis import ApiKey

PATIENCE_S = 2.0
ANSWER_BYTES_MAX = 1 << 12

_CORRELATION_ID = 7
_UNSUPPORTED_SASL_MECHANISM, _ILLEGAL_SASL_STATE = 33, 34
_MECHANISM = "PLAIN"
"""The mechanism in the request of a client without SASL: any answer except ILLEGAL_SASL_STATE means that it needs
SASL."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A listener's answer to SaslHandshake: its error code, and the mechanisms that it offers."""

    code: int
    mechanisms: tuple[str, ...]


def mismatch(where: str, connect: Callable[[], socket.socket], properties: Mapping[str, Any]) -> str | None:
    """A sentence that says why a client with these properties cannot use the listener; None if it can, or if that is
    uncertain. `connect` opens a connection to it. Raises OSError if the first one cannot be opened."""
    protocol = str(properties.get("security.protocol", "PLAINTEXT")).upper()
    mechanism = str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI")
    wants_tls, wants_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    asked = mechanism if wants_sasl else _MECHANISM
    first = connect()
    try:
        answer, speaks_tls = _first_answer(first, connect, asked, wants_tls)
    except OSError:
        return None
    if answer is None:
        return None
    needs_sasl = answer.code != _ILLEGAL_SASL_STATE
    if (speaks_tls, needs_sasl) != (wants_tls, wants_sasl):
        needed = _protocol(speaks_tls, needs_sasl)
        offered = f" with {' or '.join(answer.mechanisms)}" if needs_sasl and answer.mechanisms else ""
        return (
            f"The listener at {where} speaks {needed}{offered}, and this client is set to {protocol}. "
            f"Set the client property security.protocol={needed}, for example with -X."
        )
    if wants_sasl and answer.code == _UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms)
        return f"The listener at {where} does not offer the SASL mechanism {mechanism}: it offers {offered}."
    return None


def _first_answer(
    first: socket.socket, connect: Callable[[], socket.socket], mechanism: str, wants_tls: bool
) -> tuple[Answer | None, bool]:
    """The listener's answer, and whether it came over TLS. Tries the client's setting first, then the opposite. Raises
    OSError, including TimeoutError: a listener that does not answer would not answer the other way either."""
    with first:
        answer = _answer_behind_tls(first, mechanism) if wants_tls else _answer(first, mechanism)
    if answer is not None:
        return answer, wants_tls
    with connect() as second:
        answer = _answer(second, mechanism) if wants_tls else _answer_behind_tls(second, mechanism)
    return answer, not wants_tls


def _protocol(tls: bool, sasl: bool) -> str:
    if sasl:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"
    return "SSL" if tls else "PLAINTEXT"


def _answer_behind_tls(connected: socket.socket, mechanism: str) -> Answer | None:
    """The listener's answer; whether its certificate is trusted is left to the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connected.settimeout(PATIENCE_S)
    try:
        with context.wrap_socket(connected) as secured:
            return _answer(secured, mechanism)
    except TimeoutError:
        raise
    except (OSError, ValueError):
        return None


def _answer(connected: socket.socket, mechanism: str) -> Answer | None:
    """The listener's answer to SaslHandshake; None if it does not answer in time, or not with Kafka's protocol."""
    name = mechanism.encode()
    request = struct.pack(">hhih", ApiKey.SASL_HANDSHAKE, 0, _CORRELATION_ID, -1) + struct.pack(">h", len(name)) + name
    try:
        connected.settimeout(PATIENCE_S)
        connected.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connected, 4))
        if not 10 <= size <= ANSWER_BYTES_MAX:
            return None
        return _read(_exactly(connected, size))
    except TimeoutError:
        raise
    except (OSError, struct.error, ValueError):
        return None


def _read(frame: bytes) -> Answer | None:
    correlation_id, code, count = struct.unpack_from(">ihi", frame)
    if correlation_id != _CORRELATION_ID:
        return None
    names: list[str] = []
    at = 10
    for _ in range(count):
        (length,) = struct.unpack_from(">h", frame, at)
        names.append(frame[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return Answer(code, tuple(names))


def _exactly(connected: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. Raises OSError if the connection ends before."""
    found = b""
    while len(found) < size:
        chunk = connected.recv(size - len(found))
        if not chunk:
            raise OSError("the listener hung up")
        found += chunk
    return found
