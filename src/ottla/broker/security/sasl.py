"""Authenticates the clients of listeners with SASL: one dialogue for each connection, from its handshake on.

    a SASL listener --> HANDSHAKE --SaslHandshake--> AUTHENTICATE --last token--> COMPLETE
                            ^                           |   |                        |
                            |                        a wrong token --> FAILED        | SaslHandshake again,
                            +------------------------ the lifetime of the session ---+ within its lifetime

After a handshake of version 0, tokens come bare, in frames without a header, and so do the answers to them; after one
of version 1 they come in SaslAuthenticate requests. With `connections.max.reauth.ms`, a session has a lifetime: the
client has to authenticate again within it, by the same mechanism and as the same principal, at most once a second.
After the lifetime everything else closes the connection (KIP-368).

A failure has the same message for the client whatever its reason. The node gives it after
connection.failed.authentication.delay.ms, and closes the connection. The session of an OAUTHBEARER client ends with its
token (`oauth`). PLAIN sends the password itself: the node compares
it with the same stored credential as SCRAM does, and lets the host derive the keys on a thread (`effects.Derive`),
because that takes milliseconds.

Sources: Kafka's SaslServerAuthenticator.java, PlainSaslServer.java, KafkaChannel.java
(maybeBeginServerReauthentication); KIP-43, KIP-152, KIP-368; RFC 4616.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.broker.channel import Channel
from ottla.broker.client_identity import NODE_MECHANISM, Identity, Principal
from ottla.broker.cluster.trust import Trust
from ottla.broker.completions import Completions
from ottla.broker.effects import Derive, FetchKeys, Outbox
from ottla.broker.schedule import KeyedTimers, Schedule, Timed
from ottla.broker.security.scram import AuthenticationError, ScramExchange
from ottla.machine import Entropy, Millis, WallClock
from ottla.metadata.credentials import Credentials, ScramCredential
from ottla.protocol.errors import ErrorCode
from ottla.protocol.node_proof import NONCE_BYTES as NODE_NONCE_BYTES
from ottla.protocol.scram import DIGESTS, ITERATIONS_MIN, keys_of

if TYPE_CHECKING:
    from ottla.broker.security.jwks import KeySet

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
AGAIN_AFTER_MS: Final = 1_000
"""A client may not authenticate again sooner."""
DERIVATIONS_MAX: Final = 64
"""How many passwords may wait for their keys: more than a node derives in a fraction of a second."""
NONCE_BYTES: Final = 24
LIFETIME_MIN_MS: Final = 1_000
"""The shortest session: of a token that has expired within the allowed skew. 0 would be one without an end."""


class Phase(Enum):
    """The message that a connection has to send next."""

    HANDSHAKE = "a handshake that names a mechanism"
    AUTHENTICATE = "tokens of the mechanism"
    COMPLETE = "requests"
    FAILED = "nothing: it is about to be closed"


class Exchange(Protocol):
    """One exchange of tokens. `user`: the name that the client has proved, None until the last token. `claimed`: the
    user that the client has named, empty if there is no such user."""

    user: str | None

    @property
    def claimed(self) -> str: ...

    @property
    def ends_at_ms(self) -> int | None:
        """When what the client has proved expires, a timestamp; None if it does not."""
        ...

    def respond(self, message: bytes) -> bytes:
        """The token that answers the client's. Raises AuthenticationError, or PasswordGiven."""
        ...


class PasswordGiven(Exception):  # noqa: N818 - no error: the exchange goes on
    """The client has sent a password: its keys have to be derived before it can be compared."""

    def __init__(self, user: str, password: bytes) -> None:
        super().__init__("a password was given")
        self.user = user
        self.password = password


