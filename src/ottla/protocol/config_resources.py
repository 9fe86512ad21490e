"""Names the types of resources that have configs, as requests number them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ConfigResourceType(IntEnum):
    """ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


QUOTA: Final = 0
"""The type of a quota among changes of configs. Kafka has no such resource; its name is that of its users, clients or
addresses."""
