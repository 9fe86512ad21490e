"""Defines the delivery state of a record in a share group, and the types of a share partition's interface.

Sources: KIP-932, KIP-1191 (ARCHIVING), KIP-1222 (renew); Kafka's RecordState.java, AcknowledgeType.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ottla.machine import Millis
from ottla.share.failures import Failure, Reason


class State(IntEnum):
    """Kafka's delivery states, with Kafka's numbers, as stored in `__share_group_state`. ACQUIRED is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Acknowledge(IntEnum):
    """Acknowledgement types, with the numbers in requests."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


AcknowledgeBatch: TypeAlias = tuple[int, int, bytes]
"""First offset, last offset, and the acknowledgement types: one for all offsets, or one for each."""

NO_WRITE: Final = 0


class DeliveryState(NamedTuple):
    """The state of a run of records.

    `time`: for ACQUIRED, when the lock ends; for AVAILABLE, when the delay ends, 0 without one. `since`: when it was
    acquired. `write`: the number of the pending write that changes it. `rejected`: for ARCHIVING, whether a member
    rejected it; always False when the state was loaded, because the coordinator does not store it.
    """

    state: int
    delivery_count: int = 0
    member: str = ""
    time: Millis = 0
    since: Millis = 0
    write: int = NO_WRITE
    rejected: bool = False


class Change(NamedTuple):
    """Offsets from `first` up to but excluding `end` change from one state to another."""

    first: int
    end: int
    before: DeliveryState
    after: DeliveryState


class StateBatch(NamedTuple):
    """A run as stored in `__share_group_state`; both ends are inclusive."""

    first: int
    last: int
    state: int
    delivery_count: int


class Back(NamedTuple):
    """A run of records that were returned after this many deliveries, the end of their delay, and what is known of
    their failures."""

    first: int
    end: int
    delivery_count: int
    until: Millis
    failure: Failure


@dataclass(slots=True)
class Write:
    """State to be written; the partition waits for `persisted` or `failed` with it.

    `stands`: the change has already taken effect and is never undone (an expired lock, a member that left).
    """

    number: int
    start_offset: int
    complete_count: int
    batches: list[StateBatch]
    changes: list[Change] = field(default_factory=list[Change])
    stands: bool = False


class Letter(NamedTuple):
    """Records to be copied to the dead-letter topic: ARCHIVING until `dead_lettered`.

    `failure`: when their first delivery failed, if it is known and there was another one, and the last reason.
    `member`: the one that had acquired them last. `was_loaded`: they were ARCHIVING when the state was loaded, so that
    the time of their last failure is not known, nor the member.
    """

    first: int
    end: int
    delivery_count: int
    rejected: bool
    failure: Failure
    member: str = ""
    was_loaded: bool = False


class DeliverableRange(NamedTuple):
    """The position of the next deliverable records. `end` None: all records from `first` on are new.

    `exact`: deliver at most these, and no others in the same answer (poison isolation). `fresh`: the records were
    neither delivered nor delayed since the partition was loaded.
    """

    first: int
    end: int | None
    exact: bool = False
    fresh: bool = False


class InFlight(NamedTuple):
    """A run of records in flight, for display: acquired, archiving, delayed, or returned by a member.

    `until`: for ACQUIRED, when the lock ends; for AVAILABLE, when the delay ends, 0 without one. `since`: when it was
    acquired. `is_being_written`: its acknowledgement waits for the coordinator. `is_rejected`: for ARCHIVING, whether a
    member rejected it. `reason`: the last one that a member gave.
    """

    first: int
    last: int
    state: State
    delivery_count: int
    member: str
    since: Millis
    until: Millis
    is_being_written: bool
    is_rejected: bool
    reason: Reason | None = None
