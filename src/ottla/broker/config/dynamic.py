"""The configuration that clients may change while the node runs: the broker's dynamic layers and the groups' configs.

Knows where it stands in the metadata store (`config/broker/<id>`, `config/broker/` for all brokers,
`config/group/<id>`; topics keep theirs in their own records) and makes a change take effect at once. Does not know the
requests that ask.

Invariant: what stands in the store passed its checks when it was written. What a newer or older Ottla wrote and this
one can't take is left in the store, noted, and not obeyed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ottla.broker.config.share_groups import with_pause_noted
from ottla.broker.config.values import BrokerSettings, ConfigRefused, check_group
from ottla.machine import Millis
from ottla.metadata.store import Delete, Put, decoded
from ottla.metadata.topics import texts

if TYPE_CHECKING:
    from ottla.broker.node import Node

BROKER_PREFIX: Final = "config/broker/"
GROUP_PREFIX: Final = "config/group/"
EVERY_BROKER: Final = ""
"""The name of the entity whose properties hold for every broker that sets none itself."""


class DynamicConfigs:
    """Properties as text, as clients set them. `brokers` has this node's id and ''; `groups` a group's name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.brokers: dict[str, dict[str, str]] = {}
        self.groups: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the store and let the broker's layers take effect; before any log is opened."""
        self.brokers = self._stored(BROKER_PREFIX)
        self.groups = self._stored(GROUP_PREFIX)
        if self.brokers:
            self._node.settings = self._obeyed()

    def _stored(self, prefix: str) -> dict[str, dict[str, str]]:
        store = self._node.store
        return {
            key.removeprefix(prefix): decoded(store, key, lambda value: texts(json.loads(value)), row.value)
            for key, row in store.list(prefix)
        }

    def of_broker(self, name: str) -> dict[str, str]:
        return self.brokers.get(name, {})

    def of_group(self, name: str) -> dict[str, str]:
        return self.groups.get(name, {})

    def check_broker(self, name: str, overrides: dict[str, str]) -> BrokerSettings:
        """The settings this change would give. Raises ConfigRefused."""
        changed = {**self.brokers, name: overrides}
        own = str(self._node.node_id)
        return self._node.settings.with_dynamic(changed.get(own, {}), changed.get(EVERY_BROKER, {}))

    def alter_broker(self, now: Millis, name: str, overrides: dict[str, str]) -> None:
        """Replace the properties of this broker, or of all (''). Raises ConfigRefused, StoreFailed."""
        settings = self.check_broker(name, overrides)
        self._keep(BROKER_PREFIX, self.brokers, name, overrides)
        self._node.settings = settings
        self._node.topics.reconfigure(now)

    def alter_group(self, now: Millis, name: str, overrides: dict[str, str], by: str) -> None:
        """Replace a group's properties; where that pauses it, `by` is noted. Raises ConfigRefused, StoreFailed."""
        check_group(overrides, self._node.settings, self.of_group(name))
        noted = with_pause_noted(self.of_group(name), overrides, self._node.wall.at(now), by)
        self._keep(GROUP_PREFIX, self.groups, name, noted)
        self._node.share.group_configured(name)
        self._node.group_shards.metadata.group_configured(name)

    def _keep(self, prefix: str, table: dict[str, dict[str, str]], name: str, overrides: dict[str, str]) -> None:
        key = prefix + name
        if overrides:
            self._node.store.commit([Put(key, json.dumps(overrides).encode())])
            table[name] = dict(overrides)
        else:
            self._node.store.commit([Delete(key)])
            table.pop(name, None)

    def _obeyed(self) -> BrokerSettings:
        """The settings with every stored property that this version can take."""
        own = str(self._node.node_id)
        layers: dict[str, dict[str, str]] = {own: {}, EVERY_BROKER: {}}
        settings = self._node.settings
        for entity in (EVERY_BROKER, own):
            for name, text in self.of_broker(entity).items():
                layers[entity][name] = text
                try:
                    settings = self._node.settings.with_dynamic(layers[own], layers[EVERY_BROKER])
                except ConfigRefused as refused:
                    del layers[entity][name]
                    self._node.notes(f"the stored broker config {name} is not obeyed: {refused}")
        return settings
