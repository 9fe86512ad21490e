"""Reads and counts what the pages of dead letters of share groups and of KMQ queues have in common, and the form that
sends dead letters back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from ottla.console.page import Context, Field, InputError
from ottla.escaping import visible, visible_lines

READ_MAX: Final = 500
"""The newest records of each partition of the dead-letter topic that are read for the page."""
SHOWN_MAX: Final = 200
VALUE_BYTES: Final = 200
SENT_MAX: Final = 5_000
"""Dead letters that are sent back at once. The commands have no such limit, and can keep to a rate."""
CIRCLES: Final = 3
"""A record that was sent back this often keeps failing."""
ANY: Final = "any"


def counted(letters: Iterable[tuple[str, str, bool]]) -> list[tuple[str, str, int, int]]:
    """The causes of dead letters, the most frequent first: (cause, detail, dead letters, those that wait). Each dead
    letter is given as (cause, detail, whether it went back)."""
    all_, waiting = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for reason, detail, is_back in letters:
        all_[reason, detail] += 1
        waiting[reason, detail] += not is_back
    return [(*cause, number, waiting[cause]) for cause, number in all_.most_common()]


def beginning(value: bytes | None) -> str:
    """The beginning of a value as text."""
    return "" if value is None else visible_lines(value[:VALUE_BYTES].decode("utf-8", "replace"))


# ---- redrive -------------------------------------------------------------------------------------------------------


def fields_of_redrive(reasons: Iterable[str], narrower: Field) -> tuple[Field, ...]:
    """The form that selects dead letters: by one of these causes, by one more field, and how many."""
    return (
        Field("reason", "Cause", "select", ANY, (ANY, *reasons)),
        narrower,
        Field("most", "At most", "number", "1000", hint=f"Up to {SENT_MAX:,} at once, the oldest first."),
    )


def reason_in(context: Context, reasons: Collection[str]) -> str | None:
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
