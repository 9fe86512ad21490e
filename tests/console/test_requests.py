"""How many requests each page sends to a cluster of three nodes, each of which leads and coordinates something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.client.dead_letters import DeadLetterFilter, Pace, Redrive, run
from ottla.client.share_member import REJECT, ShareMember
from ottla.console.access import Clients, Lease
from ottla.console.page import Context
from ottla.console.sessions import Session
from ottla.testing import EmbeddedCluster
from tests.console.test_share_group_pages import configured, take
from tests.harness.console.lookers import places, subjects
from tests.harness.console.over_http import settings
from tests.harness.reports import report, write_reports
from tests.harness.waiting import soon

REQUESTS_MAX = 20
GROUPS = 8
SUBJECTS = subjects("clicks", "readers-0", "workers", "pay-0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Groups of each type on each node, open transactions in each partition, share groups with held records."""
    with EmbeddedCluster() as made, ExitStack() as stack:
        servers: dict[str, Any] = {"bootstrap.servers": made.bootstrap_servers, "log_level": 0}
        admin = AdminClient(servers)
        names = ("clicks", "clicks__markers", "clicks__undelivered", "jobs")
        for made_topic in admin.create_topics([NewTopic(name, 6, 3) for name in names]).values():
            made_topic.result(60)
        producers: list[Producer] = []
        for number in range(6):
            producer = Producer({**servers, "transactional.id": f"pay-{number}", "linger.ms": 0})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("clicks", str(number), partition=number)
            producer.flush()
            producers.append(producer)
        letters = NewTopic("dlq.letters", 3, 3, config={"errors.deadletterqueue.group.enable": "true"})
        admin.create_topics([letters])["dlq.letters"].result(60)
        plain = Producer(servers)
        for number in range(30):
            plain.produce("jobs", str(number), partition=number % 6)
        plain.flush()
        for number in range(GROUPS):
            consumer = Consumer({**servers, "group.id": f"readers-{number}"})
            at = [TopicPartition("clicks", index, 0) for index in range(6)]
            consumer.commit(offsets=at, asynchronous=False)
            consumer.close()
            reader = Consumer({**servers, "group.id": f"next-{number}", "group.protocol": "consumer"})
            stack.callback(reader.close)
            reader.subscribe(["jobs"])
            reader.consume(1, 0.05)
        with Client(made.bootstrap_servers) as client:
            write_reports(client, report("readers-0", figures={"lag": 1}))
            for name in ("workers", "others", "more"):
                configured(
                    client,
                    name,
                    {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.letters"},
                )
        for name in ("workers", "others", "more"):
            worker = stack.enter_context(ShareMember(lambda: Client(made.bootstrap_servers), name, ["jobs"]))
            found = take(worker, 2)
            worker.acknowledge(found[:1], REJECT)
        send_back_one(made)
        yield made
        producers.clear()


def send_back_one(cluster: EmbeddedCluster) -> None:
    """One of the dead letters of `workers` is sent back: their page asks when."""
    with Client(cluster.bootstrap_servers) as client:

        def sent() -> int:
            redrive = Redrive(client, "workers", "dlq.letters")
            redrive.open()
            return run(redrive, client, DeadLetterFilter(), 1, Pace(None)).went

        soon(sent)


@pytest.mark.slow("tests/console/test_costs.py::test_each_page_and_part_sends_few_requests")
def test_no_page_or_part_sends_more_than_twenty_requests(cluster: EmbeddedCluster) -> None:
    used = settings(cluster.bootstrap_servers)
    sent: dict[str, int] = {}
    for page, part, path, query in places(SUBJECTS):
        clients = Clients(used.bootstrap, None, None, deadline_s=30, read_only=True)
        session = Session(None, clients)

        def work(lease: Lease, load: Any = (part or page).load, session: Session = session, query: Any = query) -> int:
            load(Context(used, session, lease, query))
            return lease.limits.sent

        sent[path] = clients.read(work)
        clients.close()
    assert {path: count for path, count in sent.items() if count > REQUESTS_MAX} == {}
    assert sent["/overview/part/findings"] > 15, "it has much to ask"
    assert sent["/dead-letters"] > 8, "it asks when dead letters were sent back"
