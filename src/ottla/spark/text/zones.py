"""Finds time zones by name, as Spark asks Java for them.

Source: SparkDateTimeUtils.scala of Spark 4.3 (`getZoneId`), java.time.ZoneId.
"""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

OFFSET_S_MAX = 18 * 3600
OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?|\d{4}|\d{6}|\d\d:\d\d|\d\d:\d\d:\d\d)", re.ASCII)
REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.ASCII)
SHORT_IDS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""java.time.ZoneId.SHORT_IDS."""
NOT_JAVAS = ("posix/", "right/", "posixrules", "localtime", "Factory", "ROC")
"""Names that a system's zones may have and Java's have not."""


@lru_cache(maxsize=1000)
def zone_of(name: str) -> tzinfo | None:
    """A zone by its name, as Spark asks Java for it."""
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-]\d\d):(\d)$", r"\1:0\2", name, count=1)
    name = SHORT_IDS.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = OFFSET.fullmatch(name)
    if found is not None:
        digits = found[2].replace(":", "").zfill(2).ljust(6, "0")
        offset = offset_of(found[1], int(digits[:2]), int(digits[2:4]), int(digits[4:]))
        return None if offset is None else timezone(offset)
    if REGION.fullmatch(name) is None or name.startswith(NOT_JAVAS):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return None


def offset_of(sign: str, hours: int, minutes: int, seconds: int = 0) -> timedelta | None:
    whole = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or whole > OFFSET_S_MAX:
        return None
    return timedelta(seconds=-whole if sign == "-" else whole)
