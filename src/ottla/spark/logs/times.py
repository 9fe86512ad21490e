"""Reads the time of a line: from the parts of a date in its head, or from the value of a JSON or logfmt key.

Moments are microseconds since 1970, UTC. None means that there is no such moment, or that it is outside the years 1 to
9999, which half of all table readers could not show. Dates recur, apart from their fractions: each is parsed once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from ottla.spark.logs.formats import MONTHS
from ottla.spark.text.zones import zone_of

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_US = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
PAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) + DAY_US
REMEMBERED_MAX = 1 << 16

NUMBER = re.compile(r"(\d{1,19}(?:\.\d{1,20})?(?:E\d{1,2})?)(?:\r\n|[\n\r])?", re.ASCII)
ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d*)? ?(Z|[+-]\d\d:?\d\d|)", re.ASCII)
NUMBER_MIN = 100_000_000
SCALES = ((10**11, 10**6), (10**14, 10**3), (10**17, 1))
"""Numbers below are seconds, milliseconds, microseconds: how many microseconds one is."""
NANO = Decimal("1e-9")
MONTH_NUMBERS = {name: number for number, name in enumerate(MONTHS, 1)}


class TimeReader:
    """Reads the times of lines. `zone`: of times that name none."""

    def __init__(self, zone: str) -> None:
        self._zone = zone_of(zone)
        self._days: dict[tuple[int | str | None, ...], int | None] = {}

    def of_parts(
        self,
        parts: tuple[str | None, str | None, str | None, str | None, str | None],
        fraction: str | None,
        recorded_us: int | None,
    ) -> int | None:
        """`parts`: year, month, day, clock, zone. A year that is missing is the record's, or the one before; a clock
        without a day is seconds since 1970."""
        if parts[2] is None:
            return None if parts[3] is None else self.of_text(parts[3])
        if parts[0] is None:
            if recorded_us is None:
                return None
            until = (recorded_us + DAY_US) // DAY_US
        else:
            until = 0
        key = (until, *parts)
        try:
            whole = self._days[key]
        except KeyError:
            if len(self._days) >= REMEMBERED_MAX:
                self._days.clear()
            whole = self._days[key] = self._whole(parts, until)
        return whole if whole is None or not fraction else whole + int(fraction[:6].ljust(6, "0"))

    def _whole(self, parts: tuple[str | None, ...], until: int) -> int | None:
        told, month, day, clock, zone = (each or "" for each in parts)
        number = MONTH_NUMBERS.get(month) or int(month)
        if told:
            year = int(told) + (2000 if len(told) == 2 else 0)
        else:
            there = EPOCH + timedelta(days=until)
            year = there.year - ((number, int(day)) > (there.month, there.day))
        clock = "".join(each.rjust(2, "0") for each in clock.replace(".", ":").split(":"))
        return self._since_1970(year, number, int(day), clock, zone)

    def of_text(self, text: str) -> int | None:
        """ISO, or seconds, milli-, micro- or nanoseconds since 1970."""
        number = NUMBER.fullmatch(text)
        if number is not None:
            return of_number(number[1])
        ended = text.removesuffix("\n").removesuffix("\r")
        found = ISO.fullmatch(ended)
        if found is None or (ended != text and found[5]):
            return None
        year, month, day, clock, fraction, zone = found.groups()
        whole = self._since_1970(int(year), int(month), int(day), clock.replace(":", ""), zone)
        return whole if whole is None or not fraction else whole + int(fraction.ljust(6, "0"))

    def _since_1970(self, year: int, month: int, day: int, clock: str, zone: str) -> int | None:
        there = zone_of(zone) if zone else self._zone
        try:
            told = datetime(year, month, day, int(clock[:2]), int(clock[2:4]), int(clock[4:]), tzinfo=there)
        except ValueError:
            return None
        offset = told.utcoffset() if there is not None else None
        if offset is None:
            return None
        apart = told.replace(tzinfo=UTC) - EPOCH - offset
        return within((apart.days * 86_400 + apart.seconds) * SECOND_US + apart.microseconds)


def of_number(text: str) -> int | None:
    try:
        number = Decimal(text).quantize(NANO, ROUND_HALF_UP)
    except InvalidOperation:  # more digits than a moment has
        return None
    if number < NUMBER_MIN:
        return None
    scale = next((scale for below, scale in SCALES if number < below), None)
    return within(int(number * scale if scale else number / 1000))


def within(micros: int) -> int | None:
    return micros if LEAST_US <= micros < PAST_US else None
