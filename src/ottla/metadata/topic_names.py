"""Says which topic names are legal, and which topics are the broker's own.

Source: Kafka's Topic.java; the sentences are Kafka's. Paths are built only from names that passed `check`.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC

INTERNAL_TOPICS: Final = frozenset((CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC))
FORBIDDEN: Final = frozenset(("__cluster_metadata",))
"""Names that clients may not create: KRaft's log, which this broker does not have."""

NAME_LENGTH_MAX: Final = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def fault_of(name: str) -> str | None:
    """The reason why this is not a valid topic name, in one sentence; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def folded(name: str) -> str:
    """Two names with the same key collide: metric names cannot distinguish '.' from '_'."""
    return name.replace(".", "_")
