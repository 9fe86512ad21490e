"""Builds a copy of the table from the topic, and prints it."""

import json
import os

from confluent_kafka import Consumer, TopicPartition


def read_table() -> dict[str, dict[str, object]]:
    """Every row by its key. A record without a value (a tombstone) removes the row."""
    reader = Consumer(
        {
            "bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"),
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    place = TopicPartition("products", 0, 0)
    end = reader.get_watermark_offsets(place, timeout=30)[1]
    reader.assign([place])
    table: dict[str, dict[str, object]] = {}
    while reader.position([place])[0].offset < end:
        message = reader.poll(1)
        if message is None or message.error():
            continue
        key = message.key().decode()
        if message.value() is None:
            table.pop(key, None)
        else:
            table[key] = json.loads(message.value())
    reader.close()
    return table


if __name__ == "__main__":
    for key, row in sorted(read_table().items()):
        print(key, row["name"], row["price"])
