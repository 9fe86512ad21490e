"""Keeps the state of one connection: who its client is, which request may be served next, which answers may be sent.

Requests of a connection are served one at a time and in order. The exception is Produce after Produce whose batches are
all appended: this lets one producer share an fsync among its own requests. Answers are sent in the order of their
requests. No further request is served while the client does not read its answers, while the connection is muted
(KIP-219), or once it is closing.

The server, the simulator and the test harness each keep a `Channel` for every connection, and pass it to the node with
each frame. A channel reads nothing of a frame but its API key. `began` is the I/O host's own note of when a request
arrived, returned with its answer.

Data of the node that outlives a request is keyed by the address's `connection_id`, never by the principal.

Invariants: the first owed answer is not ready, because a ready one would have been sent. At most
`REQUESTS_IN_FLIGHT_MAX` answers are owed at once.

Source: Kafka's KafkaChannel and SocketServer (a channel is muted while its request is processed).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from ottla.broker.client_identity import NODE_ITSELF, Identity, Principal
from ottla.broker.connection_records import ConnectionRecord
from ottla.broker.effects import Parked, Part
from ottla.broker.produce_head import ProduceHead
from ottla.machine import Ticket
from ottla.protocol.apis import ApiKey

REQUESTS_IN_FLIGHT_MAX = 128
PRODUCE_KEY = int(ApiKey.PRODUCE)
PRODUCE = PRODUCE_KEY.to_bytes(2, "big")
"""The first two bytes of a Produce frame."""


class Owed:
    """An answer owed to a client, with its parts once they are ready. `ticket` is None until the node has received the
    request. `goes_on`: as in `Parked`."""

    __slots__ = ("api_key", "began", "goes_on", "parts", "ticket")

    def __init__(self, api_key: int, ticket: Ticket | None, parts: Sequence[Part] | None, began: int) -> None:
        self.api_key = api_key
        self.ticket = ticket
        self.parts = parts
        self.began = began
        self.goes_on = False


class Channel:
    """One connection: its client, and its requests in flight. Its methods return the answers that may be sent now, in
    that order.

    - `identity`: replaced as a whole by `authenticate`.
    - `authenticated`: the client may send any request; until then only the APIs with
      `ApiSpec.before_authentication`.
    - `bare_tokens`: the client's next frames are tokens of SASL without a header.
    - `binding`: what only the two ends of the connection's TLS know; empty without TLS.
    - `software`: the client's name and version as ApiVersions reported them (KIP-511), empty until then.
    - `charged_as`: the client id that the quotas charged for the last request, None if nothing is charged.
    - `record`: what the connection has done.
    - `produce_head`: how its last Produce frames began, if they were alike; `produced_to`: the topic of the last one
      that was parsed.
    """

    __slots__ = (
        "authenticated",
        "bare_tokens",
        "binding",
        "charged_as",
        "closing",
        "identity",
        "muted",
        "owed",
        "produce_head",
        "produced_to",
        "record",
        "software",
        "unsent",
        "waits",
    )

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.authenticated = not identity.address.requires_authentication
        self.bare_tokens = False
        self.binding = b""
        self.software = ""
        self.charged_as: str | None = None
        self.record = ConnectionRecord()
        self.produce_head: ProduceHead | None = None
        self.produced_to: str | bytes = ""
        self.owed: deque[Owed] = deque()
        self.unsent = False
        """The client has not read all that was sent to it."""
        self.muted = False
        self.closing = False
        self.waits = False
        """The next request may have to wait: ask `may_serve`. False: it need not."""

    def authenticate(self, principal: Principal, mechanism: str) -> None:
        """The client has authenticated, for the first time or again: its next requests have this identity."""
        self.identity = Identity(self.identity.address, principal, mechanism)
        self.authenticated, self.bare_tokens = True, False

    def expect_token(self, *, bare: bool) -> None:
        """The client has named a mechanism of SASL: its tokens follow."""
        self.bare_tokens = bare

    def expire(self) -> None:
        """The client has to authenticate again before it may send other requests."""
        self.authenticated = False

    # ---- requests in -----------------------------------------------------------------------------------------------

    @property
    def halted(self) -> bool:
        """No request may be served, whatever it is."""
        return self.unsent or self.muted or self.closing

    def may_serve(self, frame: bytes | bytearray | memoryview) -> bool:
        """Whether this frame, the next one in order, may be given to the node now."""
        if self.unsent or self.muted or self.closing:
            return False
        owed = self.owed
        if not owed:
            return True
        last = owed[-1]
        is_appended = last.api_key == PRODUCE_KEY and not last.goes_on
        return is_appended and frame[:2] == PRODUCE and len(owed) < REQUESTS_IN_FLIGHT_MAX

    def served(self, api_key: int, answer: Sequence[Part] | Parked | None, began: int = 0) -> Sequence[Owed]:
        """The node has served the next request; `answer` is what `Node.receive` returned."""
        if isinstance(answer, Parked):
            owed = self.owe(api_key, began)
            owed.ticket, owed.goes_on = answer.ticket, answer.goes_on
        elif answer is not None:
            done = Owed(api_key, None, answer, began)
            if not self.owed:
                return (done,)
            self.owed.append(done)
        return ()

    def owe(self, api_key: int, began: int = 0) -> Owed:
        """The next request is being decoded beside the loop; `read` reports the result."""
        owed = Owed(api_key, None, None, began)
        self.owed.append(owed)
        self.waits = True
        return owed

    def read(self, owed: Owed, answer: Sequence[Part] | Parked | None) -> Sequence[Owed]:
        """The node has served the request of `owed`; `answer` is what it returned."""
        if isinstance(answer, Parked):
            owed.ticket = answer.ticket
            return ()
        owed.parts = answer or ()
        return self._leaving()

    # ---- answers out -----------------------------------------------------------------------------------------------

    def answered(self, ticket: Ticket, parts: Sequence[Part]) -> Sequence[Owed] | None:
        """Record that the answer for `ticket` is ready. Returns None if no request of this connection waits for it."""
        for owed in self.owed:
            if owed.ticket == ticket and owed.parts is None:
                owed.parts = parts
                return self._leaving()
        return None

    def _leaving(self) -> Sequence[Owed]:
        owed = self.owed
        leaving: list[Owed] = []
        while owed and owed[0].parts is not None:
            leaving.append(owed.popleft())
        if not owed:
            self.waits = self.halted
        return leaving

    # ---- reasons to serve nothing ----------------------------------------------------------------------------------

    def note_unsent(self, unsent: bool) -> None:
        """Record whether the client has still to read what was sent to it."""
        self.unsent = unsent
        self._look()

    def mute(self, muted: bool) -> None:
        """Serve nothing for a while (KIP-219), or again.

        The node mutes a throttled client, so that not even a request that has already been read is served. The host
        ends that, at the time of the Mute effect.
        """
        self.muted = muted
        self._look()

    def close(self) -> None:
        """The connection closes: the owed answers will not be sent."""
        self.closing = self.waits = True
        self.owed.clear()

    def _look(self) -> None:
        self.waits = bool(self.owed) or self.unsent or self.muted or self.closing

    def check(self) -> None:
        """The invariants."""
        assert self.waits == (bool(self.owed) or self.halted), "it does not know whether the next request waits"
        assert not self.owed or self.owed[0].parts is None, "an answer whose turn has come has not left"
        assert len(self.owed) <= REQUESTS_IN_FLIGHT_MAX, "too many answers are owed"


NODE_CHANNEL: Final = Channel(NODE_ITSELF)
"""The channel of the node's requests to itself; nothing is owed there."""
