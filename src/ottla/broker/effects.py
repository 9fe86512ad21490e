"""Defines what a node asks of its I/O host: effects as plain values, and the outbox that collects them.

The host takes the effects after every call of the node and carries them out in order. It reports the results as events
(`Node.synced`, `Node.not_stored`, `Node.answered`, `Node.committed`, `Node.reread`, `Node.derived`). This module also
defines the parts of an answer: bytes-like objects and `FileSlice`s. The host sends them in order, so a fetch can be
sent without turning its records into Python objects.

Source: etcd/raft's Ready.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ottla.log.files import FileSlice
from ottla.log.syncing import Syncable
from ottla.machine import Millis, Ticket
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.metadata.store import VersionGuard, Write

Part: TypeAlias = bytes | bytearray | memoryview | FileSlice


class Parked(NamedTuple):
    """The answer to a request comes later, as a Reply effect for this ticket.

    `goes_on`: the request has not finished its work; no later request of the connection may be served before its
    answer.
    """

    ticket: Ticket
    goes_on: bool = False


class Reply(NamedTuple):
    """Send these parts as the answer that `ticket` waited for. Empty parts: there is no answer (acks=0)."""

    ticket: Ticket
    connection: int
    parts: Sequence[Part]


class Close(NamedTuple):
    """Close this connection after all earlier answers are sent."""

    connection: int
    why: str


class Mute(NamedTuple):
    """Read nothing more from this connection until the given time (KIP-219)."""

    connection: int
    until: Millis


class Sync(NamedTuple):
    """Call `sync` on all of these off the loop, in order, then `node.synced(now, token, failures)`.

    `failures` are the system's messages by position in `files`; after a failure the other files are still synced.
    """

    token: int
    files: Sequence[Syncable]


class Withdrawal:
    """Whether Stores that were handed out are not to be carried out any more: the node has written newer bytes."""

    __slots__ = ("is_made",)

    def __init__(self) -> None:
        self.is_made = False


class Store(NamedTuple):
    """Replace the file at `path` by `content`, atomically and durably, off the loop, unless the effect is withdrawn by
    then. If it fails, call `node.not_stored(path)`."""

    path: str
    content: bytes
    withdrawal: Withdrawal


class PeerRequest(NamedTuple):
    """Send this request, a whole frame, to another node; then `node.answered(now, token, answer)`, exactly once.

    The answer is the frame without its length, or `Unanswered` if the node is unknown, unreachable or lost. `line`
    selects the connection to that node; requests on one line are answered in order.
    """

    token: int
    node_id: int
    frame: bytes
    line: int = 0


class Commit(NamedTuple):
    """Do all these writes of the metadata store or none, if every guard holds, off the loop; then call
    `node.committed(now, token, outcome)`, exactly once. Only one commit is in progress at a time."""

    token: int
    writes: Sequence[Write]
    guards: Sequence[VersionGuard] = ()


class Reread(NamedTuple):
    """Read the rows that the metadata store has and `image` lacks, off the loop; then `node.reread(now, token,
    answer)`.

    After a commit whose outcome is unknown, the host reads once no write of that commit can arrive any more. `key`: a
    row that is read as well.
    """

    token: int
    image: MetadataImage
    key: str


class Derive(NamedTuple):
    """Compute the salted password (`protocol.scram.salted`), off the loop, then call `node.derived(now, token,
    mechanism, salted_password)`, exactly once. Takes milliseconds."""

    token: int
    mechanism: str
    password: bytes
    salt: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without the password and the salt."""
        return f"Derive({self.token}, {self.mechanism!r})"


class FetchKeys(NamedTuple):
    """Fetch the keys of this listener that check tokens, off the loop and not too often; then `node.keys_changed`. A
    client has a token of an unknown key."""

    listener: str


class Audited(NamedTuple):
    """Append this record to the audit log, off the loop. `time` is a timestamp in milliseconds."""

    record: Mapping[str, object]


class Committed(NamedTuple):
    """The commit was done and is durable; `generation` is its number."""

    generation: int


class Conflicted(NamedTuple):
    """A key was not at the version that a write or a guard expected: nothing was written."""

    why: str


class NotCommitted(NamedTuple):
    """The store failed: nothing was written, and nothing will be."""

    why: str


class OutcomeUnknown(NamedTuple):
    """The store did not report whether the commit was done."""

    why: str


class Reading(NamedTuple):
    """The result of a `Reread`: the new rows, and the value of its key (None if the key does not exist)."""

    delta: MetadataDelta
    value: bytes | None


class Unread(NamedTuple):
    """The store could not be read."""

    why: str


CommitOutcome: TypeAlias = Committed | Conflicted | NotCommitted | OutcomeUnknown
Effect: TypeAlias = Reply | Close | Mute | Sync | Store | PeerRequest | Commit | Reread | Derive | FetchKeys | Audited


class Outbox:
    """Collects the effects of a node in order, until its host takes them."""

    __slots__ = ("_effects", "_next_token")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._next_token = 1

    def add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def sync(self, files: Sequence[Syncable]) -> int:
        """Ask the I/O host to fsync all these files. Returns the token that `Node.synced` will receive."""
        token = self.new_token()
        self._effects.append(Sync(token, files))
        return token

    def new_token(self) -> int:
        """A number that no other effect of this node has."""
        token, self._next_token = self._next_token, self._next_token + 1
        return token

    def take_reply(self, ticket: Ticket) -> Reply | None:
        """Take the answer to this ticket back out; None if it is not here."""
        effects = self._effects
        for at in range(len(effects) - 1, -1, -1):
            effect = effects[at]
            if isinstance(effect, Reply) and effect.ticket == ticket:
                del effects[at]
                return effect
        return None

    def take(self) -> list[Effect]:
        """Hand over everything that was added since."""
        effects, self._effects = self._effects, []
        return effects
