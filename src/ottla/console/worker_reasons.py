"""Shows the reasons that members of a share group gave for failed records.

Their texts are untrusted: any client that may read the group chooses them, so pages show them as text, cut, like values
of records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ottla.client.share_partitions import FrequentReason, SharePartition, frequent_reasons

SHOWN_MAX: Final = 5
CHARS_MAX: Final = 200


def cut(text: str) -> str:
    """The beginning of a reason."""
    return text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}..."


def shown_reasons(partitions: Iterable[SharePartition]) -> tuple[FrequentReason, ...]:
    """The most common reasons of these partitions."""
    return tuple(replace(each, text=cut(each.text)) for each in frequent_reasons(partitions)[:SHOWN_MAX])
