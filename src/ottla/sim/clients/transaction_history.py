"""Records the answers to transactional clients, and the records shown to readers of committed records.

Every entry is checked against all earlier ones when it is recorded. The history has only what clients see on the wire.

Promises checked here:

- A transaction is committed or aborted, never both: every answer, every record shown or skipped and every marker in a
  log agrees. No record is committed unless its client asked for that.
- A producer id belongs to one transactional id, and one client at a time has its epoch. After a client received a newer
  epoch, requests of older ones are refused.
- EndTxn's answer is the coordinator's state, in every incarnation, until the next request.
- The producer that EndTxn named is not fenced from the next transaction, unless another client requested the same id.
- In a partition, the committed records of a transactional id are in the order in which they were sent.
- An input record has one committed effect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ottla.sim.clients.batches import Note, ReadBatch
from ottla.sim.clients.history import Commit, History, TopicPartition
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError

Source: TypeAlias = tuple[str, int, int]
"""An input record: topic, partition, offset."""


class Identity(NamedTuple):
    """A producer id in one of its epochs."""

    producer_id: int
    epoch: int


class Given(NamedTuple):
    """A producer identity from InitProducerId, with the times of the request and of its answer."""

    identity: Identity
    asked_us: Micros
    told_us: Micros

    def replaces(self, other: Identity, given: "Given | None") -> bool:
        """Whether this identity is later than `other` of the same transactional id. `given`: the first identity with
        the other's producer id.

        A transactional id that expired gets another producer id, which is not always greater: each node allocates from
        a block of its own.
        """
        if self.identity.producer_id == other.producer_id:
            return self.identity.epoch > other.epoch
        return given is not None and self.asked_us >= given.told_us


@dataclass(frozen=True, slots=True)
class Label:
    """The content of a record's value: the client that sent it, its number there, and the transaction."""

    sender: str
    index: int
    number: int
    transaction: int | None

    @property
    def transactional_id(self) -> str:
        return self.sender.partition(".")[0]


def label_of(note: Note) -> Label:
    """The label of a record of this workload."""
    sender, index, number, transaction = (note.value or b"").rstrip(b".").decode().split(":")
    return Label(sender, int(index), int(number), int(transaction) if transaction else None)


class Transaction:
    """One transaction of one client. `committed` None: not known yet."""

    __slots__ = ("asked_to_commit", "commits", "committed", "number", "sent", "sources", "told_by", "transactional_id")

    def __init__(self, number: int, transactional_id: str) -> None:
        self.number = number
        self.transactional_id = transactional_id
        self.sent: dict[tuple[TopicPartition, int], None] = {}
        """(partition, number) of every record that was sent at least once."""
        self.sources: list[Source] = []
        """The input records that it processes."""
        self.commits: list[Commit] = []
        """The offsets that it commits."""
        self.asked_to_commit = False
        self.committed: bool | None = None
        self.told_by = ""

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"


class Ended(NamedTuple):
    """The result of an EndTxn: how the transaction ended, the identity for the next one, and the client that was
    told."""

    committed: bool
    successor: Identity
    who: str


