"""What the group coordinator's shards see of their node: its topics, and what groups are configured to.

Source: the metadata image and GroupConfigManager that Kafka's GroupMetadataManager is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.config.values import BrokerSettings, group_value
from ottla.groups.settings import GroupSettings, Settings
from ottla.groups.shard import GroupShard
from ottla.groups.share_surroundings import ShareTiming
from ottla.machine import Call, WallClock
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.node import Entropy, Node


class GroupSurroundings:
    """`groups.share_surroundings.Surroundings` of a node. Timings are kept until something is configured anew."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timings: dict[str, ShareTiming] = {}
        self._settings: BrokerSettings | None = None

    def topic(self, name: str) -> tuple[bytes, int] | None:
        topic = self._node.topics.get(name)
        return None if topic is None else (topic.id, len(topic.partitions))

    def share_timing(self, group_id: str) -> ShareTiming:
        settings = self._node.settings
        if settings is not self._settings:
            self._timings.clear()
            self._settings = settings
        timing = self._timings.get(group_id)
        if timing is None:
            overrides = self._node.topics.configs.of_group(group_id)
            timing = self._timings[group_id] = ShareTiming(
                session_timeout_ms=group_value(settings, overrides, "share.session.timeout.ms"),
                heartbeat_interval_ms=group_value(settings, overrides, "share.heartbeat.interval.ms"),
                assignment_interval_ms=group_value(settings, overrides, "share.assignment.interval.ms"),
                members_max=settings["group.share.max.size"],
            )
        return timing

    def group_configured(self, group_id: str) -> None:
        """The group's properties changed."""
        self._timings.pop(group_id, None)


class GroupShards:
    """Makes group shards that see their node; a `broker.shards.ShardClass`."""

    def __init__(self, node: Node) -> None:
        self.surroundings = GroupSurroundings(node)

    def of(self, settings: Settings, entropy: Entropy, notes: Callable[[str], None], wall: WallClock) -> GroupShard:
        return GroupShard(GroupSettings.of(settings), entropy, notes, self.surroundings, wall)

    def refuse(self, call: Call, error: ErrorCode) -> object:
        return GroupShard.refuse(call, error)

    def topics_deleted(self, names: tuple[str, ...]) -> Call | None:
        return GroupShard.topics_deleted(names)
