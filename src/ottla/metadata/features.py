"""Defines the row of the cluster's features: the levels that an operator has set.

    cluster/features    {"levels": {"transaction.version": 1}}

A feature that the row does not name is at its highest level.

Sources: Kafka's FeatureLevelRecord, Feature.java; KIP-584, KIP-1022.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

FEATURES_KEY: Final = "cluster/features"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
TRANSACTION_VERSION: Final = "transaction.version"
HIGHEST: Final[Mapping[str, int]] = {GROUP_VERSION: 1, SHARE_VERSION: 1, TRANSACTION_VERSION: 2}
"""Every feature, and its highest level; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class FeaturesRecord:
    """Levels by name. `version` is that of its row, 0 as long as it is not committed; it stands in no row."""

    levels: Mapping[str, int]
    version: int = 0

    def encode(self) -> bytes:
        return json.dumps({"levels": dict(self.levels)}).encode()

    @staticmethod
    def decode(value: bytes) -> FeaturesRecord:
        """Raises ValueError, KeyError or TypeError where this says nothing of features."""
        levels = cast("dict[str, Any]", json.loads(value)["levels"])
        return FeaturesRecord({name: int(level) for name, level in levels.items()})
