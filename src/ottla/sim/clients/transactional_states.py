"""Defines the states of a simulated transactional producer, and what it knows of its open transaction.

    state    event                                                    next state
    NEW      InitProducerId succeeds                                  READY
    READY    it begins a transaction                                  OPEN
    OPEN     everything is written, or it aborts                      ENDING
    ENDING   the transaction is ended                                 READY
    ENDING   the same, but an earlier request may still take effect   NEW
    NEW, OPEN, ENDING    it is fenced                                 NEW; OVER if another client has its place
    all but OVER         it dies                                      OVER

NEW takes an epoch before anything else. OVER is final. A transaction is open in OPEN and ENDING.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.transaction_history import Transaction
from ottla.sim.kernel.clock import Micros


class ProducerState(Enum):
    """See the module's docstring."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    OVER = "over"


NEXT: Final = {
    ProducerState.NEW: (ProducerState.READY, ProducerState.NEW, ProducerState.OVER),
    ProducerState.READY: (ProducerState.OPEN, ProducerState.OVER),
    ProducerState.OPEN: (ProducerState.ENDING, ProducerState.NEW, ProducerState.OVER),
    ProducerState.ENDING: (ProducerState.READY, ProducerState.NEW, ProducerState.OVER),
    ProducerState.OVER: (),
}
"""The states that may follow each state."""


class Reached(IntEnum):
    """How far a transaction has reached its coordinator."""

    NOTHING = 0
    """No request of it was sent, so there is nothing to end."""
    ASKED = 1
    """A request was sent."""
    REGISTERED = 2
    """A request succeeded, so the coordinator knows of the transaction."""


class GroupOffsets:
    """The offsets that a transaction commits for a group. `generation` and `member_id`: those of the member that read
    up to there."""

    def __init__(
        self, group: str, generation: int, member_id: str, instance: str | None, positions: dict[TopicPartition, int]
    ) -> None:
        self.group = group
        self.generation = generation
        self.member_id = member_id
        self.instance = instance
        self.positions = positions
        self.added = False
        self.done = False


@dataclass(slots=True)
class OpenTransaction:
    """A transaction until it is ended, as its producer knows it. `done` is called with whether it is known to be
    committed."""

    transaction: Transaction
    offsets: GroupOffsets | None
    done: Callable[[bool], None] | None
    end_at_us: Micros
    """It is not committed earlier."""
    to_make: int = 0
    """How many batches are still to be made."""
    commits: bool = True
    reached: Reached = Reached.NOTHING
    in_doubt: bool = False
    """An EndTxn was sent and its outcome is unknown."""
    added: set[TopicPartition] = field(default_factory=set[TopicPartition])

    def reach(self, reached: Reached) -> None:
        """It has reached its coordinator at least so far."""
        self.reached = max(self.reached, reached)
