"""Collects a decision while it is being made."""

from typing import Final

from ottla.groups.settings import GroupSettings
from ottla.machine import NOTHING, Answer, Decision, ShardRecord, Ticket, Writer

_BATCH_OVERHEAD: Final = 61
_RECORD_OVERHEAD: Final = 21
"""Maximum bytes of the attributes, deltas and lengths of one record, besides its key and value."""


class DecisionBuilder:
    """Records and answers of one step of a shard, in the order in which they were added. `writer`: see `Decision`."""

    __slots__ = ("answers", "records", "writer")

    def __init__(self) -> None:
        self.records: list[ShardRecord] = []
        self.answers: list[Answer] = []
        self.writer: Writer | None = None

    def answer(self, ticket: Ticket, reply: object) -> None:
        self.answers.append(Answer(ticket, reply))

    def build(self) -> Decision:
        if not self.records and not self.answers:
            return NOTHING
        return Decision(tuple(self.records), tuple(self.answers), writer=self.writer)


def fits(records: list[ShardRecord], settings: GroupSettings) -> bool:
    """Whether these records can be one batch: `max.message.bytes` bounds it, and a step is never split."""
    return _BATCH_OVERHEAD + size_of(records) <= settings.batch_size_max


def size_of(records: list[ShardRecord]) -> int:
    """Maximum bytes of a batch of these records."""
    return sum(len(each.key) + len(each.value or b"") + _RECORD_OVERHEAD for each in records)
