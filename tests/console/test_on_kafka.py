"""The console over Apache Kafka: everything works, what Kafka does not report is said, looking creates nothing.

`make console-peer PEER=host:port` runs it against the cluster there: one node or several, without TLS and login. It
makes topics and groups with names of its own, and leaves them. The nodes may be Ottla's, also of an earlier version.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.client.share_member import ShareMember
from ottla.console.registry import PAGES
from ottla.doctor.groups import listed_on
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.private_requests import PRIVATE_REQUESTS
from ottla.protocol.records import Record, build_batch
from tests.console.test_share_group_pages import configured, take
from tests.harness.console.lookers import places, subjects
from tests.harness.console.over_http import User, address, user
from tests.harness.reports import report, write_reports
from tests.harness.waiting import soon

PEER = os.environ.get("OTTLA_CONSOLE_PEER")
pytestmark = pytest.mark.skipif(not PEER, reason="needs a Kafka cluster: make console-peer PEER=host:port")
RUN = uuid.uuid4().hex[:8]
TOPIC, GROUP, SHARE, ID = (f"{kind}-{RUN}" for kind in ("topic", "group", "share", "id"))
NOWHERE = f"nowhere-{RUN}"


OF_CHANGES = {
    "/cluster/cancel-move": {"topic": TOPIC, "partition": "0"},
    "/transactions/abort-hanging": {"topic": TOPIC, "partition": "0"},
}
MISSING_THERE = {"dead_letters"}
"""Pages of what only Ottla has."""


def addresses(of: dict[str, dict[str, str]]) -> Iterator[tuple[str, str, dict[str, str], bool]]:
    """Every page and part, as HTML and JSON, every form and file: page, path, query, and whether it is a form."""
    for page, _, path, query in places(of):
        yield page.name, path, query, False
        yield page.name, f"{path}.json", query, False
    for page in PAGES:
        query = of.get(page.name, {})
        for download in page.downloads:
            yield page.name, f"{page.path}/download/{download.name}", query, False
        for change in page.changes:
            path = f"{page.path}/{change.name}"
            yield page.name, path, {**query, **OF_CHANGES.get(path, {})}, True


@dataclass(frozen=True)
class Things:
    """What exists in the cluster."""

    topics: frozenset[str]
    groups: frozenset[str]
    ids: frozenset[str]


def things() -> Things:
    with Client(str(PEER)) as client:
        client.metadata([])
        nodes = [client.broker(each) for each in client.broker_ids()]
        groups = frozenset(each.name for node in nodes for each in listed_on(node))
        topics = frozenset(str(each.name) for each in client.metadata(None).topics)
        with user(str(PEER)) as visitor:
            ids = frozenset(each["name"] for each in visitor.json("/transactions")["transactions"])
    return Things(topics, groups, ids)


def look(visitor: User, of: dict[str, dict[str, str]], allowed: set[int]) -> list[str]:
    """Ask for everything; gives what failed."""
    failed: list[str] = []
    for name, path, query, changes in addresses(of):
        answer = visitor.client.get(address(path, query))
        expected = {200, 400, 404} if changes or name in MISSING_THERE else allowed
        if answer.status_code not in expected or "fault of the console" in answer.text:
            failed.append(f"{answer.status_code} {path} {query}: {answer.text[-600:]}")
        if changes:
            posted = visitor.post(path, {"step": "preview"}, query)
            if posted.status_code not in (200, 400, 403, 404):
                failed.append(f"{posted.status_code} POST {path} {query}: {posted.text[-600:]}")
    return failed


@pytest.fixture(scope="module")
def visitor() -> Iterator[User]:
    with user(str(PEER), deadline_s=30.0) as found:
        yield found


def test_looking_creates_nothing(visitor: User) -> None:
    before = things()
    assert look(visitor, subjects(NOWHERE, NOWHERE, NOWHERE, NOWHERE), {200, 404}) == []
    assert things() == before


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """A KMQ queue, a group with a member, a share group whose member holds records, an open transaction."""
    servers: dict[str, Any] = {"bootstrap.servers": str(PEER)}
    admin = AdminClient(servers)
    replicas = min(3, len(admin.list_topics(timeout=30).brokers))
    topics = [NewTopic(TOPIC + suffix, 3, replicas) for suffix in ("", "__markers", "__undelivered")]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({**servers, "linger.ms": 0})
    for number in range(30):
        producer.produce(TOPIC, f'{{"number": {number}}}', key=str(number), partition=number % 3)
    assert producer.flush(30) == 0
    with ExitStack() as stack:
        consumer = Consumer({**servers, "group.id": GROUP, "auto.offset.reset": "earliest"})
        stack.callback(consumer.close)
        consumer.subscribe([TOPIC])
        for _ in range(600):
            if (found := consumer.poll(0.1)) is not None and found.error() is None:
                consumer.commit(message=found, asynchronous=False)
                break
        with Client(str(PEER)) as client:
            configured(client, SHARE, {"share.auto.offset.reset": "earliest"})
            write_reports(client, report(GROUP))
        worker = ShareMember(lambda: Client(str(PEER)), SHARE, [TOPIC])
        stack.enter_context(worker)
        held = take(worker, 3)
        open_one = Producer({**servers, "transactional.id": ID, "linger.ms": 0})
        open_one.init_transactions(60)
        open_one.begin_transaction()
        open_one.produce(TOPIC, "open", partition=0)
        assert open_one.flush(30) == 0
        yield
        assert held
        open_one.abort_transaction(30)


@pytest.mark.usefixtures("busy")
def test_every_page_shows_a_busy_cluster(visitor: User) -> None:
    before = things()
    assert look(visitor, subjects(TOPIC, GROUP, SHARE, ID), {200}) == []
    assert things() == before


@pytest.mark.usefixtures("busy")
def test_the_facts_of_a_busy_cluster(visitor: User) -> None:
    assert len(visitor.json("/overview")["nodes"]) >= 1
    topic = visitor.json("/topic", name=TOPIC)
    assert (topic["records"], len(topic["partitions"])) == (31, 3)
    assert visitor.json("/messages", topic=TOPIC)["rows"]
    group = visitor.json("/group", name=GROUP)
    assert group["members"], group
    ((held),) = visitor.json("/transactions/part/held")["held"]
    assert held["name"] == ID
    assert visitor.json("/transaction", name=ID)["is_open"]


@pytest.mark.usefixtures("busy")
def test_what_kafka_does_not_report_is_said(visitor: User) -> None:
    share = visitor.json("/share-group", name=SHARE)
    assert (len(share["members"]), len(share["partitions"])) == (1, 3)
    is_own = is_ottla()
    for found in (share, visitor.json("/share-group/part/runs", name=SHARE)):
        lacks = "This cluster does not report records in flight, nor why records failed; nodes of Ottla do."
        assert found["unseen"] == ([] if is_own else [lacks])
    text = visitor.get("/dead-letters", 400, name=SHARE)
    assert f"The group {SHARE} has no dead-letter topic" in text
    findings = visitor.json("/overview/part/findings")
    assert findings["took_s"] > 0
    assert is_own or any("which only Ottla remembers" in each for each in findings["unseen"])
    assert all(("whose version of Ottla" if is_own else "which only Ottla") in each for each in findings["unseen"])


def is_ottla() -> bool:
    """Whether the nodes are Ottla's, which report what Kafka does not."""
    with Client(str(PEER)) as client:
        client.metadata([])
        about = DescribeConfigsResource(ConfigResourceType.BROKER, str(client.broker_ids()[0]), [PRIVATE_REQUESTS])
        (result,) = client.send(DescribeConfigsRequest([about])).results
        return any(each.value for each in result.configs)


