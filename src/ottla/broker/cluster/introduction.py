"""Begins a connection to another node: the requests by which both prove themselves, before any other request.

    SaslHandshake                   -->
    SaslAuthenticate, first token   -->
                                    <--  the mechanism is known
                                    <--  the other node's proof
    SaslAuthenticate, second token  -->
    requests                        -->
                                    <--  the proof is accepted
                                    <--  answers

Requests follow as soon as the other node is proved, so a connection costs one round trip more than without proofs.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.client_identity import NODE_MECHANISM
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.node_proof import NodeClient, NotProvedError

_TOKENS_SINCE: Final = 1
"""The version of SaslHandshake after which tokens come in SaslAuthenticate requests."""
_AUTHENTICATE_VERSION: Final = 2


class Introduction:
    """The beginning of one connection to another node: its first requests, and their answers.

    The host sends `begin()`. It gives each answer to `receive` until `is_over`, and sends the result. Once `is_proved`,
    requests may follow.
    """

    __slots__ = ("_client", "_client_id", "_expected", "is_proved")

    def __init__(self, client: NodeClient, client_id: str) -> None:
        self._client = client
        self._client_id = client_id
        self._expected = 1
        self.is_proved = False
        """The other node has proved itself, and this one has sent its proof."""

    @property
    def is_over(self) -> bool:
        return not self._expected

    def begin(self) -> bytes:
        """The first two requests."""
        handshake = SaslHandshakeRequest(NODE_MECHANISM)
        header = RequestHeader(handshake.API_KEY, _TOKENS_SINCE, 1, self._client_id)
        return bytes(encode_request(header, handshake)) + self._token(2, self._client.first())

    def receive(self, answer: bytes) -> bytes:
        """Handle the next answer, without its length. Returns what to send next, perhaps nothing. Raises
        NotProvedError."""
        number, self._expected = self._expected, (self._expected + 1) % 4
        key = SaslHandshakeRequest.API_KEY if number == 1 else SaslAuthenticateRequest.API_KEY
        try:
            found, message = decode_response(key, _TOKENS_SINCE if number == 1 else _AUTHENTICATE_VERSION, answer)
        except MalformedFrameError:
            raise NotProvedError("its answer does not parse") from None
        if found != number:
            raise NotProvedError("it answered another request")
        assert isinstance(message, SaslHandshakeResponse | SaslAuthenticateResponse)
        if message.error_code:
            raise NotProvedError(f"it refuses this node: {_name(message.error_code)}")
        if isinstance(message, SaslHandshakeResponse) or number != 2:
            return b""
        final = self._client.final(bytes(message.auth_bytes))
        self.is_proved = True
        return self._token(3, final)

    def _token(self, number: int, token: bytes) -> bytes:
        message = SaslAuthenticateRequest(token)
        return bytes(
            encode_request(RequestHeader(message.API_KEY, _AUTHENTICATE_VERSION, number, self._client_id), message)
        )


def _name(error_code: int) -> str:
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return f"error {error_code}"
