"""Real processes: three copies of a partition, and its leader killed under a producer with acks=all."""

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

TOPIC = "copies"


def in_sync(admin: AdminClient) -> Callable[[], tuple[int, list[int]]]:
    def asked() -> tuple[int, list[int]]:
        part = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0]
        return part.leader, sorted(part.isrs)

    return asked


def read(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    values: list[bytes] = []
    try:
        while len(values) < count:
            (message,) = consumer.consume(1, timeout=20) or [None]
            assert message is not None, f"{len(values)} of {count}"
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def test_the_leader_is_killed_and_nothing_acknowledged_is_lost() -> None:
    with EmbeddedCluster(settings={"min.insync.replicas": 2}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(20)
        state = in_sync(admin)
        soon(lambda: state()[1] == [1, 2, 3])
        acknowledged: list[bytes] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                acknowledged.append(message.value())

        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1}
        )
        stop = threading.Event()

        def produce() -> None:
            number = 0
            while not stop.is_set():
                producer.produce(TOPIC, str(number).encode(), on_delivery=delivered)
                number += 1
                producer.poll(0.001)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            soon(lambda: len(acknowledged) > 200)
            leader = state()[0]
            cluster.kill(leader)
            before = len(acknowledged)
            soon(lambda: len(acknowledged) > before + 200)
            assert state()[0] != leader
            cluster.start_node(leader)
            soon(lambda: state()[1] == [1, 2, 3])
        finally:
            stop.set()
            thread.join()
        assert producer.flush(30) == 0
        values = read(cluster.bootstrap_servers, len(acknowledged))
        assert sorted(values) == sorted(acknowledged), "each once, as the producer is idempotent"
        assert values == sorted(values, key=int)
