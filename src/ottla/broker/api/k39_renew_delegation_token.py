"""RenewDelegationToken, key 39, versions 1 to 2: extend a token's lifetime.

The request is refused, as by a Kafka without a secret key for tokens; see `delegation_tokens`.

Versions: 2 flexible.

Not supported: delegation tokens.

Source: KafkaApis.handleRenewTokenRequest; KIP-48.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.delegation_tokens import refusal_of, time_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.RENEW_DELEGATION_TOKEN,
    versions=(1, 2),
)


def handle(_: Core, request: Request) -> RenewDelegationTokenResponse:
    error = refusal_of(request.identity)
    return RenewDelegationTokenResponse(error, time_of(error))
