"""SaslHandshake, key 17, versions 0 to 1: which SASL mechanism a client is going to use.

On a listener without SASL, and where a client may not authenticate again, the answer is ILLEGAL_SASL_STATE. For a
mechanism that is not enabled it is UNSUPPORTED_SASL_MECHANISM with those that are, and the connection is closed. Nodes
of the cluster use a mechanism of their own, on every listener.

Versions: 0 the tokens follow in frames of their own, 1 in SaslAuthenticate requests.

Source: SaslServerAuthenticator.handleHandshakeRequest, KafkaApis.handleSaslHandshakeRequest; KIP-43, KIP-152.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Close
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    before_authentication=True,
)


def handle(node: Core, request: Request) -> SaslHandshakeResponse:
    body: SaslHandshakeRequest = request.body
    answer = node.sasl.handshake(request.now, request.channel, body.mechanism, request.version)
    if answer.ends is not None:
        node.outbox.add(Close(request.identity.address.connection_id, answer.ends))
    return SaslHandshakeResponse(answer.error, list(answer.mechanisms))
