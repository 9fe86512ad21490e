"""Defines the rows of client quotas: how much of each node users and clients may use, and how often addresses connect.

    quota/{"client-id": null, "user": "ada"}    {"producer_byte_rate": "1048576.0"}
    quota/{"ip": "10.1.2.3"}                    {"connection_creation_rate": "5.0"}

The key names the entity, by its types in alphabetical order. null is the default entity, for all entities without a row
of their own. Values are numbers as text.

Source: Kafka's QuotaRecord, ClientQuotaEntity.java; KIP-546, KIP-612.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypeAlias

from ottla.metadata.configs import decode_texts
from ottla.metadata.row_kinds import table

PREFIX: Final = "quota/"
IP: Final = "ip"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
QUOTAS: Final = table(PREFIX, decode_texts, lambda quotas, _version: quotas)
"""Limits by name, of each entity."""

Entity: TypeAlias = Mapping[str, str | None]
"""Names by kind: `user`, `client-id`, or `ip`; None for the default of the kind."""


def key_of(entity: Entity) -> str:
    """The key of an entity's row."""
    return PREFIX + json.dumps(dict(sorted(entity.items())))


def entity_of(name: str) -> Entity:
    """The entity that the key of a row names, behind the prefix."""
    return json.loads(name)
