"""Routes the records of `__consumer_offsets`: which module decodes which type.

These are the types of Kafka's that are kept here: committed offsets (1, and the older 0), classic groups (2), consumer
groups (3 to 8, and 16) and share groups (10 to 15). A record of another type, written by a later version or by Kafka
itself, is `Unknown`: replay ignores it and keeps it in the log.

A key is an int16 type and the key's fields, a value an int16 version and the value's fields. A record without a value
is a tombstone.

Source: Kafka's CoordinatorRecordType.java.
"""

from dataclasses import dataclass
from typing import TypeAlias

from ottla.groups import offset_records
from ottla.groups.classic import records as classic
from ottla.groups.consumer import records as consumer
from ottla.groups.share import records as share
from ottla.protocol.coordinator_records import type_of


@dataclass(frozen=True, slots=True)
class OfConsumerGroup:
    """A record of a consumer group."""

    record: consumer.ConsumerRecord


@dataclass(frozen=True, slots=True)
class OfShareGroup:
    """A record of a share group."""

    record: share.ShareRecord


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not use."""

    record_type: int


Record: TypeAlias = offset_records.OffsetRecord | classic.GroupRecord | OfConsumerGroup | OfShareGroup | Unknown


def decode(key: bytes, value: bytes | None, record_offset: int) -> Record:
    """One record of the log. Raises MalformedFrameError if the bytes do not match their type and version."""
    record_type = type_of(key)
    if record_type in offset_records.OFFSET_TYPES:
        return offset_records.decode(key, value, record_offset)
    if record_type == classic.GROUP_METADATA_TYPE:
        return classic.decode(key, value)
    if record_type in consumer.CONSUMER_TYPES:
        return OfConsumerGroup(consumer.decode(key, value))
    if record_type in share.SHARE_TYPES:
        return OfShareGroup(share.decode(key, value))
    return Unknown(record_type)
