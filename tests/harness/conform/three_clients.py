"""confluent-kafka, kafka-python and aiokafka behind one small face: produce a list of records, read them back.

A record is the same for all: what a test wrote is compared with what another client read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import confluent_kafka
import kafka

WAIT_S = 60
IDEMPOTENT = False
"""Whether producers that wait for all replicas are idempotent where nothing else is said. What is sent again, for its
answer was lost, is there twice otherwise."""


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    partition: int = 0


@dataclass(frozen=True)
class Read:
    """A record as a consumer saw it."""

    record: Record
    offset: int


@dataclass(frozen=True)
class Sent:
    """Where a producer was told its records went: (partition, offset) of each."""

    places: list[tuple[int, int]] = field(default_factory=list)


class Confluent:
    name = "confluent-kafka"

    @staticmethod
    def produce(
        bootstrap: str, topic: str, records: Sequence[Record], *, acks: int = -1, codec: str = "none", **options: Any
    ) -> Sent:
        given = {"compression.type": codec, "linger.ms": 20, "enable.idempotence": IDEMPOTENT and acks == -1, **options}
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": acks, **given})
        places: dict[int, tuple[int, int]] = {}
        failures: list[Any] = []

        def delivered(index: int) -> Any:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    failures.append(error)
                else:
                    places[index] = (message.partition(), message.offset())

            return report

        for index, record in enumerate(records):
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=delivered(index),
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        if failures:
            raise confluent_kafka.KafkaException(failures[0])
        return Sent([places[index] for index in range(len(records))])

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        read: list[Read] = []
        try:
            while len(read) < count:
                messages = consumer.consume(count - len(read), timeout=WAIT_S)
                assert messages, f"only {len(read)} of {count} records came"
                for message in messages:
                    assert message.error() is None, message.error()
                    headers = tuple((k, v) for k, v in message.headers() or ())
                    record = Record(
                        message.value(), message.key(), headers, message.timestamp()[1], message.partition()
                    )
                    read.append(Read(record, message.offset()))
        finally:
            consumer.close()
        return read


class KafkaPython:
    name = "kafka-python"

    @staticmethod
    def produce(
        bootstrap: str, topic: str, records: Sequence[Record], *, acks: int = -1, codec: str = "none", **options: Any
    ) -> Sent:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if acks == -1 else acks,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            enable_idempotence=options.pop("idempotence", IDEMPOTENT and acks == -1),
            **options,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(WAIT_S)
            told = [future.get(WAIT_S) for future in futures]
        finally:
            producer.close()
        return Sent([(each.partition, each.offset) for each in told])

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=WAIT_S * 1000)
        try:
            consumer.assign([kafka.TopicPartition(topic, partition)])
            consumer.seek(kafka.TopicPartition(topic, partition), offset)
            read: list[Read] = []
            for got in consumer:
                record = Record(got.value, got.key, tuple(got.headers), got.timestamp, got.partition)
                read.append(Read(record, got.offset))
                if len(read) == count:
                    break
            return read
        finally:
            consumer.close()


class Aio:
    name = "aiokafka"

    @staticmethod
    def produce(
        bootstrap: str, topic: str, records: Sequence[Record], *, acks: int = -1, codec: str = "none", **options: Any
    ) -> Sent:
        async def run() -> Sent:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all" if acks == -1 else acks,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                enable_idempotence=options.pop("idempotence", IDEMPOTENT and acks == -1),
                **options,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                told = await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
            finally:
                await producer.stop()
            if acks == 0:
                return Sent()
            return Sent([(each.partition, each.offset) for each in told])

        return asyncio.run(run())

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        async def run() -> list[Read]:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await consumer.start()
            try:
                at = aiokafka.TopicPartition(topic, partition)
                consumer.assign([at])
                consumer.seek(at, offset)
                read: list[Read] = []
                while len(read) < count:
                    got = await asyncio.wait_for(consumer.getone(), WAIT_S)
                    record = Record(got.value, got.key, tuple(got.headers), got.timestamp, got.partition)
                    read.append(Read(record, got.offset))
                return read
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS = [Confluent, KafkaPython, Aio]
