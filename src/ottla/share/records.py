"""Encodes the records of `__share_group_state` byte for byte as Kafka: a snapshot of a share partition, or an update.

It also decodes them. A tombstone under the snapshot's key deletes the key.

Source: ShareSnapshotValue.json, ShareUpdateValue.json; ShareCoordinatorRecordHelpers.java; KIP-1226 for the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from ottla.machine import ShardRecord, WallMillis
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC, decode_record, encode_key, encode_value
from ottla.protocol.messages.share_snapshot_record import ShareSnapshotKey, ShareSnapshotValue
from ottla.protocol.messages.share_snapshot_record import StateBatch as SnapshotBatch
from ottla.protocol.messages.share_update_record import ShareUpdateKey, ShareUpdateValue
from ottla.protocol.messages.share_update_record import StateBatch as UpdateBatch
from ottla.share.standing import StateBatch

UNCHANGED: Final = -1
"""Leaves a start offset, leader epoch or count of an update unchanged."""


class Key(NamedTuple):
    """Identifies the state of a group in a partition."""

    group_id: str
    topic_id: bytes
    partition: int


class Snapshot(NamedTuple):
    """The whole state of a key."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    created_ms: int
    batches: Sequence[StateBatch]


class Update(NamedTuple):
    """A change of the state; UNCHANGED for a number that stays."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: Sequence[StateBatch]


def encode_snapshot(key: Key, snapshot: Snapshot, wall_ms: WallMillis) -> ShardRecord:
    value = ShareSnapshotValue(
        snapshot.snapshot_epoch,
        snapshot.state_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        snapshot.complete_count,
        snapshot.created_ms,
        wall_ms,
        [SnapshotBatch(*batch) for batch in snapshot.batches],
    )
    return ShardRecord(encode_key(ShareSnapshotKey(*key)), encode_value(value, 0))


def encode_update(key: Key, update: Update) -> ShardRecord:
    value = ShareUpdateValue(
        update.snapshot_epoch,
        update.leader_epoch,
        update.start_offset,
        update.complete_count,
        [UpdateBatch(*batch) for batch in update.batches],
    )
    return ShardRecord(encode_key(ShareUpdateKey(*key)), encode_value(value, 0))


def encode_tombstone(key: Key) -> ShardRecord:
    return ShardRecord(encode_key(ShareSnapshotKey(*key)), None)


def decode(key: bytes, value: bytes | None) -> tuple[Key, Snapshot | Update | None]:
    """Decode a record; None deletes the key. Raises MalformedFrameError, or its subclass UnknownRecordTypeError."""
    raw_key, raw = decode_record(SHARE_GROUP_STATE_TOPIC, key, value)
    owner = Key(raw_key.group_id, bytes(raw_key.topic_id), raw_key.partition)
    match raw:
        case None:
            return owner, None
        case ShareSnapshotValue():
            return owner, Snapshot(
                raw.snapshot_epoch,
                raw.state_epoch,
                raw.leader_epoch,
                raw.start_offset,
                raw.delivery_complete_count,
                raw.create_timestamp,
                _plain(raw.state_batches),
            )
        case ShareUpdateValue():
            return owner, Update(
                raw.snapshot_epoch,
                raw.leader_epoch,
                raw.start_offset,
                raw.delivery_complete_count,
                _plain(raw.state_batches),
            )
        case _:
            raise AssertionError(raw)


def _plain(batches: Iterable[Any]) -> list[StateBatch]:
    return [
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in cast("Iterable[UpdateBatch]", batches)
    ]
