"""What a topic holds, for the tests of every room: read by librdkafka, a client that is not ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, Message, TopicPartition

PATIENCE_S = 30.0


def every_record(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted", login: Mapping[str, str] | None = None
) -> Iterator[Message]:
    """Partition by partition, in order; of aborted transactions too, unless the isolation is read_committed. `login`:
    properties of a client that logs in."""
    given: dict[str, str | int] = {**(login or {}), "group.id": "looks", "isolation.level": isolation, "log_level": 0}
    given["fetch.wait.max.ms"] = "10"  # a fetch that waits at the end of a partition holds the next partition up
    consumer = Consumer({**given, "bootstrap.servers": bootstrap})
    for partition in sorted(consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions):
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        place = TopicPartition(topic, partition, low)
        consumer.assign([place])
        while place.offset < end:
            for message in consumer.consume(10_000, 0.05):
                assert message.error() is None
                yield message
            # where nothing was delivered yet it is negative; it passes by what is no record
            place.offset = max(place.offset, consumer.position([place])[0].offset)
    consumer.close()
