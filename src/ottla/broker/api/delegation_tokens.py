"""Answers the four APIs of delegation tokens, like a broker without them.

Kafka accepts such requests only on authenticated connections. If it has no secret key for tokens, it answers those that
there are none.

Source: KafkaApis.allowTokenRequests, DelegationTokenControlManager; KIP-48.
"""

from typing import Final

from ottla.broker.client_identity import ANONYMOUS, Identity
from ottla.protocol.errors import ErrorCode

NO_TIME: Final = -1
"""The timestamps of an answer without a token, if the broker itself refuses."""


def may_ask_for_tokens(identity: Identity) -> bool:
    """Whether Kafka would process a token request from this client."""
    protocol = identity.address.security_protocol
    return protocol != "PLAINTEXT" and not (protocol == "SSL" and identity.principal == ANONYMOUS)


def time_of(error: ErrorCode) -> int:
    """The timestamps of an answer with this error: Kafka's controller, which has no key, leaves them 0."""
    return 0 if error is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else NO_TIME


def refusal_of(identity: Identity) -> ErrorCode:
    """Why this client gets no token."""
    if may_ask_for_tokens(identity):
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
