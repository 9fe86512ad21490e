"""A queue of its own for each test, on the session's broker, with real clients around it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from ottla.kmq import KmqClient, KmqConfig, RedeliveryTracker, create_topics
from ottla.testing import EmbeddedBroker
from tests.harness.topics import every_record
from tests.harness.waiting import soon

PATIENCE_S = 30.0
QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}


@dataclass
class QueueStage:
    """One queue. `config`: with a time-out of a second, and a tracker that trusts its clock soon."""

    bootstrap: str
    config: KmqConfig
    batch: list[tuple[str, bytes, dict[str, Any]]] = field(default_factory=list)

    @property
    def properties(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0}

    def with_(self, **settings: Any) -> QueueStage:
        return QueueStage(self.bootstrap, replace(self.config, **settings))

    def send(self, *values: bytes, partition: int = 0, **record: Any) -> list[int]:
        """Produce these to the queue; their offsets."""
        return self.produce(self.config.queue, *values, partition=partition, **record)

    def produce(self, topic: str, *values: bytes | None, partition: int = 0, **record: Any) -> list[int]:
        offsets: list[int] = []
        producer = Producer(self.properties)

        def told(error: Any, message: Message) -> None:
            assert error is None, error
            offsets.append(message.offset() or 0)

        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=told, **record)
        producer.flush(PATIENCE_S)
        assert len(offsets) == len(values)
        return offsets

    def later(self, topic: str, value: bytes, **record: Any) -> None:
        """Produce without waiting; `flush` does."""
        self.batch.append((topic, value, record))

    def flush(self) -> None:
        producer = Producer(self.properties)
        for topic, value, record in self.batch:
            producer.produce(topic, value, partition=0, **record)
        assert producer.flush(PATIENCE_S) == 0
        self.batch.clear()

    def client(self, **arguments: Any) -> KmqClient:
        return KmqClient(self.properties, self.config, consumer=QUICK, **arguments)

    def tracker(self, **arguments: Any) -> RedeliveryTracker:
        return RedeliveryTracker(self.properties, self.config, **{"consumer": QUICK, **arguments})

    def records(self, topic: str) -> list[Message]:
        """Every record of a topic, partition by partition."""
        return list(every_record(self.bootstrap, topic))

    def markers(self) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of every marker."""
        return [(message.key(), message.value()) for message in self.records(self.config.markers)]

    def dead_letters(self) -> list[Message]:
        return self.records(self.config.dead_letters)

    def alter(self, topic: str, name: str, value: str) -> None:
        """Set a config of a topic."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        admin = AdminClient(self.properties)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(PATIENCE_S)

    def delete_before(self, offset: int) -> None:
        """Delete the queue's records before this offset."""
        admin, place = AdminClient(self.properties), TopicPartition(self.config.queue, 0, offset)
        admin.delete_records([place])[place].result(PATIENCE_S)

    def committed(self, topic: str, group: str, partition: int = 0) -> int:
        consumer = Consumer({**self.properties, "group.id": group})
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)
        consumer.close()
        return found.offset


def take(client: KmqClient, count: int, handle: Callable[[Message], object] | None = None) -> list[Message]:
    """Take so many messages, no more, and let each be handled as it comes."""
    found: list[Message] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} messages came: {[each.value() for each in found]}"
        for message in client.next_batch(0.1):
            found.append(message)
            if handle is not None:
                handle(message)
    assert len(found) == count, [each.value() for each in found]
    return found


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    soon(holds, what)


def new_stage(bootstrap: str) -> QueueStage:
    """A new queue of one partition."""
    config = KmqConfig(queue=f"jobs-{uuid.uuid4().hex[:8]}", timeout_ms=1_000, use_now_after_ms=100)
    made = QueueStage(bootstrap, config)
    create_topics(AdminClient(made.properties), config)
    return made


@pytest.fixture
def stage(ottla_broker: EmbeddedBroker) -> Iterator[QueueStage]:
    """A queue of one partition."""
    made = new_stage(ottla_broker.bootstrap_servers)
    yield made
    admin = AdminClient(made.properties)
    for future in admin.delete_topics([made.config.queue, made.config.markers, made.config.dead_letters]).values():
        future.result(PATIENCE_S)
