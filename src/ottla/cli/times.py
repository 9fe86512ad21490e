"""Parses and prints times, in the same way for every command.

Input: ISO 8601, UTC if no zone is given, or milliseconds since 1970. Output: ISO 8601 in UTC, to the millisecond.
"""

from __future__ import annotations

from ottla.cli.output import UsageError
from ottla.times import EPOCH, MILLISECOND, is_storable, millis_of


def time_or_none(text: str) -> int | None:
    """Milliseconds since 1970; None if the text is not a time. Raises UsageError for a time that no log can
    store."""
    found = millis_of(text)
    return None if found is None else in_range(found, text)


def parse_time(text: str) -> int:
    """Milliseconds since 1970. Raises UsageError."""
    found = time_or_none(text)
    if found is None:
        raise UsageError(f"{text!r} is no time: expected one like 2026-01-31T08:00:00Z, or milliseconds since 1970.")
    return found


def in_range(millis: int, text: str) -> int:
    """A time or duration in milliseconds that a log can store. Raises UsageError."""
    if not is_storable(millis):
        raise UsageError(f"{text!r} is outside of the times that a log can hold, the years 1970 to 9999.")
    return millis


def shown_time(millis: int | None) -> str | None:
    """2026-01-31T08:00:00.000Z; None for None."""
    if millis is None or not is_storable(millis):
        return None
    return (EPOCH + millis * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
