"""Shows the group coordinator's shards their node: its topics, and the configs of groups.

Source: the metadata image and GroupConfigManager that Kafka's GroupMetadataManager is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.config.live import LiveSettings, Subscriber
from ottla.broker.config.machines import group_settings
from ottla.broker.config.values import group_value
from ottla.groups.history import GroupHistory
from ottla.groups.metadata_view import ConsumerGroupConfig, ShareGroupConfig
from ottla.groups.shard import GroupShard
from ottla.machine import Call, Entropy, Millis, WallClock
from ottla.protocol.errors import ErrorCode

_COUNTED_EVERY: Final = 16


class NodeMetadataView(Subscriber):
    """The `MetadataView` of a node. Groups' configs are cached until any configuration changes."""

    def __init__(self, metadata: Metadata, settings: LiveSettings) -> None:
        self._metadata = metadata
        self._settings = settings
        self._share_groups: dict[str, ShareGroupConfig] = {}
        self._consumer_groups: dict[str, ConsumerGroupConfig] = {}
        self._heartbeating = self._asked = 0
        self.shards: Callable[[], Iterable[object]] = tuple
        """The shards of groups that the node has loaded."""
        self.every_shard: Callable[[], Iterable[object]] = tuple
        """The shards of groups, including those that are being loaded."""
        settings.subscribe("group coordinator", self)

    def topic(self, name: str) -> tuple[bytes, int] | None:
        topic = self._metadata.image.topics.get(name)
        return None if topic is None else (topic.id, len(topic.partitions))

    @property
    def topics_version(self) -> object:
        return self._metadata.image.generation

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self._metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_names(self) -> Collection[str]:
        return self._metadata.image.topics.keys()

    def consumer_group_config(self, group_id: str) -> ConsumerGroupConfig:
        config = self._consumer_groups.get(group_id)
        if config is None:
            settings, overrides = self._settings, self._settings.of_group(group_id)
            config = self._consumer_groups[group_id] = ConsumerGroupConfig(
                session_timeout_ms=group_value(settings, overrides, "consumer.session.timeout.ms"),
                heartbeat_interval_ms=group_value(settings, overrides, "consumer.heartbeat.interval.ms"),
                assignment_interval_ms=group_value(settings, overrides, "consumer.assignment.interval.ms"),
                members_max=settings["group.consumer.max.size"],
                assignors=settings["group.consumer.assignors"],
                migration_policy=settings["group.consumer.migration.policy"].lower(),
                regex_refresh_interval_ms=settings["group.consumer.regex.refresh.interval.ms"],
            )
        return config

    def heartbeating(self) -> int:
        """Counted only from time to time: each heartbeat asks, and there may be many groups."""
        if self._asked % _COUNTED_EVERY == 0:
            self._heartbeating = sum(
                shard.consumer.members() for shard in self.shards() if isinstance(shard, GroupShard)
            )
        self._asked += 1
        return self._heartbeating

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        config = self._share_groups.get(group_id)
        if config is None:
            settings, overrides = self._settings, self._settings.of_group(group_id)
            config = self._share_groups[group_id] = ShareGroupConfig(
                session_timeout_ms=group_value(settings, overrides, "share.session.timeout.ms"),
                heartbeat_interval_ms=group_value(settings, overrides, "share.heartbeat.interval.ms"),
                assignment_interval_ms=group_value(settings, overrides, "share.assignment.interval.ms"),
                members_max=settings["group.share.max.size"],
            )
        return config

    def settings_changed(self, now: Millis) -> None:
        self._share_groups.clear()
        self._consumer_groups.clear()
        size_max = group_settings(self._settings).batch_size_max
        for shard in self.every_shard():
            if isinstance(shard, GroupShard):
                shard.batch_size_is(size_max)

    def group_configured(self, group_id: str) -> None:
        self._share_groups.pop(group_id, None)
        self._consumer_groups.pop(group_id, None)


class GroupShards:
    """Makes group shards that see their node; a `coordinators.shards.ShardClass`."""

    def __init__(self, metadata: Metadata, settings: LiveSettings, history: GroupHistory) -> None:
        self._settings = settings
        self._history = history
        self.metadata = NodeMetadataView(metadata, settings)

    def of(self, entropy: Entropy, notes: Callable[[str], None], wall: WallClock, leader_epoch: int) -> GroupShard:
        return GroupShard(group_settings(self._settings), entropy, notes, self.metadata, wall, self._history)

    def refuse(self, call: Call, error: ErrorCode) -> object:
        return GroupShard.refuse(call, error)

    def topics_deleted(self, names: tuple[str, ...]) -> Call | None:
        return GroupShard.topics_deleted(names)
