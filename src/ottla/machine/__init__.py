"""Defines the contract between state machines, which decide, and I/O hosts, which act.

A machine is a synchronous function of (state, event, now). The node carries out a shard's decisions; a thin I/O host,
the server or the simulator, carries out the node's effects. This package knows neither Kafka nor the disk: it only
defines the shape of a state machine. `timers` keeps deadlines of a machine by key.

Rules that every machine keeps:

- `now` is an argument, a moment of the monotonic clock: every deadline is one. A timestamp is `WallClock.at(now)`.
- Ids and randomness come from a seeded source given at construction.
- A parked request is a ticket, an integer. No futures, callbacks or closures in state.
- An error that the peer caused is a reply with an error code; an error in Ottla itself is an AssertionError.
- Never iterate over a set of strings: the order differs between runs.

Sources: etcd/raft's Ready, Kafka's CoordinatorShard (group-coordinator), dask's WorkerState.
"""

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol, TypeAlias

Millis: TypeAlias = int
"""A moment of the host's monotonic clock, which cannot be set, or a duration; milliseconds. Deadlines have this
type."""

WallMillis = NewType("WallMillis", int)
"""A reading of the wall clock, as in records: milliseconds since 1970. Compare it only with its like."""

Ticket: TypeAlias = int
"""Identifies one request whose answer may come later."""

NO_PRODUCER_ID = -1


class WallClock:
    """Converts moments to timestamps and back: how far the wall clock is ahead of the monotonic one.

    This is the only place where the two clocks meet. The host updates it whenever the wall clock is set. A machine
    reads it while it decides, and never keeps the result as a deadline.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def at(self, now: Millis) -> WallMillis:
        """The wall clock at this moment."""
        return WallMillis(now + self.ahead_ms)

    def moment(self, timestamp: int) -> Millis:
        """The moment at which the wall clock shows `timestamp`, unless it is set meanwhile."""
        return timestamp - self.ahead_ms


class Entropy(Protocol):
    """The source of ids and random choices: `random.Random` in both hosts, seeded in the simulator."""

    def randbytes(self, n: int, /) -> bytes: ...

    def randrange(self, stop: int, /) -> int: ...

    def random(self) -> float: ...


class ShardRecord(NamedTuple):
    """One record to append to the shard's partition, key and value already encoded; value None is a tombstone.

    `meaning`: what the shard would decode from it, so that it need not decode what it has just encoded. None: decode.
    """

    key: bytes
    value: bytes | None
    meaning: object = None


class AppliedRecord(NamedTuple):
    """One record as it is stored in the log. `meaning`: that of the `ShardRecord`, None in a replay."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    meaning: object = None


class AppliedBatch(NamedTuple):
    """Records of one appended batch, in order; producer_id is -1 if the coordinator itself wrote them."""

    base_offset: int
    records: Sequence[AppliedRecord]
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    transactional: bool = False


class Writer(NamedTuple):
    """A transactional producer on whose behalf a shard writes."""

    producer_id: int
    producer_epoch: int


class Answer(NamedTuple):
    """The reply to the request of `ticket`; `reply` is a wire message."""

    ticket: Ticket
    reply: object


class ShardCall(NamedTuple):
    """A request to a node of the cluster, possibly this one; `message` is a wire message.

    The answer is passed to `AskingShard.answered` with `number`, which the shard chooses.
    """

    number: int
    node_id: int
    message: object


class Unanswered(NamedTuple):
    """A request to another node got no answer; `why` is one sentence. The other node may have carried it out."""

    why: str


class Decision(NamedTuple):
    """The effects that a shard asks for: records for its log, as one batch; answers and requests, sent once these are
    committed.

    If `records` is empty, the answers and requests still wait for everything that the shard appended before
    (ARCHITECTURE.md, section 2, rule 7). `writer`: the records belong to the transaction of this producer, and a marker
    commits or aborts them.
    """

    records: tuple[ShardRecord, ...] = ()
    answers: tuple[Answer, ...] = ()
    asks: tuple[ShardCall, ...] = ()
    writer: Writer | None = None


NOTHING = Decision()


class Call(NamedTuple):
    """One client request as a shard sees it: a wire message and its sender."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    body: object


class Shard(Protocol):
    """A machine whose memory is a log partition.

    Only `apply` and `apply_marker` change durable state, with records that were appended or are replayed; `decide`,
    `expire` and `loaded` never do. State that no record carries (parked tickets, heartbeats, members of a rebalance in
    progress) is soft state. Every method may change it, and it is lost with the shard. If an append fails, the shard is
    discarded and rebuilt by replay, so there is no rollback.
    """

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision: ...

    def expire(self, now: Millis) -> Decision: ...

    def apply(self, now: Millis, batch: AppliedBatch) -> None: ...

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def loaded(self, now: Millis) -> Decision:
        """Called once, when the replay has reached the log's end."""
        ...

    def abandon(self, ticket: Ticket) -> None:
        """The connection of this ticket is closed: no client would receive the answer."""
        ...

    def deadline(self) -> Millis | None: ...

    def check(self) -> None: ...


class AskingShard(Shard, Protocol):
    """A shard whose decisions have `asks`. Requests in flight are soft state: they are lost with the shard. A new shard
    sends requests again for work that its log does not show as done."""

    def answered(self, now: Millis, number: int, answer: object) -> Decision:
        """Handle the answer to the request with this number: a wire message, or `Unanswered`."""
        ...
