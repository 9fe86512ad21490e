"""Produce and consume over TCP with confluent-kafka, kafka-python and aiokafka as they come from PyPI."""

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from ottla.testing import EmbeddedBroker
from tests.harness.conform.three_clients import CLIENTS, WAIT_S, Aio, Confluent, KafkaPython, Read, Record

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BASE_MS = 1_700_000_000_000
pairs = pytest.mark.parametrize("writer", CLIENTS, ids=lambda c: c.name)
readers = pytest.mark.parametrize("reader", CLIENTS, ids=lambda c: c.name)

MakeTopic = Callable[..., str]


def rows(count: int, size: int = 100, partition: int = 0) -> list[Record]:
    """Records that compress, each another one."""
    return [
        Record(b"%06d " % i + b"abcdefgh" * (size // 8), b"key-%d" % (i % 7), (), BASE_MS + i, partition)
        for i in range(count)
    ]


def records_of(read: list[Read]) -> list[Record]:
    return [each.record for each in read]


@pytest.mark.parametrize("codec", CODECS)
@pairs
def test_every_compression_reaches_every_client(
    broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any, codec: str
) -> None:
    topic, sent = make_topic(), rows(200)
    places = writer.produce(broker.bootstrap_servers, topic, sent, codec=codec).places
    assert sorted(places) == [(0, offset) for offset in range(200)]
    for reader in CLIENTS:
        read = reader.consume(broker.bootstrap_servers, topic, 200)
        assert [each.offset for each in read] == list(range(200)), reader.name
        assert records_of(read) == sent, reader.name


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@readers
def test_what_the_broker_compresses_anew_can_be_read(
    broker: EmbeddedBroker, make_topic: MakeTopic, reader: Any, stored: str
) -> None:
    topic, sent = make_topic(1, **{"compression.type": stored}), rows(50)
    Confluent.produce(broker.bootstrap_servers, topic, sent, codec="lz4" if stored == "gzip" else "gzip")
    assert records_of(reader.consume(broker.bootstrap_servers, topic, 50)) == sent


@pytest.mark.parametrize("acks", [0, 1, -1])
@pairs
def test_acks(broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any, acks: int) -> None:
    topic, sent = make_topic(), rows(30)
    writer.produce(broker.bootstrap_servers, topic, sent, acks=acks)
    assert records_of(Confluent.consume(broker.bootstrap_servers, topic, 30)) == sent


@pairs
def test_idempotence(broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any) -> None:
    topic, sent = make_topic(3), [r for p in range(3) for r in rows(40, partition=p)]
    options = {"enable.idempotence": True} if writer is Confluent else {"idempotence": True}
    writer.produce(broker.bootstrap_servers, topic, sent, **options)
    for partition in range(3):
        assert records_of(KafkaPython.consume(broker.bootstrap_servers, topic, 40, partition=partition)) == rows(
            40, partition=partition
        )
    assert len(producer_ids(broker, topic)) == 1


def producer_ids(broker: EmbeddedBroker, topic: str) -> set[int]:
    """Producer ids that partition 0 knows."""
    from ottla.client import Client
    from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

    with Client(broker.bootstrap_servers) as client:
        answer = client.send(DescribeProducersRequest([TopicRequest(topic, [0])]))
    return {producer.producer_id for producer in answer.topics[0].partitions[0].active_producers}


@pairs
@readers
def test_nulls_headers_and_odd_bytes(broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any, reader: Any) -> None:
    """Tombstones, null and empty keys, empty values, headers twice, bytes that are no text, a time of 0."""
    topic = make_topic()
    sent = [
        Record(None, b"tombstone"),
        Record(b"no key", None),
        Record(b"", b""),
        Record(b"\xff\x00\xfe", b"\x00"),
        Record(b"v", b"k", (("h", b"1"), ("h", b"2"), ("empty", b""), ("ä", b"\xff"))),
        Record(b"x", b"k", (), 1),
    ]
    writer.produce(broker.bootstrap_servers, topic, sent)
    assert records_of(reader.consume(broker.bootstrap_servers, topic, len(sent))) == sent


@pairs
@readers
def test_large_messages(broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any, reader: Any) -> None:
    """5 MB records: bigger than what a consumer asks for at a time, so one batch must come all the same."""
    topic = make_topic(1, **{"max.message.bytes": 10_000_000})
    sent = [Record(random.Random(i).randbytes(5_000_000), b"%d" % i) for i in range(3)]
    limit = {"message.max.bytes": 10_000_000} if writer is Confluent else {"max_request_size": 10_000_000}
    writer.produce(broker.bootstrap_servers, topic, sent, **limit)
    assert records_of(reader.consume(broker.bootstrap_servers, topic, 3)) == sent


@pairs
def test_a_message_over_the_limit_is_refused(broker: EmbeddedBroker, make_topic: MakeTopic, writer: Any) -> None:
    topic = make_topic(1, **{"max.message.bytes": 1000})
    with pytest.raises(Exception, match=r"(?i)too[_ ]?large|10\b"):
        writer.produce(broker.bootstrap_servers, topic, [Record(os.urandom(2000))])
    writer.produce(broker.bootstrap_servers, topic, [Record(b"small")])
    assert records_of(Aio.consume(broker.bootstrap_servers, topic, 1)) == [Record(b"small")]


def test_a_key_is_wanted_on_a_compacted_topic(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_RECORD"):
        Confluent.produce(broker.bootstrap_servers, topic, [Record(b"no key", None)])
    Confluent.produce(broker.bootstrap_servers, topic, [Record(b"v", b"k"), Record(None, b"k")])


@readers
def test_many_partitions(broker: EmbeddedBroker, make_topic: MakeTopic, reader: Any) -> None:
    count = 50
    topic = make_topic(count)
    sent = [Record(b"%d" % i, b"%d" % i, partition=i % count) for i in range(500)]
    Confluent.produce(broker.bootstrap_servers, topic, sent)
    read = read_all(reader, broker.bootstrap_servers, topic, count, 500)
    for partition in range(count):
        assert [r for r in read if r.partition == partition] == [r for r in sent if r.partition == partition]


def read_all(reader: Any, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
    """Every record of every partition, through one consumer that is assigned them all."""
    if reader is Confluent:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
        got = []
        while len(got) < count:
            batch = consumer.consume(count, WAIT_S)
            assert batch
            got += batch
        consumer.close()
        return [Record(m.value(), m.key(), (), m.timestamp()[1], m.partition()) for m in got]
    if reader is KafkaPython:
        python = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000
        )
        python.assign([kafka.TopicPartition(topic, p) for p in range(partitions)])
        records = [next(python) for _ in range(count)]
        python.close()
        return [Record(m.value, m.key, (), m.timestamp, m.partition) for m in records]

    async def run() -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, p) for p in range(partitions)])
        got = [await asyncio.wait_for(consumer.getone(), WAIT_S) for _ in range(count)]
        await consumer.stop()
        return [Record(m.value, m.key, (), m.timestamp, m.partition) for m in got]

    return asyncio.run(run())


