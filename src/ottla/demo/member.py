"""Runs one member of a consumer group, a process of its own: `python -m ottla.demo.member BOOTSTRAP GROUP NAME FD
TOPIC...`.

Through the pipe FD it reports to its parent the partitions that it owns and the digest of every record that it reads.
It stores a record's offset only after the report, so if a member is killed, at worst another member reports some
records again.
"""

from __future__ import annotations

import signal
import sys
from array import array
from multiprocessing.connection import Connection
from typing import Any

from ottla.client import TopicPartition
from ottla.demo.tally import digest

BATCH = 500
POLL_S = 0.2


def main(bootstrap: str, group: str, name: str, pipe: int, topics: list[str]) -> None:
    from confluent_kafka import Consumer

    parent = Connection(pipe, readable=False)
    owned: set[TopicPartition] = set()

    def gained(_: Any, partitions: list[Any]) -> None:
        owned.update((each.topic, each.partition) for each in partitions)
        parent.send(("owns", sorted(owned)))

    def gave_up(_: Any, partitions: list[Any]) -> None:
        owned.difference_update((each.topic, each.partition) for each in partitions)
        parent.send(("owns", sorted(owned)))

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 300,
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )
    consumer.subscribe(topics, on_assign=gained, on_revoke=gave_up, on_lost=gave_up)
    try:
        while True:
            messages = [each for each in consumer.consume(BATCH, POLL_S) if each.error() is None]
            for place, (first, digests) in runs(messages).items():
                parent.send(("read", place, first, digests.tobytes()))
            for message in {(each.topic(), each.partition()): each for each in messages}.values():
                store(consumer, message)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        consumer.close()


def store(consumer: Any, message: Any) -> None:
    """Store the position for the next commit, unless the partition was just revoked."""
    from confluent_kafka import KafkaException

    try:
        consumer.store_offsets(message)
    except KafkaException:
        return


def runs(messages: list[Any]) -> dict[TopicPartition, tuple[int, array[int]]]:
    """The first offset and the digests of each partition's records, in offset order as they were read."""
    found: dict[TopicPartition, tuple[int, array[int]]] = {}
    for message in messages:
        place = (message.topic(), message.partition())
        if place not in found:
            found[place] = (message.offset(), array("Q"))
        found[place][1].append(digest(*place, message.offset(), message.key() or b"", message.value() or b""))
    return found


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
