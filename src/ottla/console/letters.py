"""Makes the view of dead letters that share groups and KMQ queues have in common, and reads the form that sends them
back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ottla.console.letter_owners import READ_MAX
from ottla.console.page import Context, Field, InputError, View
from ottla.console.redrive_times import SentBack, redrive_times
from ottla.escaping import visible, visible_lines

SHOWN_MAX: Final = 200
CAUSES_MAX: Final = 50
VALUE_BYTES: Final = 200
SENT_MAX: Final = 5_000
"""Dead letters that are sent back at once. The commands have no such limit, and can keep to a rate."""
CIRCLES: Final = 3
"""A record that was sent back this often keeps failing."""
ANY: Final = "any"
READERS: Final = "Every reader of these topics gets them again."
"""A sentence of the page and of the preview about records that go back."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter. `topic`, `source_partition` and `source_offset` are where its record was, if that is known.
    `detail`: what tells causes of one kind apart. `value` is the beginning of the value as text. `first_failed_ms`,
    `last_failed_ms`: when its first and last delivery failed, None if it does not say it. `worker_reason`: the last
    reason that a member gave. `client_id`: the client of the member that had it last. `back_to`: the topic to
    which its record was sent back, None if there was none to send. `back_ms`: when that was, at the latest."""

    partition: int
    offset: int
    topic: str | None
    source_partition: int | None
    source_offset: int | None
    reason: str
    detail: str
    deliveries: int | None
    redrives: int
    at_ms: int
    is_back: bool
    value: str
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    worker_reason: str | None = None
    client_id: str | None = None
    back_to: str | None = None
    back_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """How many of the dead letters that were read have the same cause, detail, and reason that a member gave."""

    reason: str
    detail: str
    worker_reason: str | None
    letters: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters(View):
    """The newest dead letters of a share group or a queue, `owner`; those that were not sent back first. `circling`
    counts those whose record was sent back again and again. `is_paused`: the share group gets no records now.
    `outcomes`: words to show for some reasons."""

    owner: str
    topic: str
    is_paused: bool = False
    outcomes: Mapping[str, str] = field(default_factory=dict[str, str])
    readers: str = READERS
    letters: tuple[LetterRow, ...]
    causes: tuple[Cause, ...]
    read: int
    read_max: int
    sent_back: int
    waiting: int
    circling: int
    unseen: tuple[str, ...] = ()


def facts_of(rows: Sequence[LetterRow]) -> dict[str, Any]:
    """The fields of a view with these dead letters."""
    shown = sorted(
        rows,
        key=lambda each: (not each.is_back, each.last_failed_ms or each.at_ms, each.partition, each.offset),
        reverse=True,
    )
    return {
        "letters": tuple(shown[:SHOWN_MAX]),
        "causes": causes_of(rows),
        "read": len(rows),
        "read_max": READ_MAX,
        "sent_back": sum(each.is_back for each in rows),
        "waiting": sum(not each.is_back for each in rows),
        "circling": sum(each.redrives >= CIRCLES for each in rows),
    }


def with_times(
    context: Context, rows: Sequence[LetterRow], group: str, topic: str, read: Callable[[int, str], SentBack]
) -> Sequence[LetterRow]:
    """The rows of dead letters in a topic, with the times at which they were sent back. The other arguments: see
    `redrive_times`, which is called only if there is such a row."""
    if not any(each.is_back for each in rows):
        return rows
    times = redrive_times(context, group, topic, read)
    return [replace(each, back_ms=times.at(each.partition, each.offset)) if each.is_back else each for each in rows]


def causes_of(rows: Iterable[LetterRow]) -> tuple[Cause, ...]:
    """The causes with their numbers, the most frequent first."""
    all_, waiting = Counter[tuple[str, str, str | None]](), Counter[tuple[str, str, str | None]]()
    for each in rows:
        cause = each.reason, each.detail, each.worker_reason
        all_[cause] += 1
        waiting[cause] += not each.is_back
    return tuple(Cause(*cause, number, waiting[cause]) for cause, number in all_.most_common(CAUSES_MAX))


def beginning(value: bytes | None) -> str:
    """The beginning of a value as text."""
    return "" if value is None else visible_lines(value[:VALUE_BYTES].decode("utf-8", "replace"))


# ---- redrive -------------------------------------------------------------------------------------------------------


def redrive_fields(reasons: Iterable[str], narrower: Field) -> tuple[Field, ...]:
    """The form that selects dead letters: by one of these causes, by one more field, and how many."""
    return (
        Field("reason", "Cause", "select", ANY, (ANY, *reasons)),
        narrower,
        Field("most", "Records at most", "number", "1000", hint=f"Up to {SENT_MAX:,} at once, the oldest first."),
    )


def reason_in(context: Context, reasons: Iterable[str]) -> str | None:
    """The cause in the form, None for any. Raises InputError."""
    reason = context.form.get("reason", ANY)
    if reason != ANY and reason not in reasons:
        raise InputError("Choose a cause.")
    return None if reason == ANY else reason


def most_in(context: Context) -> int:
    """How many dead letters to send back at most. Raises InputError."""
    most = context.form.get("most", "").strip()
    if not (most.isascii() and most.isdigit() and 0 < int(most[:12]) <= SENT_MAX):
        raise InputError(f"Give a number from 1 to {SENT_MAX:,}.")
    return int(most)


def destinations(topics: Iterable[str]) -> str:
    """Where records go, with their numbers: "3 to orders, 1 to returns"."""
    return ", ".join(f"{number:,} to {visible(name)}" for name, number in Counter(topics).most_common(5)) or "none"
