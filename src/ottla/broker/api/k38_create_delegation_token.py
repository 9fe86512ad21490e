"""CreateDelegationToken, key 38, versions 1 to 3: a token with which other clients may act for its owner.

The request is refused, as by a Kafka without a secret key for tokens. On unauthenticated connections the error is
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Otherwise it is the request's own fault, or DELEGATION_TOKEN_AUTH_DISABLED.

Versions: 2 flexible, 3 an owner other than the requester (KIP-373).

Not supported: delegation tokens.

Source: KafkaApis.handleCreateTokenRequest; KIP-48.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.delegation_tokens import may_ask_for_tokens, refusal_of, time_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.client_identity import Principal
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    acl=((Operation.CREATE_TOKENS, ResourceType.USER),),
)


USER = "User"


def handle(node: Core, request: Request) -> CreateDelegationTokenResponse:
    body: CreateDelegationTokenRequest = request.body
    requester = request.identity.principal
    owner = requester
    if body.owner_principal_name:
        owner = Principal(str(body.owner_principal_type), body.owner_principal_name)
    error = refusal_of(request.identity)
    if may_ask_for_tokens(request.identity):
        if owner != requester and not node.access.allows(
            request.identity, Operation.CREATE_TOKENS, ResourceType.USER, str(owner), request
        ):
            error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        elif any(renewer.principal_type != USER for renewer in body.renewers):
            error = ErrorCode.INVALID_PRINCIPAL_TYPE
    time = time_of(error)
    return CreateDelegationTokenResponse(error, *owner, *requester, time, time, time)
