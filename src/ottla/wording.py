"""Words that all packages use in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count and its noun: "1 record", "1,000 records"."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"
