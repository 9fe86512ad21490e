"""Defines how a record stands with a share group, and the words of a share partition's interface.

Sources: KIP-932, KIP-1191 (ARCHIVING), KIP-1222 (renew); Kafka's RecordState.java, AcknowledgeType.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ottla.machine import Millis


class State(IntEnum):
    """Kafka's delivery states, with Kafka's numbers: they stand in `__share_group_state`. ACQUIRED never does."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Acknowledge(IntEnum):
    """What a member says of a record, as it stands in a request."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


AcknowledgeBatch: TypeAlias = tuple[int, int, bytes]
"""First offset, last offset, and what a member says of them: one type for all, or one for each offset."""

NO_WRITE: Final = 0


class Standing(NamedTuple):
    """How a run of records stands.

    `time`: ACQUIRED: when the lock ends. AVAILABLE: before this the record is held back; 0 if it never was.
    `since`: when it was acquired. `write`: the number of the write under way that changes it.
    """

    state: int
    delivery_count: int = 0
    member: str = ""
    time: Millis = 0
    since: Millis = 0
    write: int = NO_WRITE


class Change(NamedTuple):
    """Offsets from `first` on, before `end`, stop standing so and stand so."""

    first: int
    end: int
    before: Standing
    after: Standing


class StateBatch(NamedTuple):
    """A run as `__share_group_state` has it; both ends belong to it."""

    first: int
    last: int
    state: int
    delivery_count: int


class Back(NamedTuple):
    """A run of records that came back after so many deliveries, and until when they are held back."""

    first: int
    end: int
    delivery_count: int
    until: Millis


@dataclass(slots=True)
class Write:
    """State to be written; the partition waits for `persisted` or `failed` with it.

    `stands`: the change has happened already and is not taken back (a lock that ran out, a member that left).
    """

    number: int
    start_offset: int
    complete_count: int
    batches: list[StateBatch]
    changes: list[Change] = field(default_factory=list[Change])
    stands: bool = False


class Letter(NamedTuple):
    """Records on their way to the dead-letter topic: ARCHIVING until `dead_lettered`."""

    first: int
    end: int
    delivery_count: int
    rejected: bool


class Piece(NamedTuple):
    """Where the next deliverable records are. `end` None: from `first` on everything is new.

    `exact`: at most these, and nothing else in the same answer (poison isolation). `fresh`: nobody looked at them yet:
    they were neither delivered nor held back since the partition was loaded.
    """

    first: int
    end: int | None
    exact: bool = False
    fresh: bool = False


class Held(NamedTuple):
    """A run that a member holds, for people to look at."""

    first: int
    last: int
    member: str
    since: Millis
    lock_deadline: Millis
    delivery_count: int
