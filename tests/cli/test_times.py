"""Times as they are typed and shown."""

import pytest

from ottla.cli.output import UsageError
from ottla.cli.times import parse_time, shown_time, time_or_none


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:00.001", 1),
        ("1769846400000", 1_769_846_400_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_a_time_is_read_and_shown_again(text: str, millis: int) -> None:
    assert parse_time(text) == millis
    assert parse_time(shown_time(millis) or "") == millis


def test_what_is_no_time() -> None:
    assert time_or_none("0:23") is None
    for text in ("", "yesterday", "2026-13-01", "0001-01-01", "9" * 30):
        with pytest.raises(UsageError):
            parse_time(text)


def test_times_are_shown_in_utc() -> None:
    assert shown_time(1_769_846_400_001) == "2026-01-31T08:00:00.001Z"
    assert shown_time(None) is None
    assert shown_time(-1) is None
