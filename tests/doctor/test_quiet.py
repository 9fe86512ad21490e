"""A busy, healthy cluster gets no warning, after restarts and kills either: only in the time that these take."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.doctor import Evidence, Severity, Snapshot, diagnose, gather
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

TOPICS = 4
GROUPS = 8
WINDOW_S = 6.0
ROUNDS = int(os.environ.get("ROUNDS", "6"))


@contextmanager
def load(bootstrap: str, topics: list[str]) -> Iterator[None]:
    """Clients that produce to every topic and read it in groups, until the end."""
    ended = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        number = 0
        while not ended.wait(0.02):
            for topic in topics:
                producer.produce(topic, b"x" * 100, str(number % 100))
                number += 1
            producer.poll(0)
        producer.flush(30)

    def consume(number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"group-{number}",
                "group.protocol": "consumer" if number % 2 else "classic",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "log_level": 0,
            }
        )
        consumer.subscribe([topics[number % len(topics)]])
        while not ended.is_set():
            consumer.consume(500, 0.2)
        consumer.close()

    threads = [threading.Thread(target=produce), *(threading.Thread(target=consume, args=(n,)) for n in range(GROUPS))]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        ended.set()
        for each in threads:
            each.join()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_warning_after_restarts_and_kills() -> None:
    with EmbeddedCluster(settings={"min.insync.replicas": 2, "offsets.topic.num.partitions": 5}) as cluster:
        names = [f"topic-{number}" for number in range(TOPICS)]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, 4, 3) for name in names]).values():
            made.result(30)

        def seen(past_s: int = 0) -> Snapshot:
            with Client(cluster.bootstrap_servers) as client:
                return gather(client, history_ms=past_s * 1000)

        def warnings() -> list[str]:
            first = seen()
            threading.Event().wait(WINDOW_S)
            found = diagnose(Evidence(first, seen(600)))
            return [each.finding.sentence for each in found if each.finding.severity is not Severity.NOTE]

        with load(cluster.bootstrap_servers, names):
            soon(lambda: len([each for each in seen().groups if each.state == "Stable"]) == GROUPS)
            assert warnings() == []
            for number in range(ROUNDS):
                if number % 3 == 0:
                    for node in cluster.nodes:
                        cluster.stop_node(node)
                        cluster.start_node(node)
                        cluster.wait_in_sync()
                else:
                    victim = cluster.leader_of(names[number % TOPICS])
                    cluster.kill(victim)
                    cluster.start_node(victim)
                cluster.wait_in_sync()
                soon(lambda: not warnings())
                assert warnings() == [], f"round {number}"
