"""SaslAuthenticate, key 36, versions 0 to 2: a token of a SASL exchange.

On a listener without SASL the answer is ILLEGAL_SASL_STATE, unless a node of the cluster has begun to prove itself. A
client that fails is answered SASL_AUTHENTICATION_FAILED
after a tenth of a second, with the same message whatever the reason, and then its connection is closed.

Versions: 1 the session's lifetime, 2 flexible. After a SaslHandshake of version 0 tokens come without a header
(`receive_bare`).

Source: SaslServerAuthenticator.handleSaslToken, KafkaApis.handleSaslAuthenticateRequest; KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.channel import Channel
from ottla.broker.effects import Close, Parked, Part
from ottla.broker.observations.slowest import Awaited
from ottla.broker.parking import ParkedWork
from ottla.broker.requests import Request, RequestRefusedError
from ottla.machine import Millis, Ticket
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.security.sasl import Answer


SPEC = ApiSpec(
    key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    before_authentication=True,
)


OUT_OF_PLACE = "There is nothing to authenticate for: this client is let in as it is."
TOO_LATE = "The client has authenticated already: to do so again, it sends SaslHandshake first."


def handle(node: Core, request: Request) -> SaslAuthenticateResponse | Parked:
    body: SaslAuthenticateRequest = request.body
    if not (request.identity.address.requires_authentication or node.sasl.has_begun(request.channel)):
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, OUT_OF_PLACE)
    if node.sasl.is_out_of_place(request.channel):
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE)
    return Login(node, request).begin(bytes(body.auth_bytes))


def receive_bare(node: Core, now: Millis, channel: Channel, token: bytes) -> list[Part] | Parked:
    """Serve a frame that is a token itself. The answer is one too; there is none to a token that is wrong. Raises
    Refused for one that no mechanism has. Raises RequestRefusedError."""
    if len(token) < 2:
        raise RequestRefusedError(f"a token of {len(token)} bytes")
    request = Request(channel, SPEC.key, 0, 0, None, now, None)
    return BareLogin(node, request).begin(token)


class Login(ParkedWork):
    """One token of a client, until it is answered."""

    __slots__ = ("_dialogue", "_node", "_request", "_ticket", "_why")

    def __init__(self, node: Core, request: Request) -> None:
        self._node = node
        self._request = request
        self._dialogue = node.sasl.of(request.channel)
        self._ticket: Ticket = 0
        self._why = ""

    def awaits(self, request: Request) -> Awaited | None:
        return Awaited.PASSWORDS

    def begin(self, token: bytes) -> Any:
        from ottla.broker.security.scram import AuthenticationError

        now, parking = self._request.now, self._node.parking
        try:
            answer = self._node.sasl.respond(now, self._dialogue, token, self.derived)
        except AuthenticationError as failed:
            self._fail(failed)
            self._ticket = parking.park(self._request, now + self._delay_ms, self)
            return Parked(self._ticket)
        if answer is not None:
            return self.encoded(answer)
        self._ticket = parking.park(self._request, None, self)
        return Parked(self._ticket)

    def derived(self, now: Millis) -> None:
        """The keys of the client's password are derived."""
        from ottla.broker.security.scram import AuthenticationError

        if self._node.parking.request_of(self._ticket) is None:
            return  # the client has hung up
        try:
            answer = self._node.sasl.conclude(now, self._dialogue)
        except AuthenticationError as failed:
            self._fail(failed)
            self._node.parking.limit(self._ticket, now + self._delay_ms)
        else:
            self.reply(now, self.encoded(answer))

    def _fail(self, failed: Exception) -> None:
        self._why = str(failed)
        self._node.sasl.refused(self._dialogue, self._why)

    @property
    def _delay_ms(self) -> int:
        """How long a client that failed waits for its answer, so that guessing takes time."""
        return int(self._node.settings["connection.failed.authentication.delay.ms"])

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self._request.channel.mute(True)  # what the client has sent behind its token is not served any more
        self.reply(now, self.refused())
        address = self._request.identity.address
        self._node.outbox.add(Close(address.connection_id, f"it failed to authenticate: {self._why}"))

    def abandon(self, ticket: Ticket) -> None:
        """Do nothing: the dialogue is forgotten with the connection."""

    # ---- how answers are written -----------------------------------------------------------------------------------

    def encoded(self, answer: Answer) -> Any:
        return SaslAuthenticateResponse(auth_bytes=answer.token, session_lifetime_ms=answer.lifetime_ms)

    def refused(self) -> Any:
        return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, self._dialogue.failure)

    def reply(self, now: Millis, answer: Any) -> None:
        self._node.parking.answer(now, self._ticket, answer)


class BareLogin(Login):
    """A token without a header. The answer, a list of parts, has no header either."""

    __slots__ = ()

    def encoded(self, answer: Answer) -> list[Part]:
        return [len(answer.token).to_bytes(4, "big") + answer.token]

    def refused(self) -> list[Part]:
        return []

    def reply(self, now: Millis, answer: list[Part]) -> None:
        self._node.parking.reply(self._ticket, answer)
