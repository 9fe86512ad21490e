"""Sends requests of this node to other nodes, matches their answers, and ends their waiting at a deadline.

A message becomes an `PeerRequest` effect. Its asker gets an answer, or `Unanswered` if it is unknown whether the
request was carried out. The node serves a request to itself like any other, without the network. The I/O host finds the
addresses of other nodes in the image.

Nodes prove themselves once on each connection (`trust`). Requests that only a node may send are refused to all other
clients, on every listener.

A node answers the requests of a connection in order, so a request that waits delays all requests behind it. Each kind
of request that may wait for other replicas therefore has a line, which is a connection of its own. Line 0 is for
requests that are answered at once, and for those to the controller.

Invariant: every request is answered exactly once, at its deadline at the latest; a later answer is ignored.

Source: Kafka's InterBrokerSendThread.java, which has a connection for each sender.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from ottla.broker.channel import NODE_CHANNEL
from ottla.broker.client_identity import Identity
from ottla.broker.cluster.trust import CLIENT_ID, Trust
from ottla.broker.completions import Completions
from ottla.broker.effects import Outbox, PeerRequest
from ottla.broker.requests import Request
from ottla.broker.schedule import KeyedTimers, Schedule, Timed
from ottla.machine import Millis, Unanswered
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.wire import Buffer

TIMEOUT_MS: Final = 30_000
"""How long a request to another node may take (request.timeout.ms of Kafka's brokers)."""
DOUBT_MS: Final = 500
"""How long a node is doubted after a connection to it broke. If it died, the cluster gives it up before; if only this
connection is broken, clients may reach it."""
FETCH_LINE: Final = 1
"""The line of followers' fetches, which wait at the leader."""
STATE_LINE: Final = 2
"""The line of share groups' writes, whose requests wait until they are committed."""
MARKERS_LINE: Final = 3
"""The line of transaction markers, whose requests wait until every in-sync replica has them."""
ADDITIONS_LINE: Final = 4
"""The line of AddPartitionsToTxn, which waits until the coordinator's record is committed."""


class Asker(Protocol):
    """Has sent a request to another node."""

    def answered(self, now: Millis, answer: object) -> None:
        """The wire message of the answer, or `Unanswered`."""
        ...


class _UnderWay(NamedTuple):
    asker: Asker
    node_id: int
    api_key: int
    version: int
    line: int


class OwnRequest(Request):
    """A request of the node to itself; its answer goes to its asker."""

    __slots__ = ("_peers", "_token")

    def __init__(self, peers: Peers, token: int, now: Millis, message: Any, version: int) -> None:
        super().__init__(NODE_CHANNEL, message.API_KEY, version, _correlation(token), CLIENT_ID, now, message)
        self._peers = peers
        self._token = token

    def take_answer(self, message: Any) -> bool:
        self._peers.own_answered(self._token, message)
        return True


class Peers:
    """The requests of one node to the nodes of its cluster. `trust`: how they recognize each other."""

    def __init__(self, outbox: Outbox, schedule: Schedule, completions: Completions, trust: Trust) -> None:
        self.trust = trust
        self._outbox = outbox
        self._completions = completions
        self._node_id = trust.node_id
        self._under_way: dict[int, _UnderWay] = {}
        self._timers = KeyedTimers[int](schedule, Timed.PEERS, self._end_late)
        self._doubted: dict[int, Millis] = {}
        """Until when, of each node that was lost and has not answered since."""
        self.own: deque[tuple[int, Any, int]] = deque()
        """The requests that the node has sent to itself, and has still to serve."""

    def __len__(self) -> int:
        return len(self._under_way)

    def trusts(self, identity: Identity, client_id: str | None) -> bool:
        """Whether a request comes from a node of the cluster."""
        return self.trust.trusts(identity, client_id)

    def ask(
        self, now: Millis, node_id: int, message: Any, asker: Asker, version: int | None = None, *, line: int = 0
    ) -> None:
        """Send this wire message, at its newest version if none is named; a completion gives `asker` the answer."""
        token = self._outbox.new_token()
        key: int = message.API_KEY
        version = int(message.MAX_VERSION) if version is None else version
        self._under_way[token] = _UnderWay(asker, node_id, key, version, line)
        self._timers.set(token, now + TIMEOUT_MS)
        if node_id == self._node_id:
            self.own.append((token, message, version))
        else:
            header = RequestHeader(key, version, _correlation(token), self.trust.client_id_for(node_id))
            self._outbox.add(PeerRequest(token, node_id, bytes(encode_request(header, message)), line))

    def answered(self, now: Millis, token: int, answer: Buffer | Unanswered) -> None:
        """Handle the result of a PeerRequest: the frame of the answer without its length, or why there is none."""
        known = self._under_way.get(token)
        if known is None:
            return
        if isinstance(answer, Unanswered):
            self._doubted.setdefault(known.node_id, now + DOUBT_MS)
            self._end(token, answer)
            return
        self._doubted.pop(known.node_id, None)
        if self._completions.is_behind:
            answer = memoryview(bytearray(answer))  # the frame's memory belongs to the I/O host by then
        try:
            correlation_id, message = decode_response(known.api_key, known.version, answer)
        except MalformedFrameError as error:
            self._end(token, Unanswered(f"node {known.node_id} gave an answer that does not parse: {error}"))
            return
        if correlation_id != _correlation(token):
            self._end(token, Unanswered(f"node {known.node_id} gave the answer to another request"))
        else:
            self._end(token, message)

    def doubts(self, now: Millis, node_id: int) -> bool:
        """Whether a connection to this node broke recently, and the node has not answered since."""
        return now < self._doubted.get(node_id, now)

    def given_up(self, node_id: int) -> None:
        """The cluster has given this node up: end the requests to it. Followers' fetches are not ended here: they end
        with the node's leaderships."""
        if node_id == self._node_id:
            return
        asked = [(token, each) for token, each in self._under_way.items() if each.node_id == node_id]
        for token, each in asked:
            if each.line != FETCH_LINE:
                self._end(token, Unanswered(f"node {node_id} was given up"))

    def _end(self, token: int, answer: object) -> None:
        known = self._under_way.pop(token, None)
        if known is not None:
            self._timers.cancel(token)
            self._completions.add(known.asker.answered, answer)

    # ---- requests to the node itself -------------------------------------------------------------------------------

    def take_own(self, now: Millis) -> list[OwnRequest]:
        """The requests to serve; each receives its answer itself."""
        own, self.own = self.own, deque()
        return [OwnRequest(self, token, now, message, version) for token, message, version in own]

    def own_answered(self, token: int, message: Any) -> None:
        """A request of the node to itself has its answer."""
        self._end(token, message)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _end_late(self, now: Millis) -> None:
        """End the requests whose deadline has passed."""
        while (token := self._timers.pop(now)) is not None:
            self._end(token, Unanswered(f"node {self._under_way[token].node_id} did not answer in time"))

    def check(self) -> None:
        self._timers.check()
        assert all(token in self._timers for token in self._under_way)


def _correlation(token: int) -> int:
    return token & 0x7FFF_FFFF