@readers
def test_seek(broker: EmbeddedBroker, make_topic: MakeTopic, reader: Any) -> None:
    topic, sent = make_topic(), rows(100)
    Confluent.produce(broker.bootstrap_servers, topic, sent, **{"batch.num.messages": 7})
    for offset in (0, 1, 6, 7, 50, 99):
        read = reader.consume(broker.bootstrap_servers, topic, 1, offset=offset)
        assert read == [Read(sent[offset], offset)]


def test_offsets_for_times(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    Confluent.produce(broker.bootstrap_servers, topic, rows(100), **{"batch.num.messages": 9})
    wanted = {BASE_MS - 5: 0, BASE_MS: 0, BASE_MS + 1: 1, BASE_MS + 57: 57, BASE_MS + 99: 99}

    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    python = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    at = kafka.TopicPartition(topic, 0)
    for time_ms, offset in wanted.items():
        (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, time_ms)], timeout=WAIT_S)
        assert found.offset == offset
        assert python.offsets_for_times({at: time_ms})[at].offset == offset
    (late,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, BASE_MS + 100)], timeout=WAIT_S)
    assert late.offset == confluent_kafka.OFFSET_END
    assert python.offsets_for_times({at: BASE_MS + 100})[at] is None
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=WAIT_S) == (0, 100)
    assert (python.beginning_offsets([at]), python.end_offsets([at])) == ({at: 0}, {at: 100})
    consumer.close()
    python.close()

    async def run() -> dict[int, int]:
        aio = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
        await aio.start()
        place = aiokafka.TopicPartition(topic, 0)
        found = {t: (await aio.offsets_for_times({place: t}))[place].offset for t in wanted}
        await aio.stop()
        return found

    assert asyncio.run(run()) == wanted


def test_log_append_time(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(1, **{"message.timestamp.type": "LogAppendTime"})
    Confluent.produce(broker.bootstrap_servers, topic, rows(5))
    for reader in CLIENTS:
        read = reader.consume(broker.bootstrap_servers, topic, 5)
        assert all(each.record.timestamp_ms > BASE_MS + 1_000_000 for each in read), reader.name


def test_a_consumer_out_of_range_starts_where_it_was_told_to(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    Confluent.produce(broker.bootstrap_servers, topic, rows(10))
    for policy, first in (("earliest", 0), ("latest", 10)):
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", "auto.offset.reset": policy}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 10_000)])
        message = consumer.poll(1.0)
        if policy == "latest":
            assert message is None
            Confluent.produce(broker.bootstrap_servers, topic, [Record(b"news")])
        while message is None:
            message = consumer.poll(WAIT_S)
        assert message.error() is None
        assert message.offset() == first
        consumer.close()


def test_a_topic_is_made_when_a_producer_asks_for_it(broker: EmbeddedBroker) -> None:
    topic = f"auto-{os.urandom(4).hex()}"
    for index, client in enumerate(CLIENTS):
        client.produce(broker.bootstrap_servers, f"{topic}-{index}", [Record(b"x")])
        assert records_of(client.consume(broker.bootstrap_servers, f"{topic}-{index}", 1)) == [Record(b"x")]


def test_deleted_records_are_gone_for_every_client(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic, sent = make_topic(), rows(20)
    Confluent.produce(broker.bootstrap_servers, topic, sent, **{"batch.num.messages": 5})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 12)]).values():
        assert future.result(WAIT_S).low_watermark == 12
    for reader in CLIENTS:
        assert records_of(reader.consume(broker.bootstrap_servers, topic, 8, offset=12)) == sent[12:], reader.name


def test_records_survive_a_restart(make_topic: MakeTopic, broker: EmbeddedBroker) -> None:
    topic, sent = make_topic(), rows(50)
    Confluent.produce(broker.bootstrap_servers, topic, sent, codec="zstd")
    broker.restart()
    assert records_of(KafkaPython.consume(broker.bootstrap_servers, topic, 50)) == sent
    Aio.produce(broker.bootstrap_servers, topic, [Record(b"after")])
    assert records_of(Confluent.consume(broker.bootstrap_servers, topic, 51)) == [*sent, Record(b"after")]
