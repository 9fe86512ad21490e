"""Share groups as users have them: librdkafka's ShareConsumer, a group's configs, a topic filled with jobs.

Knows how to make them and how to end them. Does not know what is measured.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.brokers import BenchFailedError, Broker

VALUE_BYTES = 200
TIMEOUT_S = 60


def new_group(broker: Broker, **configs: str) -> str:
    """The name of a share group that begins at the earliest offset and has these configs besides."""
    group = f"share-{uuid.uuid4().hex[:12]}"
    set_configs(broker, group, share_auto_offset_reset="earliest", **configs)
    return group


def set_configs(broker: Broker, group: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient(broker.properties)  # its futures end with it
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def fill(broker: Broker, topic: str, count: int, batch: int = 10_000, partitions: int = 1) -> None:
    """So many records of VALUE_BYTES, in turns to the partitions, at most `batch` of them in one record batch."""
    producer = Producer(
        {
            **broker.properties,
            "linger.ms": 5,
            "acks": "1",
            "batch.num.messages": batch,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = b"x" * VALUE_BYTES
    for index in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=index % partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 10_000 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise BenchFailedError("the topic could not be filled")


class Member:
    """A ShareConsumer; with `explicit` each record has to be acknowledged by itself."""

    def __init__(self, broker: Broker, group: str, *, explicit: bool, **settings: Any) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        mode = "explicit" if explicit else "implicit"
        self.consumer = ShareConsumer(
            {**broker.properties, "group.id": group, "share.acknowledgement.mode": mode, **given}
        )

    def take(self, timeout_s: float) -> list[Message]:
        return [message for message in self.consumer.poll(timeout_s) if message.error() is None]


@contextlib.contextmanager
def at_work(threads: list[threading.Thread], over: threading.Event) -> Iterator[None]:
    """Threads that run for the length of a block; each returns soon after `over` is set."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
