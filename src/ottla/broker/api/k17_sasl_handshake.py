"""SaslHandshake, key 17, versions 0 to 1: which SASL mechanism a client is going to use.

On a listener without SASL the answer is ILLEGAL_SASL_STATE, as in Kafka. On a listener that requires authentication the
connection is closed: no mechanism is implemented yet.

Versions: 1 SaslAuthenticate frames follow instead of bare tokens; no difference here.

Not supported: the handshake itself.

Source: KafkaApis.handleSaslHandshakeRequest; KIP-43, KIP-152.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.security.authentication import refuse_the_unauthenticated
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    before_authentication=True,
)


def handle(_: Core, request: Request) -> SaslHandshakeResponse:
    """Raises Refused on a session that has yet to be authenticated."""
    refuse_the_unauthenticated(request.session)
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
