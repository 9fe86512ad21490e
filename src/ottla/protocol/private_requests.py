"""Says which of Ottla's own requests a node serves, in a text that DescribeConfigs returns.

Kafka has no requests with these keys, and ApiVersions does not list them: tools that guess a broker's release from its
keys would not know it. A node that lacks a key closes the connection, as with every unknown key. So a client first asks
for the entry `PRIVATE_REQUESTS` of the node's configs. The entry is absent on nodes without own requests, and on Kafka.

The text has KEY:LOWEST-HIGHEST of each request, separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntFlag
from typing import Final

from ottla.protocol.apis import ApiKey

PRIVATE_FROM: Final = 10_900
"""Keys from here on are Ottla's own. Those from 10,000 on belong to Confluent's servers, which use the lowest ones."""
PRIVATE_REQUESTS: Final = "ottla.private.requests"
READABLE: Final = frozenset(
    {
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.DESCRIBE_SHARE_PARTITIONS,
        ApiKey.DESCRIBE_OBSERVATIONS,
    }
)
"""The requests that ReadTogether may hold: they change nothing, read no records, and do not wait."""

REASON_BYTES_MAX: Final = 1_024
"""Bytes, in UTF-8, of the reason of one record in ExplainShareRecords."""

CONFIG_VALUE_MAX: Final = 100
"""Characters of a value among the changes of configs that a node remembers; a longer value is cut."""


class Lists(IntFlag):
    """The lists of an answer to DescribeObservations, as bits of the request's field `lists`."""

    GROUPS = 1
    ERRORS = 2
    CONNECTIONS = 4
    SLOW_REQUESTS = 8
    TOPICS = 16
    LONG_TURNS = 32
    CONFIG_CHANGES = 64
    ISR_CHANGES = 128
    FOLLOWERS = 256


ALL_LISTS: Final = (1 << len(Lists)) - 1

_ONE: Final = r"\s*(\d{1,5}):(\d{1,5})-(\d{1,5})\s*"


def shown(ranges: Mapping[int, tuple[int, int]]) -> tuple[str, ...]:
    """The entries of the list for these keys, each with its lowest and highest version."""
    return tuple(f"{int(key)}:{low}-{high}" for key, (low, high) in sorted(ranges.items()))


def parsed(text: str) -> dict[int, tuple[int, int]]:
    """The keys in a text, each with its lowest and highest version. Ignores what it does not understand."""
    found = (re.fullmatch(_ONE, each, re.ASCII) for each in text.split(","))
    return {int(each[1]): (int(each[2]), int(each[3])) for each in found if each is not None}