class PlainExchange:
    """The one token of PLAIN: authorization id, user and password, with NULs between them (RFC 4616)."""

    user: str | None = None
    claimed = ""
    ends_at_ms = None

    def respond(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationError("the token does not have the three parts of PLAIN")
        acts_as, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationError("the name is not UTF-8") from None
        if acts_as not in (b"", name):
            raise AuthenticationError("the client asks to act as another user")
        raise PasswordGiven(user, password)


class Handshake(NamedTuple):
    """The answer to a SaslHandshake. `ends`: why the connection is closed after it, None if it is not."""

    error: ErrorCode
    mechanisms: tuple[str, ...]
    ends: str | None = None


class Answer(NamedTuple):
    """The token that answers a client's. `lifetime_ms`: of the session, if this token was the last one; 0 for no
    limit."""

    token: bytes
    lifetime_ms: int = 0


@dataclass(slots=True)
class Dialogue:
    """The authentication of one connection."""

    channel: Channel
    phase: Phase = Phase.HANDSHAKE
    mechanism: str = ""
    exchange: Exchange | None = None
    known_as: Principal | None = None
    """The client's principal so far, if it authenticates again."""
    known_by: str = ""
    """The mechanism by which it was authenticated."""
    began: Millis = 0
    """When it last began to authenticate."""
    has_lifetime: bool = False
    """Whether it has to authenticate again."""
    claimed: str = ""
    """As whom the client is authenticating, if there is such a user. Others may be passwords in the wrong place."""

    @property
    def is_again(self) -> bool:
        return self.known_as is not None

    def failed(self, why: str) -> AuthenticationError:
        self.phase = Phase.FAILED
        return AuthenticationError(why)

    @property
    def failure(self) -> str:
        """The message that the client gets for any failure, in Kafka's words."""
        which = "re-authentication" if self.is_again else "authentication"
        return f"Authentication failed during {which} due to invalid credentials with SASL mechanism {self.mechanism}"


class Sasl:
    """The dialogues of a node.

    - `setting`: returns a setting of a listener, by both names.
    - `credentials`: returns those that hold now.
    - `logged_in`: called with each login, by identity, mechanism, user, and why it failed.
    - `trust`: how nodes of the cluster prove themselves. They may do so on every listener, by a mechanism of their own.
    """

    def __init__(
        self,
        setting: Callable[[str, str], Any],
        credentials: Callable[[], Credentials],
        outbox: Outbox,
        schedule: Schedule,
        completions: Completions,
        entropy: Entropy,
        wall: WallClock,
        logged_in: Callable[[Identity, str, str, str | None], None],
        trust: Trust,
    ) -> None:
        self._trust = trust
        self._setting = setting
        self._credentials = credentials
        self._outbox = outbox
        self._completions = completions
        self._entropy = entropy
        self._wall = wall
        self._logged_in = logged_in
        self._now: Millis = 0
        self.keys: dict[str, KeySet] = {}
        """By listener: the keys that check clients' tokens."""
        self._secret = entropy.randbytes(32)
        self._dialogues: dict[int, Dialogue] = {}
        self._lifetimes = KeyedTimers[int](schedule, Timed.SASL, self._expire)
        self._derivations: dict[int, tuple[Dialogue, str, ScramCredential | None, Callable[[Millis], None]]] = {}

    def of(self, channel: Channel) -> Dialogue:
        """The dialogue of a connection of a SASL listener."""
        connection_id = channel.identity.address.connection_id
        found = self._dialogues.get(connection_id)
        if found is None:
            found = self._dialogues[connection_id] = Dialogue(channel)
        return found

    def is_out_of_place(self, channel: Channel) -> bool:
        """Whether the client has authenticated, and has not begun to do so again."""
        return channel.authenticated and self.of(channel).phase is Phase.COMPLETE

    def is_of_node(self, channel: Channel) -> bool:
        """Whether the other end is proving that it is a node of the cluster. That depends on no password."""
        return self.of(channel).mechanism == NODE_MECHANISM

    def has_begun(self, channel: Channel) -> bool:
        """Whether this connection has begun to authenticate."""
        return channel.identity.address.connection_id in self._dialogues

    def disconnected(self, connection_id: int) -> None:
        """Forget the connection. Its derivation in progress still counts: clients that hang up must not be able to keep
        the host's threads busy."""
        self._dialogues.pop(connection_id, None)
        self._lifetimes.cancel(connection_id)

    # ---- the handshake ---------------------------------------------------------------------------------------------

    def handshake(self, now: Millis, channel: Channel, mechanism: str, version: int) -> Handshake:
        """Answer a SaslHandshake."""
        of_node = mechanism == NODE_MECHANISM and self._trust.is_shared
        if not (of_node or channel.identity.address.requires_authentication):
            return Handshake(ErrorCode.ILLEGAL_SASL_STATE, ())
        dialogue = self.of(channel)
        enabled: tuple[str, ...] = self._setting(channel.identity.address.listener, "sasl.enabled.mechanisms")
        if dialogue.phase is Phase.COMPLETE:
            soon = now - dialogue.began < AGAIN_AFTER_MS
            if soon or version == 0 or not dialogue.has_lifetime:
                return Handshake(ErrorCode.ILLEGAL_SASL_STATE, ())
            dialogue.known_as, dialogue.known_by = channel.identity.principal, channel.identity.mechanism
        elif dialogue.phase is not Phase.HANDSHAKE:
            dialogue.phase = Phase.FAILED
            self.refused(dialogue, "it sent a second SaslHandshake")
            return Handshake(ErrorCode.ILLEGAL_SASL_STATE, (), "it sent a second SaslHandshake")
        dialogue.mechanism = mechanism
        if mechanism not in enabled and not of_node:
            dialogue.phase = Phase.FAILED
            why = f"it asked for the SASL mechanism {mechanism[:100]!r}"
            dialogue.mechanism = ""
            self.refused(dialogue, why)
            return Handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled, why)
        dialogue.began, dialogue.phase = now, Phase.AUTHENTICATE
        listener = channel.identity.address.listener
        dialogue.exchange = self._node_exchange(channel) if of_node else self._exchange(mechanism, listener)
        channel.expect_token(bare=version == 0)
        return Handshake(ErrorCode.NONE, enabled)

    def _exchange(self, mechanism: str, listener: str) -> Exchange:
        if mechanism == PLAIN:
            return PlainExchange()
        if mechanism == OAUTHBEARER:
            return self._oauth_exchange(listener)

        def credential_of(user: str) -> ScramCredential | None:
            return self._credentials().get(user, {}).get(mechanism)

        return ScramExchange(mechanism, credential_of, self._entropy.randbytes(NONCE_BYTES).hex(), self._secret)

    def _oauth_exchange(self, listener: str) -> Exchange:
        from ottla.broker.security.oauth import OAuthExchange, TokenRules

        rules = TokenRules(
            self._setting(listener, "sasl.oauthbearer.expected.issuer"),
            tuple(self._setting(listener, "sasl.oauthbearer.expected.audience") or ()),
            self._setting(listener, "sasl.oauthbearer.sub.claim.name"),
            self._setting(listener, "sasl.oauthbearer.scope.claim.name"),
            self._setting(listener, "sasl.oauthbearer.clock.skew.seconds"),
        )
        return OAuthExchange(
            rules,
            lambda: self.keys.get(listener, {}),
            lambda: self._wall.at(self._now),
            lambda: self._outbox.add(FetchKeys(listener)),
        )

    def _node_exchange(self, channel: Channel) -> Exchange:
        from ottla.broker.security.node_proof import NodeExchange

        listener, nonce = channel.identity.address.listener, self._entropy.randbytes(NODE_NONCE_BYTES)
        return NodeExchange(self._trust, listener, nonce, channel.binding)

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def respond(
        self, now: Millis, dialogue: Dialogue, token: bytes, derived: Callable[[Millis], None]
    ) -> Answer | None:
        """Answer a client's token. None if keys have to be derived first: then a completion calls `derived`, and after
        it `conclude` gives the answer. Raises AuthenticationError."""
        if dialogue.phase is not Phase.AUTHENTICATE or dialogue.exchange is None:
            raise dialogue.failed(f"a token came where {dialogue.phase.value} should come")
        if dialogue.is_again and dialogue.mechanism != dialogue.known_by:
            raise dialogue.failed(f"it authenticated by {dialogue.known_by}, and again by {dialogue.mechanism}")
        self._now = now
        try:
            answer = dialogue.exchange.respond(token)
        except PasswordGiven as given:
            self._derive(dialogue, given, derived)
            return None
        except AuthenticationError as failed:
            dialogue.claimed = dialogue.exchange.claimed
            raise dialogue.failed(str(failed)) from None
        user = dialogue.exchange.user
        if user is None:
            return Answer(answer)
        return self._complete(now, dialogue, user, answer, dialogue.exchange.ends_at_ms)

    def _derive(self, dialogue: Dialogue, given: PasswordGiven, derived: Callable[[Millis], None]) -> None:
        """Ask the host to derive the keys of a password, of an unknown user too, so that both take the same time."""
        if len(self._derivations) >= DERIVATIONS_MAX:
            raise dialogue.failed(f"{DERIVATIONS_MAX} other clients are logging in by PLAIN")
        known = self._credentials().get(given.user, {})
        dialogue.claimed = given.user if known else ""
        mechanism = next((each for each in reversed(DIGESTS) if each in known), next(iter(DIGESTS)))
        credential = known.get(mechanism)
        salt, iterations = self._secret, ITERATIONS_MIN
        if credential is not None:
            salt, iterations = credential.salt, credential.iterations
        token = self._outbox.new_token()
        self._derivations[token] = (dialogue, given.user, credential, derived)
        self._outbox.add(Derive(token, mechanism, given.password, salt, iterations))

    def derived(self, token: int, mechanism: str, salted_password: bytes) -> None:
        """Take the result of a `Derive` effect."""
        dialogue, user, credential, tell = self._derivations.pop(token)
        if self._dialogues.get(dialogue.channel.identity.address.connection_id) is not dialogue:
            return  # the client has hung up
        stored_key = keys_of(mechanism, salted_password).stored_key
        known = credential.stored_key if credential is not None else self._secret
        if hmac.compare_digest(stored_key, known) and isinstance(dialogue.exchange, PlainExchange):
            dialogue.exchange.user = user
        self._completions.add(tell)

    def conclude(self, now: Millis, dialogue: Dialogue) -> Answer:
        """The answer after the keys were derived. Raises AuthenticationError."""
        user = None if dialogue.exchange is None else dialogue.exchange.user
        if user is None:
            raise dialogue.failed("the user is unknown or the password is wrong")
        return self._complete(now, dialogue, user, b"")

    def _complete(
        self, now: Millis, dialogue: Dialogue, user: str, token: bytes, ends_at_ms: int | None = None
    ) -> Answer:
        """The answer to the last token. `ends_at_ms`: when what the client has proved expires, a timestamp."""
        of_node = dialogue.mechanism == NODE_MECHANISM
        principal = Principal("Node" if of_node else "User", user)
        if dialogue.known_as not in (None, principal):
            raise dialogue.failed(f"it was {dialogue.known_as}, and authenticates again as {principal}")
        channel = dialogue.channel
        listener = channel.identity.address.listener
        lifetime_ms: int = 0 if of_node else self._setting(listener, "connections.max.reauth.ms")
        if ends_at_ms is not None:
            left_ms = max(LIFETIME_MIN_MS, self._wall.moment(ends_at_ms) - now)
            lifetime_ms = min(lifetime_ms, left_ms) if lifetime_ms > 0 else left_ms
        dialogue.phase, dialogue.exchange, dialogue.claimed = Phase.COMPLETE, None, ""
        channel.authenticate(principal, dialogue.mechanism)
        self._logged_in(channel.identity, dialogue.mechanism, user, None)
        connection_id = channel.identity.address.connection_id
        dialogue.has_lifetime = lifetime_ms > 0
        if dialogue.has_lifetime:
            self._lifetimes.set(connection_id, now + lifetime_ms)
        return Answer(token, lifetime_ms)

    def refused(self, dialogue: Dialogue, why: str) -> None:
        """Record that a client has failed to authenticate."""
        self._logged_in(dialogue.channel.identity, dialogue.mechanism, dialogue.claimed, why)

    def _expire(self, now: Millis) -> None:
        """The lifetimes of sessions are over: their clients may authenticate again, and nothing else."""
        for connection_id in self._lifetimes.pop_all(now):
            self._dialogues[connection_id].channel.expire()
