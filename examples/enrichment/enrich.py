"""Adds the customer's name to each order, exactly once: `python enrich.py COUNT` ends after so many orders."""

import json
import os
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

BOOTSTRAP = os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")
BATCH = 500


def read_customers() -> dict[str, str]:
    """The newest name of each customer, from the compacted topic `customers` (one partition)."""
    settings = {"bootstrap.servers": BOOTSTRAP, "group.id": "unused", "enable.auto.commit": False}
    table: dict[str, str] = {}
    reader = Consumer(settings)
    try:
        place = TopicPartition("customers", 0, 0)
        end = reader.get_watermark_offsets(place, timeout=30)[1]
        reader.assign([place])
        while reader.position([place])[0].offset < end:
            message = reader.poll(1)
            if message is not None and not message.error():
                table[message.key().decode()] = message.value().decode()
    finally:
        reader.close()
    return table


def enrich(count: int) -> None:
    """Each batch is one transaction: its results, and the offsets of the orders that it has read."""
    orders = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "enrichment",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    results = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": "enrichment-1"})
    results.init_transactions()
    customers = read_customers()
    orders.subscribe(["orders"])
    done = 0
    while done < count:
        messages = [message for message in orders.consume(BATCH, timeout=1) if not message.error()]
        if not messages:
            continue
        results.begin_transaction()
        try:
            for message in messages:
                order = json.loads(message.value())
                order["name"] = customers.get(order["customer"], "unknown")
                results.produce("enriched", key=message.key(), value=json.dumps(order))
            results.send_offsets_to_transaction(orders.position(orders.assignment()), orders.consumer_group_metadata())
            results.commit_transaction()
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if not failure.txn_requires_abort():
                raise  # fatal: end, and start again with the same transactional.id
            results.abort_transaction()
            orders.close()
            return enrich(count - done)
        done += len(messages)
    orders.close()
    print(done, "orders enriched")


if __name__ == "__main__":
    enrich(int(sys.argv[1]))
