"""Transactions over TCP with confluent-kafka (librdkafka) and aiokafka as they come from PyPI."""

import asyncio
import time
import uuid
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import KafkaError as AioError
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ottla.client import Client
from ottla.protocol.records import iter_batches
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import soon

WAIT_S = 30.0
MakeTopic = Callable[..., str]


def producer_of(broker: EmbeddedBroker, name: str, **properties: object) -> Producer:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0, **properties}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    return producer


def read(broker: EmbeddedBroker, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
    """What a reader of this isolation sees of a partition, to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told when a fetch there is answered
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    seen: list[bytes] = []
    try:
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"nothing came for {WAIT_S} s; seen so far: {seen}"
            error = message.error()
            if error is None:
                seen.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return seen
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def committed(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[bytes]:
    return read(broker, topic, "read_committed", partition)


def everything(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[bytes]:
    return read(broker, topic, "read_uncommitted", partition)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    producer = producer_of(broker, f"t-{topic}")
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % number, partition=partition)
        if number % 2:
            producer.flush(WAIT_S)  # librdkafka drops what it has not sent when it aborts
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    for partition in (0, 1):
        assert committed(broker, topic, partition) == [b"0", b"2", b"4"]
        assert everything(broker, topic, partition) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_readers_stop_where_a_transaction_is_open(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    first, second = producer_of(broker, f"a-{topic}"), producer_of(broker, f"b-{topic}")
    first.begin_transaction()
    first.produce(topic, b"open", partition=0)
    first.flush(WAIT_S)
    second.begin_transaction()
    second.produce(topic, b"behind", partition=0)
    second.commit_transaction(WAIT_S)
    plain = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    plain.produce(topic, b"plain", partition=0)
    plain.flush(WAIT_S)
    assert committed(broker, topic) == []
    assert everything(broker, topic) == [b"open", b"behind", b"plain"]
    first.commit_transaction(WAIT_S)
    assert committed(broker, topic) == [b"open", b"behind", b"plain"]


def test_a_new_life_of_a_producer_ends_the_old_one(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    old = producer_of(broker, f"t-{topic}")
    old.begin_transaction()
    old.produce(topic, b"left open", partition=0)
    old.flush(WAIT_S)
    new = producer_of(broker, f"t-{topic}")
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(WAIT_S)
    assert committed(broker, topic) == [b"new"]
    assert everything(broker, topic) == [b"left open", b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    """KIP-588: its producer is told so, and may go on with the next one."""
    topic = make_topic()
    producer = producer_of(broker, f"t-{topic}", **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    producer.produce(topic, b"late", partition=0)
    producer.flush(WAIT_S)
    other = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    other.produce(topic, b"behind", partition=0)
    other.flush(WAIT_S)
    for _ in range(200):
        if committed(broker, topic) == [b"behind"]:
            break
    else:
        pytest.fail("the transaction was not aborted")
    with pytest.raises(KafkaException) as late:
        producer.commit_transaction(WAIT_S)
    assert late.value.args[0].fatal() or late.value.args[0].txn_requires_abort()


def test_offsets_and_records_of_a_transaction_are_seen_together(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    """Consume, transform, produce: what was aborted is done once more, and its effect is there once."""
    count = 20
    source, target = make_topic(), make_topic()
    group = f"g-{source}"
    plain = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(count):
        plain.produce(source, b"%d" % number, partition=0)
    plain.flush(WAIT_S)
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,  # one that closes while its coordinator is dead does not leave, and is waited for
        "log_level": 0,
    }
    producer = producer_of(broker, f"t-{source}")
    done = 0
    while done < count:
        consumer = Consumer(settings)
        consumer.subscribe([source])
        for abort in (False, True) if done < count - 4 else (False,):  # nothing is left to abort behind the last
            messages = consumer.consume(4, WAIT_S)
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, b"x" + (message.value() or b""), partition=0)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
            )
            if abort:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
                done += len(messages)
        consumer.close()
    assert committed(broker, target) == [b"x%d" % number for number in range(count)]
    assert len(everything(broker, target)) > count


def test_transactions_outlive_a_restart(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = producer_of(broker, f"t-{topic}")
    producer.begin_transaction()
    producer.produce(topic, b"before", partition=0)
    producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"across", partition=0)
    producer.flush(WAIT_S)
    broker.restart()
    # Of three nodes, a new leader knows the end only once the others have fetched from it.
    soon(lambda: committed(broker, topic), "the end of the partition")
    assert committed(broker, topic) == [b"before"]
    producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"after", partition=0)
    producer.commit_transaction(WAIT_S)
    assert committed(broker, topic) == [b"before", b"across", b"after"]


def test_aiokafka_commits_aborts_and_is_fenced(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id=f"t-{topic}"
        ) as old:
            async with old.transaction():
                await old.send_and_wait(topic, b"one", partition=0)
            await old.begin_transaction()
            await old.send_and_wait(topic, b"never", partition=0)
            await old.abort_transaction()
            await old.begin_transaction()
            await old.send_and_wait(topic, b"left open", partition=0)
            new = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"t-{topic}")
            await new.start()
            with pytest.raises((ProducerFenced, AioError)):
                await old.commit_transaction()
            async with new.transaction():
                await new.send_and_wait(topic, b"two", partition=0)
            await new.stop()

    asyncio.run(run())
    assert committed(broker, topic) == [b"one", b"two"]
    assert everything(broker, topic) == [b"one", b"never", b"left open", b"two"]


@pytest.fixture
def aio_reader(broker: EmbeddedBroker) -> Callable[[str, int], list[bytes]]:
    def read_some(topic: str, count: int) -> list[bytes]:
        async def run() -> list[bytes]:
            async with aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap_servers,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
            ) as consumer:
                return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value or b"" for _ in range(count)]

        return asyncio.run(run())

    return read_some


def test_aiokafka_reads_what_librdkafka_committed(
    broker: EmbeddedBroker, make_topic: MakeTopic, aio_reader: Callable[[str, int], list[bytes]]
) -> None:
    topic = make_topic()
    producer = producer_of(broker, f"t-{topic}")
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(WAIT_S)
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    assert aio_reader(topic, 4) == [b"0", b"2", b"4", b"6"]


def test_an_ended_id_names_its_versions(broker: EmbeddedBroker) -> None:
    """librdkafka speaks the first version of the protocol: it must find all five APIs."""
    assert confluent_kafka.libversion()[1] > 0
    producer_of(broker, "names")


def test_compaction_keeps_what_was_committed() -> None:
    """Aborted records go, the newest committed one of each key stays, markers go when their data is gone."""
    compacted = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "segment.ms": "1",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
    }
    with EmbeddedBroker(settings={"log.cleaner.backoff.ms": "20", "log.cleaner.enable": "true"}) as broker:
        topic = broker.create_topic(configs=compacted)
        producer = producer_of(broker, f"t-{topic}")
        for number in range(40):
            producer.begin_transaction()
            for key in (b"a", b"b"):
                producer.produce(topic, b"%d" % number, key=key, partition=0)
            producer.flush(WAIT_S)
            (producer.abort_transaction if number % 4 == 3 else producer.commit_transaction)(WAIT_S)
        newest = [b"38", b"38", b"last"]
        until, markers = time.monotonic() + WAIT_S, 40
        while (everything(broker, topic) != newest or markers > 3) and time.monotonic() < until:
            producer.begin_transaction()  # a segment is closed by what comes behind it
            producer.produce(topic, b"last", key=b"last", partition=0)
            producer.commit_transaction(WAIT_S)
            seen = committed(broker, topic)
            assert not any(value.isdigit() and int(value) % 4 == 3 for value in seen)
            assert [value for value in seen if value.isdigit()][-2:] == newest[:2]
            with Client(broker.bootstrap_servers) as client:
                headers = [header for header, _ in iter_batches(client.fetch_raw(topic, 0, 0).records)]
            markers = sum(header.is_control for header in headers)
        assert everything(broker, topic) == committed(broker, topic) == newest
        assert markers <= 3
        broker.restart()
        soon(lambda: committed(broker, topic) == newest, lambda: committed(broker, topic))
