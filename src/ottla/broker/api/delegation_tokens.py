"""Answers the four APIs of delegation tokens, like a broker without them.

Kafka accepts such requests only on authenticated connections. If it has no secret key for tokens, it answers those that
there are none.

Source: KafkaApis.allowTokenRequests, DelegationTokenControlManager; KIP-48.
"""

from typing import Final

from ottla.broker.requests import ANONYMOUS, Session
from ottla.protocol.errors import ErrorCode

NO_TIME: Final = -1
"""The timestamps of an answer without a token."""


def may_ask_for_tokens(session: Session) -> bool:
    """Whether Kafka would process a token request from this client."""
    protocol = session.address.security_protocol
    return protocol != "PLAINTEXT" and not (protocol == "SSL" and session.principal == ANONYMOUS)


def refusal_of(session: Session) -> ErrorCode:
    """Why this client gets no token."""
    if may_ask_for_tokens(session):
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