def test_a_rebalance_and_a_drain_on_several_nodes(visitor: User) -> None:
    nodes = [each["id"] for each in visitor.json("/cluster")["nodes"]]
    if len(nodes) < 3:
        assert visitor.json("/rebalance")["moves"] == []
        assert visitor.json("/drain", node=nodes[0])["cannot"]
        return
    name = f"placed-{RUN}"
    placed = [CreatableReplicaAssignment(index, nodes[:2]) for index in range(6)]
    with Client(str(PEER)) as client:
        topics = [CreatableTopic(name, -1, -1, assignments=placed)]
        (made,) = client.send(CreateTopicsRequest(topics=topics, timeout_ms=30_000)).topics
        assert not made.error_code, made.error_message
        soon(lambda: [each.leader_id >= 0 for each in client.metadata([name]).topics[0].partitions] == [True] * 6)
        for index in range(6):
            client.produce_raw(name, index, bytes(build_batch([Record(0, 1_700_000_000_000, None, bytes(9_000))])))
    proposal = visitor.json("/rebalance")
    assert sum(each["receives"] for each in proposal["nodes"]) == proposal["bytes"] > 0
    assert visitor.change("/rebalance/start", form={"throttle": "100000000"}).status_code == 303
    soon(lambda: visitor.json("/cluster/part/moves")["moves"] == [])
    assert {each["rate"] for each in visitor.json("/cluster/part/throttle")["nodes"]} == {100_000_000}
    assert visitor.change("/cluster/finish-moves").status_code == 303
    soon(lambda: visitor.json("/cluster/part/throttle")["nodes"] == [])
    held = {node for each in visitor.json("/topic", name=name)["partitions"] for node in each["replicas"]}
    assert held == set(nodes)
    assert visitor.json("/rebalance")["copies"] == 0
    assert visitor.change("/drain/start", node=nodes[0]).status_code == 303
    soon(lambda: visitor.json("/cluster")["nodes"][0]["leads"] == 0)
    assert visitor.json("/drain", node=nodes[0], replicas="yes")["cannot_in_all"] > 0, (
        "internal topics are on all nodes"
    )
    assert visitor.change("/rebalance/start").status_code == 303
    soon(lambda: visitor.json("/cluster")["nodes"][0]["leads"] > 0)
