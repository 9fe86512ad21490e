"""Holds the configuration in force, which clients may change at any time: the broker's settings, the groups' configs.

Changes are stored in the metadata store (`config/broker/<id>`, `config/broker/` for all brokers, `config/group/<id>`;
topics keep theirs in their own records). A change takes effect as soon as the image has it, and subscribers are
notified. If another node has written the row meanwhile, the change is planned again.

Invariant: a stored config passed its checks when it was written. A config of a newer or older Ottla that this one
refuses stays in the store without effect. A warning at each start says how to remove it: only a running node can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.broker.cluster.metadata import Metadata, Planned, RowBatch, RowChange
from ottla.broker.config.share_groups import with_pause_noted
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError, check_group
from ottla.machine import Millis, WallClock
from ottla.metadata.configs import BROKER_CONFIGS, GROUP_CONFIGS, NO_CONFIGS, StoredConfigs
from ottla.metadata.image import MetadataDelta
from ottla.metadata.store import VersionGuard

EVERY_BROKER: Final = ""
"""The name of the entity whose properties apply to every broker that sets none itself."""


class Subscriber:
    """Is notified of configuration changes, and by default does nothing."""

    def settings_changed(self, now: Millis) -> None:
        """Called when broker settings change."""

    def group_configured(self, group_id: str) -> None:
        """Called when the group's properties change."""


class LiveSettings:
    """The broker's settings in force, `settings["node.id"]`, and the groups' properties, as text, as clients set them.

    `current` is replaced at a change: keep this object, or subscribe, but never a value of `current`.
    """

    __slots__ = ("_metadata", "_subscribers", "_wall", "_warn", "_without_effect", "current")

    def __init__(
        self, settings: BrokerSettings, metadata: Metadata, wall: WallClock, warn: Callable[[str], None]
    ) -> None:
        self.current = settings
        self._metadata = metadata
        self._wall = wall
        self._warn = warn
        self._without_effect: set[tuple[str, str, str]] = set()
        """Stored properties that this version refuses: (entity, name, text)."""
        self._subscribers: dict[str, Subscriber] = {}

    def __getitem__(self, name: str) -> Any:
        """The broker's value in force: int, float, bool, str, a tuple of str, or None if it is not set."""
        return self.current.values[name]

    def of_listener(self, listener: str, name: str) -> Any:
        """The value in force for one listener: its own, or that of all."""
        return self.current.of_listener(listener, name)

    def subscribe(self, name: str, subscriber: Subscriber) -> None:
        """Notify `subscriber` of every change from now on. Subscribers are notified in the order of their names, so the
        order of subscription does not matter."""
        assert name not in self._subscribers, name
        self._subscribers = dict(sorted({**self._subscribers, name: subscriber}.items()))

    def load(self) -> None:
        """Apply the broker's stored layers, before any log is opened."""
        if self._metadata.image[BROKER_CONFIGS]:
            self.current = self._obeyed()

    def follow(self, now: Millis, delta: MetadataDelta) -> None:
        """Apply the image's news of brokers and groups."""
        if delta.names(BROKER_CONFIGS):
            self.current = self._obeyed()
            for subscriber in self._subscribers.values():
                subscriber.settings_changed(now)
        for group_id in delta.names(GROUP_CONFIGS):
            for subscriber in self._subscribers.values():
                subscriber.group_configured(group_id)

    def of_broker(self, name: str) -> StoredConfigs:
        return self._metadata.image[BROKER_CONFIGS].get(name, NO_CONFIGS)

    def of_group(self, name: str) -> StoredConfigs:
        return self._metadata.image[GROUP_CONFIGS].get(name, NO_CONFIGS)

    def check_broker(self, name: str, overrides: dict[str, str]) -> BrokerSettings:
        """The settings that this change would give. Raises ConfigRefusedError.

        Stored configs without effect are not checked; otherwise no other property could be changed, and they could not
        be removed.
        """
        changed = {**self._metadata.image[BROKER_CONFIGS], name: overrides}
        own, every = (
            {
                key: text
                for key, text in changed.get(entity, {}).items()
                if (entity, key, text) not in self._without_effect
            }
            for entity in (self._own, EVERY_BROKER)
        )
        return self.current.with_dynamic(own, every)

    def altering_broker(self, name: str, overrides: dict[str, str]) -> Planned:
        """Replace the properties of this broker, or of all (''). Raises ConfigRefusedError, StoreError."""
        self.check_broker(name, overrides)
        version = self.of_broker(name).version
        yield RowBatch([RowChange(BROKER_CONFIGS.prefix + name, dict(overrides) or None, version)])

    def altering_group(
        self, now: Millis, name: str, overrides: dict[str, str], by: str, guards: Sequence[VersionGuard] = ()
    ) -> Planned:
        """Replace a group's properties; if that pauses it, `by` is noted. `guards`: as in `RowBatch`. Raises
        ConfigRefusedError, StoreError."""
        check_group(overrides, self.current, self.of_group(name))
        noted = with_pause_noted(self.of_group(name), overrides, self._wall.at(now), by)
        version = self.of_group(name).version
        yield RowBatch([RowChange(GROUP_CONFIGS.prefix + name, dict(noted) or None, version)], (), guards)

    @property
    def _own(self) -> str:
        """The name of the entity that is this broker."""
        return str(self["node.id"])

    def _obeyed(self) -> BrokerSettings:
        """The settings with every stored property that this version accepts."""
        own = self._own
        layers: dict[str, dict[str, str]] = {own: {}, EVERY_BROKER: {}}
        settings = self.current.with_dynamic({}, {})
        before, self._without_effect = self._without_effect, set()
        for entity in (EVERY_BROKER, own):
            for name, text in self.of_broker(entity).items():
                layers[entity][name] = text
                try:
                    settings = self.current.with_dynamic(layers[own], layers[EVERY_BROKER])
                except ConfigRefusedError as refused:
                    del layers[entity][name]
                    self._without_effect.add((entity, name, text))
                    if (entity, name, text) not in before:
                        self._warn(_no_effect(entity, name, refused))
        return settings


def _no_effect(entity: str, name: str, refused: ConfigRefusedError) -> str:
    """The warning about a stored property that this version refuses."""
    remedy = f"ottla configs alter broker {entity} --delete {name}"
    if entity == EVERY_BROKER:
        remedy = f"kafka-configs.sh --alter --entity-type brokers --entity-default --delete-config {name}"
    return f"The stored broker config {name} has no effect: {str(refused).rstrip('.')}. `{remedy}` removes it."
