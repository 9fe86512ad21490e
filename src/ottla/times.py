"""Parses times as people type them: ISO 8601, in UTC if no zone is given, or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999, the last year with four digits in ISO 8601."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def millis_of(text: str) -> int | None:
    """Milliseconds since 1970, of any year; None if the text is not a time."""
    if text.isascii() and text.isdigit():
        return int(text) if len(text) < 20 else TIME_MAX_MS + 1
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND


def is_storable(millis: int) -> bool:
    """Whether a log can hold this time: the years 1970 to 9999."""
    return 0 <= millis <= TIME_MAX_MS
