"""Reads times from text: Apache's `17/May/2015:10:05:03 +0000`, ISO 8601 like Spark's cast, numbers since 1970.

Moments are microseconds since 1970, UTC; None if the text is not a time. The rules are those of `java.time` (strict)
and Spark's `CAST(... AS TIMESTAMP)`:

- A date alone is its midnight; minutes and seconds may be missing.
- Fractions are cut off after six digits.
- A local time that a clock change skipped is moved forward; of one that occurred twice, the first is meant.

Source: SparkDateTimeUtils.scala of Spark 4.3 (`parseTimestampString`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timezone, tzinfo
from decimal import ROUND_HALF_UP, Decimal

from ottla.spark.text.zones import offset_of, zone_of

MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
DAYS_OF_400_YEARS = 146_097
APACHE = re.compile(r"(\d\d)/([A-Za-z]{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d.].*)?)?)?)?",
    re.ASCII | re.DOTALL,
)
NUMBER = re.compile(r"\d{1,19}(?:\.\d+)?", re.ASCII)
BLANK = "".join(map(chr, (*range(0x21), 0x7F)))


def micros_of(told: str, zone: str = "UTC") -> int | None:
    """Read a time in any of the three forms. `zone`: for times without a zone."""
    found = apache_us(told)
    if found is None:
        found = iso_us(told, zone)
    return number_us(told) if found is None else found


def apache_us(told: str) -> int | None:
    found = APACHE.fullmatch(told)
    if found is None:
        return None
    day, month, year, hour, minute, second, sign, hours, minutes = found.groups()
    number, offset = MONTHS.get(month.lower()), offset_of(sign, int(hours), int(minutes))
    if number is None or offset is None:
        return None
    return since_1970(int(year), number, int(day), int(hour), int(minute), int(second), 0, timezone(offset))


def iso_us(told: str, zone: str = "UTC") -> int | None:
    """A date, perhaps with a time; a zone where the time has seconds."""
    found = ISO.fullmatch(told.rstrip(BLANK))
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, named = found.groups()
    there = zone_of(zone if named is None else named.strip(BLANK))
    if there is None:
        return None
    rest = (int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
    micros = int((fraction or "")[:6].ljust(6, "0"))
    return since_1970(int(year), *rest, micros, there)


def number_us(told: str) -> int | None:
    """Seconds, ms, us or ns since 1970, by how large the number is."""
    if NUMBER.fullmatch(told) is None:
        return None
    number = float(told)
    if number < 1e11:
        micros = number * 1e6
    elif number < 1e14:
        micros = number * 1e3
    else:
        micros = number if number < 1e17 else number / 1e3
    return int(micros if micros.is_integer() else Decimal(repr(micros)).quantize(Decimal(1), ROUND_HALF_UP))


def since_1970(
    year: int, month: int, day: int, hour: int, minute: int, second: int, micros: int, zone: tzinfo
) -> int | None:
    if year == 0:  # Python's calendar does not have it
        later = since_1970(400, month, day, hour, minute, second, micros, zone)
        return None if later is None else later - DAYS_OF_400_YEARS * 86400 * SECOND_US
    try:
        told = datetime(year, month, day, hour, minute, second, micros, zone)
    except ValueError:
        return None
    offset = told.utcoffset()
    assert offset is not None
    apart = told.replace(tzinfo=UTC) - EPOCH - offset
    return (apart.days * 86400 + apart.seconds) * SECOND_US + apart.microseconds
