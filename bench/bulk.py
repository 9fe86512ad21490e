"""What the benchmarks of bulk loads share: a consumer that takes as much as it gets, sizes as their names say them."""

from __future__ import annotations

import re
import uuid

from confluent_kafka import Consumer, TopicPartition

from bench.brokers import Broker

SIZE = r"(?P<size>\d+)(?P<unit>B|kB)"
"""The size in a measurement's name: 200B, 1kB."""


def size_in(name: re.Match[str]) -> int:
    """The bytes that the match of a pattern with SIZE says."""
    return int(name["size"]) * (1000 if name["unit"] == "kB" else 1)


def bulk_consumer(broker: Broker, topic: str, partitions: int) -> Consumer:
    """A consumer of librdkafka on a whole topic from its beginning, with large fetches."""
    consumer = Consumer(
        {
            **broker.properties,
            "group.id": f"bench-{uuid.uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "fetch.max.bytes": 52_428_800,
            "max.partition.fetch.bytes": 10_485_760,
            "queued.max.messages.kbytes": 400_000,
            "queued.min.messages": 1_000_000,
            "log_level": 3,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    return consumer
