"""Defines the rows of client quotas: what users and clients may use of each node.

    quota/{"client-id": null, "user": "ada"}    {"producer_byte_rate": "1048576.0"}

The key names the entity, by its kinds in alphabetical order; null stands for everybody of whom there is no row of their
own. Values are numbers as text.

Source: Kafka's QuotaRecord, ClientQuotaEntity.java; KIP-546.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypeAlias

PREFIX: Final = "quota/"

Entity: TypeAlias = Mapping[str, str | None]
"""Names by kind: `user`, `client-id`; None for the default of the kind."""


def key_of(entity: Entity) -> str:
    """The key of an entity's row."""
    return PREFIX + json.dumps(dict(sorted(entity.items())))


def entity_of(name: str) -> Entity:
    """The entity that the key of a row names, behind the prefix."""
    return json.loads(name)
