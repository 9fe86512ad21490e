"""Defines the row of the cluster's features: the levels that an operator has set, and the levels that a node lacks.

    cluster/features    {"levels": {"transaction.version": 1}}

A feature that the row does not name has its level in `UNSET`, whatever other levels nodes support.

Sources: Kafka's FeatureLevelRecord, Feature.java, QuorumFeatures.java; KIP-584, KIP-1022.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from ottla.metadata.row_kinds import single

FEATURES_KEY: Final = "cluster/features"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
TRANSACTION_VERSION: Final = "transaction.version"
HIGHEST: Final[Mapping[str, int]] = {GROUP_VERSION: 1, SHARE_VERSION: 1, TRANSACTION_VERSION: 2}
"""Every feature, and the highest level that this version of Ottla supports; the lowest is 0."""
UNSET: Final[Mapping[str, int]] = {GROUP_VERSION: 1, SHARE_VERSION: 1, TRANSACTION_VERSION: 2}
"""The levels of features that no row names, and the levels that a node supports if its row names none. They never
change, because nodes of all versions have to agree on them. A feature that is added later begins at 0."""


def beyond(levels: Mapping[str, int], supported: Mapping[str, int]) -> tuple[str, int] | None:
    """A feature whose level is above the highest supported one, with that level; None if there is none."""
    above = [(name, level) for name, level in sorted(levels.items()) if level > supported.get(name, 0)]
    return above[0] if above else None


class FeaturesRecord(NamedTuple):
    """Levels by name. `version` is that of its row, 0 until it is committed; the row does not contain it."""

    levels: Mapping[str, int]
    version: int = 0

    def encode(self) -> bytes:
        return json.dumps({"levels": dict(self.levels)}).encode()

    @staticmethod
    def decode(value: bytes) -> FeaturesRecord:
        """Raises ValueError, KeyError or TypeError if the value is not a row of features."""
        levels = cast("dict[str, Any]", json.loads(value)["levels"])
        return FeaturesRecord({name: int(level) for name, level in levels.items()})


FEATURES: Final = single(FEATURES_KEY, FeaturesRecord.decode)
"""None if no level was ever set."""
