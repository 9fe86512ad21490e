"""The doctor on Apache Kafka: with the same faults in it as in a node of Ottla, it finds the same.

`make doctor-peer PEER=host:port` runs it against one node without TLS and login. It makes topics and groups with names
of its own, and leaves them; other things there are not compared. docs/doctor.md names the differences.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.client.share_member import ShareMember
from ottla.doctor import Evidence, diagnose, gather
from ottla.testing import EmbeddedBroker
from tests.console.test_share_group_pages import configured, take
from tests.harness.waiting import soon

PEER = os.environ.get("OTTLA_DOCTOR_PEER")
pytestmark = pytest.mark.skipif(not PEER, reason="needs a Kafka node: make doctor-peer PEER=host:port")
RUN = uuid.uuid4().hex[:6]
FOUND = {
    "hot-partition",
    "idle-members",
    "lost-unread",
    "position-beyond-end",
    "share-group-idle",
    "unclean-election",
    "wrong-timestamps",
}
"""The checks whose faults are planted, and that find them on both."""
TOPICS: dict[str, dict[str, str]] = {
    "cut": {},
    "hot": {},
    "short": {},
    "jobs": {},
    "work": {},
    "unclean": {"unclean.leader.election.enable": "true"},
    "future": {"message.timestamp.after.max.ms": str(2**63 - 1)},
}
REMEMBERED = re.compile(r" (Its last member, |User:\S+ \().* ago\.")
"""Who set a config, and why the last member left."""
FUTURE_MS = 30 * 24 * 3600 * 1000


@contextmanager
def faults(servers: str) -> Iterator[None]:
    """Plant them; members live as long as the context."""
    with ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": servers})
        made = [
            NewTopic(name_of(each), 1 if each == "work" else 3, 1, config=config) for each, config in TOPICS.items()
        ]
        for future in admin.create_topics(made).values():
            future.result(60)
        producer = Producer({"bootstrap.servers": servers})
        for number in range(40):
            for each in ("cut", "short"):
                producer.produce(name_of(each), str(number), partition=0)
        for number in range(2_000):
            producer.produce(name_of("hot"), str(number), partition=0)
        for partition in range(3):
            producer.produce(name_of("hot"), "x", partition=partition)
            producer.produce(name_of("jobs"), "x", partition=partition)
        producer.produce(name_of("work"), "x")
        late_ms = int(time.time() * 1000) + FUTURE_MS
        producer.produce(name_of("future"), "x", partition=0, timestamp=late_ms)
        assert producer.flush(60) == 0
        commit(servers, "late", [TopicPartition(name_of("cut"), 0, 5)])
        commit(servers, "beyond", [TopicPartition(name_of("short"), 0, 99)])
        commit(servers, "slow", [TopicPartition(name_of("hot"), index, 0) for index in range(3)])
        for cut in admin.delete_records([TopicPartition(name_of("cut"), 0, 20)]).values():
            cut.result(60)
        readers = [member(servers, "crowded", name_of("jobs"), stack) for _ in range(4)]
        with Client(servers) as client:

            def is_assigned() -> bool:
                for each in readers:
                    each.poll(0)
                return sum(bool(each.assignment()) for each in readers) == 3

            soon(is_assigned)
            configured(client, name_of("queue"), {"share.auto.offset.reset": "earliest"})
            with ShareMember(lambda: Client(servers), name_of("queue"), [name_of("work")]) as worker:
                assert take(worker, 1)
            soon(lambda: waits(client, name_of("queue")))
            yield


def name_of(short: str) -> str:
    return f"{short}-{RUN}"


def commit(servers: str, group: str, offsets: list[TopicPartition]) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name_of(group)})
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def member(servers: str, group: str, topic: str, stack: ExitStack) -> Consumer:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name_of(group), "client.id": "reader"})
    consumer.subscribe([topic])
    stack.callback(consumer.close)
    return consumer


def waits(client: Client, group: str) -> bool:
    """Whether the share group has no members any more, and a position."""
    (found,) = (each for each in gather(client).groups if each.name == group)
    return not found.members and len(found.committed) == 1


def findings(servers: str) -> dict[tuple[str, str], tuple[Any, str]]:
    """Each finding about what was made here, by check and subject: its severity, and its sentence without durations and
    without what only Ottla remembers."""
    with Client(servers) as client:
        once = gather(client)
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    for each in diagnose(Evidence(once, once)):
        text = f"{each.finding.subject} {each.finding.sentence}"
        if RUN in text:
            sentence = re.sub(REMEMBERED, "", each.finding.sentence)
            sentence = re.sub(r"\d+ (days|hours|minutes|min|s|h|d)\b", "~", sentence)
            found[each.check.name, each.finding.subject] = each.finding.severity, sentence
    return found


def test_the_same_faults_give_the_same_findings() -> None:
    with EmbeddedBroker() as broker, faults(broker.bootstrap_servers):
        ours = findings(broker.bootstrap_servers)
    with faults(str(PEER)):
        theirs = findings(str(PEER))
    assert theirs == ours
    assert {check for check, _ in ours} == FOUND


def test_what_kafka_does_not_report_is_said() -> None:
    with Client(str(PEER)) as client:
        (sentence,) = (each for each in gather(client).unseen if "only Ottla remembers" in each)
    assert "1 node" in sentence
