"""DescribeDelegationToken, key 41, versions 1 to 3: which tokens exist.

The request is refused, as by a Kafka without a secret key for tokens; see `delegation_tokens`.

Versions: 2 flexible, 3 a token's requester (KIP-373).

Not supported: delegation tokens.

Source: KafkaApis.handleDescribeTokensRequest; KIP-48.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.delegation_tokens import refusal_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.describe_delegation_token import DescribeDelegationTokenResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(1, 3),
)


def handle(_: Core, request: Request) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(refusal_of(request.identity))