class Ends:
    """The last EndTxn answer for each transactional id, as long as no other request can have changed that state."""

    IN_DOUBT_US: Micros = 10_000 * MS
    """How long a request whose answer was lost may still be carried out."""

    def __init__(self) -> None:
        self.standing: dict[str, Ended] = {}
        """Results that must still hold now."""
        self._asked: dict[str, dict[int, tuple[Identity | None, Micros | None]]] = {}
        """Requests of each id that may be in flight, by number: the identity; for a lost one, until when it may be
        carried out."""
        self._met: set[int] = set()
        """Numbers of requests during which another request of the same id ended: their order is unknown."""
        self._sure: set[int] = set()
        """Numbers of requests by the producer that EndTxn named, sent when no other request could have changed that."""
        self._number = 0

    def asks(self, transactional_id: str, identity: Identity | None) -> int:
        """Record a request that may change the state of this id, under `identity`; None: to get a new one. Return its
        number."""
        self._number += 1
        self._asked.setdefault(transactional_id, {})[self._number] = identity, None
        ended = self.standing.get(transactional_id)
        if ended is not None and _may_change(ended, identity):
            del self.standing[transactional_id]
            if identity == ended.successor:
                self._sure.add(self._number)
        return self._number

    def over(self, transactional_id: str, number: int) -> None:
        """Record that this request was answered, or died with its node."""
        asked = self._asked[transactional_id]
        del asked[number]
        self._met.update(asked)

    def lost(self, now_us: Micros, transactional_id: str, number: int) -> None:
        """Record that the connection of this request was lost, so its outcome is unknown."""
        identity, _ = self._asked[transactional_id][number]
        self._asked[transactional_id][number] = identity, now_us + self.IN_DOUBT_US

    def ended(self, now_us: Micros, transactional_id: str, number: int, ended: Ended) -> None:
        """Record the answer to the EndTxn of this number."""
        if not self._others(now_us, transactional_id, ended) and number not in self._met:
            self.standing[transactional_id] = ended

    def shut_out(self, now_us: Micros, who: str, transactional_id: str, number: int, identity: Identity) -> None:
        """Check the refusal of this request: its producer was fenced."""
        alone = not self._others(now_us, transactional_id, Ended(False, identity, who)) and number not in self._met
        if number in self._sure and alone:
            raise InvariantError(f"{who}: {identity} is shut out, and no other client has asked for {transactional_id}")

    def _others(self, now_us: Micros, transactional_id: str, ended: Ended) -> bool:
        """Whether another request may be carried out after that end."""
        return any(
            _may_change(ended, identity)
            for identity, until_us in self._asked[transactional_id].values()
            if until_us is None or until_us > now_us
        )


def _may_change(ended: Ended, identity: Identity | None) -> bool:
    """Whether a request under this identity has an effect after that end: an older epoch is fenced."""
    successor = ended.successor
    return identity is None or identity.producer_id != successor.producer_id or identity.epoch >= successor.epoch


