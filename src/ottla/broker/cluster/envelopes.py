"""Wraps a client's request for another node, with the client's identity, and unwraps it there.

Authorization, quotas and logs see the client and not the forwarding node. So the envelope has the client's principal,
its client id (in the request's own header), its host and its listener. It also names the attempts, so that what an
earlier attempt has made is recognized.

Kafka leaves the form of the principal to a plug-in (KafkaPrincipalSerde); here it is JSON, with the listener in it.

Sources: KIP-590; Kafka's EnvelopeUtils.scala, ForwardingManager.scala.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.requests import Request
from ottla.machine import Millis
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_request
from ottla.protocol.messages.envelope import EnvelopeRequest

NO_HOST: Final = bytes(4)
"""The address of a client without an IP address: the node itself, or a test."""


def wrapped(request: Request, tries: Sequence[str] = ()) -> EnvelopeRequest:
    """The request with its client's identity. `tries`: as in `Request`."""
    header = RequestHeader(request.api_key, request.version, request.correlation_id, request.client_id)
    identity, address = request.identity, request.identity.address
    sender = {
        "principal": str(identity.principal),
        "port": address.client_port,
        "listener": address.listener,
        "security_protocol": address.security_protocol,
        "advertised": address.advertised,
        "tries": tries,
    }
    if identity.mechanism:
        sender["mechanism"] = identity.mechanism
    frame = encode_request(header, request.body)
    return EnvelopeRequest(bytes(memoryview(frame)[4:]), json.dumps(sender).encode(), _packed(address.client_host))


def unwrapped(
    now: Millis, envelope: EnvelopeRequest, channel: Channel, decode: Callable[[int, memoryview, int, int], Any]
) -> Request:
    """The request in an envelope, as if its client had sent it over this connection.

    `decode(api_key, frame, position, version)` gives its message. Raises MalformedFrameError.
    """
    frame = memoryview(envelope.request_data)
    header, position = decode_request_header(frame)
    body = decode(header.api_key, frame, position, header.api_version)
    try:
        sender = json.loads(envelope.request_principal or b"")
        host, port = sender["advertised"]
        address = Address(
            channel.identity.address.connection_id,
            _printed(envelope.client_host_address),
            int(sender["port"]),
            str(sender["listener"]),
            str(sender["security_protocol"]),
            (str(host), int(port)),
        )
        principal, mechanism = Principal.parse(str(sender["principal"])), str(sender.get("mechanism", ""))
        tries = tuple(map(str, sender.get("tries", ())))
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedFrameError(f"an envelope does not say who sent what is in it: {error}") from error
    return Request(
        channel,
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        now,
        body,
        identity=Identity(address, principal, mechanism),
        tries=tries,
    )


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return NO_HOST


def _printed(packed: bytes) -> str:
    return "" if packed == NO_HOST else str(ipaddress.ip_address(packed))
