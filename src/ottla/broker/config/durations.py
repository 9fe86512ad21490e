"""Reads ISO 8601 durations of days, hours, minutes and seconds as java.time.Duration does (PnDTnHnMn.nS)."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = (
    r"([+-]?)P(?=.)(?:([+-]?\d{1,19})D)?"
    r"(?:T(?=.)(?:([+-]?\d{1,19})H)?(?:([+-]?\d{1,19})M)?(?:([+-]?\d{1,19})(?:[.,](\d{0,9}))?S)?)?"
)


def duration_ms(text: str) -> int | None:
    """Whole milliseconds; None if the text is no duration."""
    found = re.fullmatch(_DURATION, text, re.ASCII | re.IGNORECASE)
    if found is None:
        return None
    sign, days, hours, minutes, seconds, fraction = found.groups(default="")
    part_ms = int(fraction[:3].ljust(3, "0"))
    total_ms = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60_000
    total_ms += int(seconds or 0) * 1000 + (-part_ms if seconds.startswith("-") else part_ms)
    return -total_ms if sign == "-" else total_ms
