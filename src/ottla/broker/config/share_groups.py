"""Reads a share group's configs into typed values.

`GroupConfigs` returns the same object until the group's properties or the broker's settings change.

Source: Kafka's GroupConfig.java, KIP-932, KIP-1191, KIP-1240.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.broker.config.topic_table import GROUP_CONFIGS
from ottla.broker.config.values import Settings, group_value
from ottla.log.answers import Isolation
from ottla.machine import WallMillis
from ottla.share.settings import ShareSettings

PAUSED: Final = "share.delivery.paused"
PAUSED_SINCE = "share.delivery.paused.since.ms"
PAUSED_BY: Final = "share.delivery.paused.by"


class ShareGroupConfig(NamedTuple):
    """One group's configuration."""

    settings: ShareSettings
    reset: str
    isolation: Isolation
    paused: bool
    delayed_delivery: bool
    fair: bool
    dead_letter_topic: str
    copy_record: bool
    dead_letters_per_minute_max: int


class GroupConfigs:
    """The configuration of each share group. `overrides_of`: the properties that a group has itself."""

    def __init__(self, settings: Settings, overrides_of: Callable[[str], Mapping[str, str]]) -> None:
        self._settings = settings
        self._overrides_of = overrides_of
        self._known: dict[str, ShareGroupConfig] = {}

    def of(self, group_id: str) -> ShareGroupConfig:
        known = self._known.get(group_id)
        if known is None:
            known = self._known[group_id] = self._made(group_id)
        return known

    def forget(self, group_id: str) -> None:
        """The group's properties changed, or are no longer needed."""
        self._known.pop(group_id, None)

    def forget_all(self) -> None:
        """The broker's settings changed."""
        self._known.clear()

    def _made(self, group_id: str) -> ShareGroupConfig:
        overrides = self._overrides_of(group_id)

        def value(name: str) -> Any:
            return group_value(self._settings, overrides, name)

        committed = value("share.isolation.level") == "read_committed"
        dead_letter_topic: str = value("errors.deadletterqueue.topic.name")
        return ShareGroupConfig(
            settings=ShareSettings(
                lock_duration_ms=value("share.record.lock.duration.ms"),
                delivery_count_limit=value("share.delivery.count.limit"),
                record_locks_max=value("share.partition.max.record.locks"),
                renew_enabled=value("share.renew.acknowledge.enable"),
                backoff_ms=value("share.retry.backoff.ms"),
                backoff_ms_max=value("share.retry.backoff.max.ms"),
                backoff_multiplier=value("share.retry.backoff.multiplier"),
                dead_letters=bool(dead_letter_topic),
            ),
            reset=value("share.auto.offset.reset"),
            isolation=Isolation.TXN_COMMITTED if committed else Isolation.HIGH_WATERMARK,
            paused=value(PAUSED),
            fair=value("share.delivery.fair.enable"),
            delayed_delivery=value("share.delayed.delivery.enable"),
            dead_letter_topic=dead_letter_topic,
            copy_record=value("errors.deadletterqueue.copy.record.enable"),
            dead_letters_per_minute_max=value("share.delivery.paused.above.dead.letters.per.minute"),
        )


def with_pause_noted(before: Mapping[str, str], after: Mapping[str, str], at: WallMillis, by: str) -> dict[str, str]:
    """A group's new properties with since when and by whom it is paused, as long as it is. Raises
    ConfigRefusedError."""
    noted = {name: text for name, text in after.items() if name not in (PAUSED_SINCE, PAUSED_BY)}
    if _is_paused(after):
        since, who = str(at), by
        if _is_paused(before):
            since, who = before.get(PAUSED_SINCE, ""), before.get(PAUSED_BY, "")
        noted |= {name: text for name, text in ((PAUSED_SINCE, since), (PAUSED_BY, who)) if text}
    return noted


def _is_paused(overrides: Mapping[str, str]) -> bool:
    return PAUSED in overrides and bool(GROUP_CONFIGS[PAUSED].parse(overrides[PAUSED]))
