"""SaslAuthenticate, key 36, versions 0 to 2: a token of a SASL exchange.

On a listener without SASL the answer is ILLEGAL_SASL_STATE, as in Kafka. On a listener that requires authentication the
connection is closed: no mechanism is implemented yet.

Versions: 1 the session's lifetime, 2 flexible.

Not supported: the exchange itself.

Source: KafkaApis.handleSaslAuthenticateRequest; KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.security.authentication import refuse_the_unauthenticated
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    before_authentication=True,
)


OUT_OF_PLACE = "There is nothing to authenticate for: this client is let in as it is."


def handle(_: Core, request: Request) -> SaslAuthenticateResponse:
    """Raises Refused on a session that has yet to be authenticated."""
    refuse_the_unauthenticated(request.session)
    return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, OUT_OF_PLACE)