class TransactionHistory:
    """See the module."""

    def __init__(self, history: History) -> None:
        self.ends = Ends()
        self.transactions: list[Transaction] = []
        self.effects: dict[Source, Transaction] = {}
        self._history = history
        self._owners: dict[int, str] = {}
        self._given: dict[str, list[Given]] = {}
        self._offsets: dict[tuple[str, TopicPartition, int], list[Transaction]] = {}

    def begin(self, transactional_id: str) -> Transaction:
        transaction = Transaction(len(self.transactions), transactional_id)
        self.transactions.append(transaction)
        return transaction

    @property
    def committed_count(self) -> int:
        return sum(transaction.committed is True for transaction in self.transactions)

    # ---- producer identities ---------------------------------------------------------------------------------------

    def initialized(
        self, asked_us: Micros, now_us: Micros, who: str, transactional_id: str, identity: Identity
    ) -> None:
        """Record that InitProducerId gave `who` this identity: clients with an older one are fenced from now on."""
        owner = self._owners.setdefault(identity.producer_id, transactional_id)
        if owner != transactional_id:
            raise InvariantError(f"{who}: producer id {identity.producer_id} belongs to {owner}")
        if identity.epoch < 0:
            raise InvariantError(f"{who}: {transactional_id} is given epoch {identity.epoch} of {identity.producer_id}")
        known = self._given.setdefault(transactional_id, [])
        if any(identity == each.identity for each in known):
            raise InvariantError(f"{who}: {transactional_id} is given {identity} twice")
        known.append(Given(identity, asked_us, now_us))

    def belongs(self, producer_id: int, transactional_id: str) -> None:
        """Record that this producer id was the transactional id's before any request."""
        self._owners[producer_id] = transactional_id

    def is_new(self, producer_id: int) -> bool:
        """Whether no client was given this producer id with a transactional id."""
        return producer_id not in self._owners

    def taken(self, who: str, what: str, transactional_id: str, identity: Identity, sent_us: Micros) -> None:
        """Check a successful request that was sent at `sent_us` under this identity."""
        known = self._given.get(transactional_id, [])
        first = next((each for each in known if each.identity.producer_id == identity.producer_id), None)
        for each in known:
            if each.told_us < sent_us and each.replaces(identity, first):
                raise InvariantError(
                    f"{who}: {what} is taken under {identity} after {each.identity} was given to another"
                )

    def commit_offsets(
        self, now_us: Micros, transaction: Transaction, group: str, positions: Mapping[TopicPartition, int]
    ) -> None:
        """Record that a transaction is about to commit these offsets of a group."""
        transaction.commits += self._history.begin_commit(now_us, group, positions)
        for where, position in positions.items():
            self._offsets.setdefault((group, where, position), []).append(transaction)

    # ---- the end of a transaction ----------------------------------------------------------------------------------

    def conclude(self, now_us: Micros, who: str, transaction: Transaction, *, committed: bool) -> None:
        """Record how a transaction ended."""
        if committed and not transaction.asked_to_commit:
            raise InvariantError(f"{who}: {transaction} is committed, and nobody asked for that")
        if transaction.committed is None:
            transaction.committed, transaction.told_by = committed, who
            for commit in transaction.commits:
                if commit.ended_us is None:
                    self._history.end_commit(now_us, commit, accepted=committed)
            if committed:
                self._take_effect(who, transaction)
        elif transaction.committed != committed:
            ends = ("aborted", "committed")
            raise InvariantError(
                f"{who}: {transaction} is {ends[committed]}, and {transaction.told_by} has it {ends[not committed]}"
            )

    def _take_effect(self, who: str, transaction: Transaction) -> None:
        for source in transaction.sources:
            before = self.effects.setdefault(source, transaction)
            if before is not transaction:
                raise InvariantError(f"{who}: {source} has its effect twice: by {before} and by {transaction}")

    # ---- what is read ----------------------------------------------------------------------------------------------

    def show(self, now_us: Micros, who: str, note: Note) -> Label:
        """Record that a reader of committed records received a record."""
        label = label_of(note)
        if label.transaction is not None:
            self.conclude(now_us, f"{who} at {note.offset}", self.transactions[label.transaction], committed=True)
        return label

    def show_offset(self, now_us: Micros, who: str, group: str, where: TopicPartition, offset: int) -> None:
        """Check an offset of a group that was shown as committed: its transaction must be committed."""
        may_be = [each for each in self._offsets.get((group, where, offset), []) if each.committed is not False]
        if len(may_be) == 1:
            self.conclude(now_us, f"{who} at {offset} of {where}", may_be[0], committed=True)

    def pass_over(self, now_us: Micros, who: str, notes: Iterable[Note]) -> None:
        """Record that an answer lists these records as aborted, so the reader skips them."""
        for note in notes:
            label = label_of(note)
            if label.transaction is None:
                raise InvariantError(
                    f"{who}: the record at {note.offset} is of no transaction, and passed over as aborted"
                )
            transaction = self.transactions[label.transaction]
            self.conclude(now_us, f"{who} at {note.offset}", transaction, committed=False)


class OrderOfShown:
    """Checks the order of the records of a partition that one reader receives, from any start."""

    def __init__(self) -> None:
        self._last: dict[tuple[TopicPartition, str], tuple[int, int, int]] = {}
        self._left: dict[tuple[TopicPartition, str], set[int]] = {}
        """Producer ids that another one has replaced."""

    def begin_again(self, where: TopicPartition) -> None:
        """The reader reads this partition from another place."""
        for key in [key for key in self._last if key[0] == where]:
            del self._last[key]
            self._left.pop(key, None)

    def show(self, who: str, where: TopicPartition, note: Note, batch: ReadBatch, label: Label) -> None:
        if label.transaction is None:
            return
        key = where, label.transactional_id
        place = (batch.producer_id, batch.producer_epoch, label.number)
        before = self._last.get(key, (batch.producer_id, -1, -1))
        left = self._left.setdefault(key, set())
        if place[0] != before[0]:
            left.add(before[0])
        if place[0] in left or (place[0] == before[0] and place <= before):
            raise InvariantError(f"{who}: {where} shows {label} at {note.offset} as {place}, behind {before}")
        self._last[key] = place


def sources_of(notes: Sequence[tuple[TopicPartition, Note]]) -> list[Source]:
    """The places of these input records."""
    return [(*where, note.offset) for where, note in notes]
