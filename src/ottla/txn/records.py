"""Encodes and decodes the records of `__transaction_state`, byte for byte Kafka's: the state of a transactional id.

A tombstone deletes the id. Version 1 of the value has tagged fields, for the second version of the protocol and for the
previous producer id.

Source: TransactionLogKey.json, TransactionLogValue.json; TransactionLog.java.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ottla.machine import ShardRecord, WallMillis
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC, decode_record, encode_key, encode_value
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages.transaction_log_record import PartitionsSchema, TransactionLogKey, TransactionLogValue
from ottla.txn.transaction import NO_ID, State, TopicPartition, Transaction


class Stored(NamedTuple):
    """A decoded record; without a transaction, the id is deleted."""

    transactional_id: str
    transaction: Transaction | None


def encode(transactional_id: str, transaction: Transaction | None, *, flexible: bool = True) -> ShardRecord:
    """Encode a record. The value has version 1 if it is `flexible` or has tagged fields, otherwise version 0."""
    key, meaning = _key_of(transactional_id), Stored(transactional_id, transaction)
    if transaction is None:
        return ShardRecord(key, None, meaning)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is State.EMPTY else _by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    tagged = transaction.previous_producer_id, transaction.next_producer_id, transaction.client_version
    if not flexible and tagged == (NO_ID, NO_ID, 0):
        return ShardRecord(key, encode_value(value, 0), meaning)
    value.previous_producer_id, value.next_producer_id, value.client_transaction_version = tagged
    return ShardRecord(key, encode_value(value, 1), meaning)


@lru_cache(maxsize=4096)  # each transaction writes three records with the same key
def _key_of(transactional_id: str) -> bytes:
    return encode_key(TransactionLogKey(transactional_id))


def decode(key: bytes, value: bytes | None) -> Stored:
    """Decode a record. Raises MalformedFrameError, also for an unknown state."""
    raw_key, raw = decode_record(TRANSACTION_STATE_TOPIC, key, value)
    if raw is None:
        return Stored(raw_key.transactional_id, None)
    try:
        state = State(raw.transaction_status)
    except ValueError as error:
        raise MalformedFrameError(f"there is no state {raw.transaction_status} of a transaction") from error
    partitions = tuple(
        TopicPartition(topic.topic, index)
        for topic in raw.transaction_partitions or ()
        for index in topic.partition_ids
    )
    transaction = Transaction(
        producer_id=raw.producer_id,
        producer_epoch=raw.producer_epoch,
        timeout_ms=raw.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=WallMillis(raw.transaction_start_timestamp_ms),
        last_update_ms=WallMillis(raw.transaction_last_update_timestamp_ms),
        previous_producer_id=raw.previous_producer_id,
        next_producer_id=raw.next_producer_id,
        client_version=raw.client_transaction_version,
    )
    return Stored(raw_key.transactional_id, transaction)


def _by_topic(transaction: Transaction) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        topics.setdefault(topic, []).append(index)
    return [PartitionsSchema(topic, indexes) for topic, indexes in topics.items()]
