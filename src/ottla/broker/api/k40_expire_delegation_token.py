"""ExpireDelegationToken, key 40, versions 1 to 2: end a token.

The request is refused, as by a Kafka without a secret key for tokens; see `delegation_tokens`.

Versions: 2 flexible.

Not supported: delegation tokens.

Source: KafkaApis.handleExpireTokenRequest; KIP-48.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.delegation_tokens import refusal_of, time_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.EXPIRE_DELEGATION_TOKEN,
    versions=(1, 2),
)


def handle(_: Core, request: Request) -> ExpireDelegationTokenResponse:
    error = refusal_of(request.identity)
    return ExpireDelegationTokenResponse(error, time_of(error))
