"""Fetch of many partitions at once, posted and taken."""

from __future__ import annotations

import pytest

from ottla.client import Client, ConnectionClosedError
from ottla.client.fetching import PartitionFetch, post_fetch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.record import Record, build_batch, decode_records
from ottla.testing import EmbeddedBroker


def values(records: memoryview) -> list[bytes | None]:
    return [record.value for record in decode_records(records)] if len(records) else []


def test_partitions_of_several_topics(broker: EmbeddedBroker) -> None:
    topics = [broker.create_topic(partitions=2) for _ in range(2)]
    with Client(broker.bootstrap_servers) as client:
        for topic in topics:
            for partition in range(2):
                value = f"{topic}-{partition}".encode()
                client.produce_raw(topic, partition, bytes(build_batch([Record(value=value)])))
        leader = client.leader(topics[0], 0)
        wanted = [PartitionFetch(topic, partition, 0, 1 << 20) for topic in topics for partition in range(2)]
        first = post_fetch(client, leader, wanted, max_bytes=1 << 20)
        second = post_fetch(client, leader, [PartitionFetch(topics[0], 1, 7, 1 << 20)], max_bytes=1 << 20)
        found = {place: values(memoryview(part.records)) for place, part in first.take().items()}
        assert found == {(each.topic, each.partition): [f"{each.topic}-{each.partition}".encode()] for each in wanted}
        (part,) = second.take().values()
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_does_not_fit_is_left_for_the_next(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    with Client(broker.bootstrap_servers) as client:
        for partition in range(2):
            client.produce_raw(topic, partition, bytes(build_batch([Record(value=bytes(1000))])))
        wanted = [PartitionFetch(topic, partition, 0, 1 << 20) for partition in (1, 0)]
        found = post_fetch(client, client.leader(topic, 0), wanted, max_bytes=1).take()
        assert {place[1]: values(memoryview(part.records)) for place, part in found.items()} == {
            1: [bytes(1000)],
            0: [],
        }


def test_a_dropped_connection_is_made_anew(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic()
    with Client(broker.bootstrap_servers) as client:
        leader = client.leader(topic, 0)
        fetching = post_fetch(client, leader, [PartitionFetch(topic, 0, 0, 1)], max_bytes=1, max_wait_ms=60_000)
        client.drop(leader)
        with pytest.raises(ConnectionClosedError):
            fetching.take()
        assert client.leader(topic, 0) is not leader
        assert client.list_offsets_of({(topic, 0): -1}) == {(topic, 0): 0}
