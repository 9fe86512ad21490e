"""Defines the rows of dynamic configurations: properties of brokers and of groups, as text.

    config/broker/<node id>    {property: text}
    config/broker/             {property: text}    those of all brokers
    config/group/<group id>    {property: text}

Topics keep theirs in their own rows.

Source: Kafka's ConfigRecord; KIP-226 for brokers, KIP-848 for groups.
"""

from __future__ import annotations

import json
from typing import Final

from ottla.metadata.row_kinds import Configs, table
from ottla.metadata.store import ABSENT
from ottla.metadata.topics import texts


def decode_texts(value: bytes) -> Configs:
    """A row that is a JSON object of texts. Raises ValueError for anything else."""
    return texts(json.loads(value))


class StoredConfigs(dict[str, str]):
    """The properties in a row, and the row's version; `ABSENT` if there is no row."""

    __slots__ = ("version",)

    def __init__(self, configs: Configs, version: int) -> None:
        super().__init__(configs)
        self.version = version


NO_CONFIGS: Final = StoredConfigs({}, ABSENT)
BROKER_CONFIGS: Final = table("config/broker/", decode_texts, StoredConfigs)
"""Configs by the id of a broker as text; '' for all brokers."""
GROUP_CONFIGS: Final = table("config/group/", decode_texts, StoredConfigs)
