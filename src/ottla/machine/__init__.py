"""The contract between what decides and what touches the world.

What decides is a synchronous function of (state, event, now); a thin shell carries its decisions out; the simulator
is a second shell. This room knows neither Kafka nor the disk: only the shape of a state machine.

Rules that every machine keeps:

- `now` is an argument, a moment of the monotonic clock: every deadline is one. A timestamp is `WallClock.at(now)`.
- Ids and randomness come from a seeded source given at construction.
- A parked request is a ticket, an integer. No futures, callbacks or closures in state.
- An error that the peer caused is a reply with an error code; an error that we caused is an AssertionError.
- Never iterate over a set of strings: the order differs between runs.

Sources: etcd/raft's Ready, Kafka's CoordinatorShard (group-coordinator), dask's WorkerState.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol, TypeAlias

Millis: TypeAlias = int
"""A moment of the shell's monotonic clock, which nobody sets, or a span of time; milliseconds. Deadlines are these."""

WallMillis = NewType("WallMillis", int)
"""What the wall clock shows, in milliseconds since 1970, and what records carry. Compared only with its like."""

Ticket: TypeAlias = int
"""Names one request whose answer may come later."""

NO_PRODUCER_ID = -1


class WallClock:
    """From moments to timestamps and back: how far the wall clock is ahead of the monotonic one.

    The one place where the two meet. The shell tells the node, and so whoever was given this clock, whenever somebody
    has set the wall clock; a machine asks it while it decides and never keeps what it said as a deadline.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def at(self, now: Millis) -> WallMillis:
        """What the wall clock shows at this moment."""
        return WallMillis(now + self.ahead_ms)

    def moment(self, timestamp: int) -> Millis:
        """When the wall clock shows, or showed, `timestamp`, if nobody sets it."""
        return timestamp - self.ahead_ms


class Entropy(Protocol):
    """Where ids and random choices come from: `random.Random` in both shells, seeded in the simulator."""

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
    """Records of one appended batch, in order; producer_id is -1 where the coordinator itself wrote them."""

    base_offset: int
    records: Sequence[AppliedRecord]
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    transactional: bool = False


class Writer(NamedTuple):
    """A transactional producer, in whose name a shard writes."""

    producer_id: int
    producer_epoch: int


class Answer(NamedTuple):
    """The reply that ticket has been waiting for; `reply` is a wire message."""

    ticket: Ticket
    reply: object


class Ask(NamedTuple):
    """A request to a node of the cluster, perhaps to this one; `message` is a wire message.

    What comes back is given to `AskingShard.answered` with `number`, which the shard chooses.
    """

    number: int
    node_id: int
    message: object


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request to another node was not answered, one sentence why. Whether it was carried out nobody knows."""

    why: str


class Decision(NamedTuple):
    """What a shard wants: records in its log, as one batch; answers and requests, which leave once these are committed.

    `records` empty: the others still wait for everything the shard had appended before (ARCHITECTURE.md, section 2,
    rule 7). `writer`: the records belong to the transaction of this producer; a marker says what becomes of them.
    """

    records: tuple[ShardRecord, ...] = ()
    answers: tuple[Answer, ...] = ()
    asks: tuple[Ask, ...] = ()
    writer: Writer | None = None


NOTHING = Decision()


class Call(NamedTuple):
    """One client request as a shard sees it: a wire message and who sent it."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    body: object


class Shard(Protocol):
    """A machine whose memory is a log partition.

    `decide` never changes durable state: that only happens in `apply`, right after the append, or by replay at start.
    What no record carries (parked tickets, heartbeats, members of a rebalance under way) is soft state: `decide` and
    `expire` may change it, and it dies with the shard. If an append fails the shard is thrown away and rebuilt by
    replay, so there is no rollback.
    """

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision: ...

    def expire(self, now: Millis) -> Decision: ...

    def apply(self, now: Millis, batch: AppliedBatch) -> None: ...

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def loaded(self, now: Millis) -> Decision:
        """Called once when the replay has reached the log's end."""
        ...

    def abandon(self, ticket: Ticket) -> None:
        """The connection behind this ticket is gone: the answer would reach nobody."""
        ...

    def deadline(self) -> Millis | None: ...

    def check(self) -> None: ...


class AskingShard(Shard, Protocol):
    """A shard whose decisions have `asks`. What it has asked is soft state: it dies with the shard, which asks again
    for what its log says is not done."""

    def answered(self, now: Millis, number: int, answer: object) -> Decision:
        """The wire message that answers the ask of this number, or `Unanswered`."""
        ...
