"""Makes the settings of each machine from the configuration of the node, so that machines know no property names.

A shard keeps the settings that it was created with, except for the size of a batch (`GroupShard.batch_size_is`).
Settings that a running node must apply at once are read while a machine decides (`groups.metadata_view`), or made again
for each group (`config.share_groups`).
"""

from ottla.broker.config.values import Settings
from ottla.groups.settings import GroupSettings
from ottla.share.settings import ShareStateSettings
from ottla.txn.settings import TransactionSettings

_MINUTE_MS = 60 * 1000


def group_settings(settings: Settings) -> GroupSettings:
    """Those of the group coordinator."""
    return GroupSettings(
        session_timeout_ms_min=settings["group.min.session.timeout.ms"],
        session_timeout_ms_max=settings["group.max.session.timeout.ms"],
        initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
        group_size_max=settings["group.max.size"],
        offset_metadata_size_max=settings["offset.metadata.max.bytes"],
        batch_size_max=settings["message.max.bytes"],
        offsets_retention_ms=settings["offsets.retention.minutes"] * _MINUTE_MS,
        offsets_retention_check_interval_ms=settings["offsets.retention.check.interval.ms"],
    )


def transaction_settings(settings: Settings) -> TransactionSettings:
    """Those of the transaction coordinator."""
    return TransactionSettings(
        timeout_ms_max=settings["transaction.max.timeout.ms"],
        id_expiration_ms=settings["transactional.id.expiration.ms"],
        id_expiration_interval_ms=settings["transaction.remove.expired.transaction.cleanup.interval.ms"],
    )


def share_state_settings(settings: Settings) -> ShareStateSettings:
    """Those of the share coordinator."""
    return ShareStateSettings(
        snapshot_updates=settings["share.coordinator.snapshot.update.records.per.snapshot"],
        look_interval_ms=settings["share.coordinator.cold.partition.snapshot.interval.ms"],
    )
