"""Parses and prints times, in the same way for every command.

Input: ISO 8601, UTC if no zone is given, or milliseconds since 1970. Output: ISO 8601 in UTC, to the millisecond.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ottla.cli.output import UsageError

TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999, the last year with four digits in ISO 8601."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def time_or_none(text: str) -> int | None:
    """Milliseconds since 1970; None if the text is not a time. Raises UsageError for a time that no log can
    store."""
    if text.isascii() and text.isdigit():
        return in_range(int(text), text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return in_range(((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND, text)


def parse_time(text: str) -> int:
    """Milliseconds since 1970. Raises UsageError."""
    found = time_or_none(text)
    if found is None:
        raise UsageError(f"{text!r} is no time: expected one like 2026-01-31T08:00:00Z, or milliseconds since 1970.")
    return found


def in_range(millis: int, text: str) -> int:
    """A time or duration in milliseconds that a log can store. Raises UsageError."""
    if not 0 <= millis <= TIME_MAX_MS:
        raise UsageError(f"{text!r} is outside of the times that a log can hold, the years 1970 to 9999.")
    return millis


def shown_time(millis: int | None) -> str | None:
    """2026-01-31T08:00:00.000Z; None for None."""
    if millis is None or not 0 <= millis <= TIME_MAX_MS:
        return None
    return (EPOCH + millis * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
