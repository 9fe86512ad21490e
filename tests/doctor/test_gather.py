"""Snapshots of real nodes: every fact, the number of requests, and what a user may not see."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.client.connection import Connection
from ottla.client.share_member import ACCEPT, ShareMember
from ottla.doctor import Evidence, Snapshot, diagnose, gather
from ottla.doctor.bundle import NoBundleError, from_json, to_json
from ottla.doctor.snapshot import Group, Topic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.harness.waiting import soon


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


def seen(broker: EmbeddedBroker) -> Snapshot:
    with Client(broker.bootstrap_servers) as client:
        return gather(client)


def topic(found: Snapshot, name: str) -> Topic:
    return next(each for each in found.topics if each.name == name)


def group(found: Snapshot, name: str) -> Group:
    return next(each for each in found.groups if each.name == name)


def produce(broker: EmbeddedBroker, name: str, count: int, **settings: Any) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    if settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(name, str(number), partition=0)
    producer.flush(30)
    return producer


def reader(broker: EmbeddedBroker, name: str, group: str, **settings: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([name])
    return consumer


def test_topics_and_disks(broker: EmbeddedBroker) -> None:
    name = broker.create_topic(partitions=2, configs={"retention.ms": "12345"})
    produce(broker, name, 7)
    found = seen(broker)
    first, second = topic(found, name).partitions
    assert (first.start, first.end, first.stable, second.end) == (0, 7, 7, 0)
    assert (first.leader, first.replicas, first.isr, first.leader_epoch) == (1, (1,), (1,), 0)
    assert first.size
    assert first.oldest_ms is not None
    assert first.newest_ms is not None
    assert second.oldest_ms is None
    assert found.at_ms - 60_000 < first.oldest_ms <= first.newest_ms
    assert topic(found, name).number("retention.ms") == 12345
    assert topic(found, name).set_configs == {"retention.ms"}
    (node,) = found.nodes
    assert (node.id, node.unreachable) == (1, None)
    assert 0 < (node.disks[0].usable or 0) < (node.disks[0].total or 0)
    assert found.unseen == ()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_their_members_and_positions(broker: EmbeddedBroker, protocol: str) -> None:
    name = broker.create_topic()
    produce(broker, name, 10)
    consumer = reader(broker, name, f"g-{protocol}", **{"group.protocol": protocol, "client.id": "worker"})
    try:
        assert len(consumer.consume(4, 30)) == 4
        consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
        found = group(seen(broker), f"g-{protocol}")
        assert (found.type, found.state) == (protocol, "Stable")
        (member,) = found.members
        assert (member.client_id, member.owned) == ("worker", {(name, 0)})
        assert member.target == (None if protocol == "classic" else {(name, 0)})
        assert found.committed[name, 0].offset == 4
    finally:
        consumer.close()


def test_share_groups_their_members_and_lag(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    with Client(broker.bootstrap_servers) as client:
        set_group_config(client, "jobs", "share.auto.offset.reset", "earliest")
        produce(broker, name, 5)
        with ShareMember(lambda: Client(broker.bootstrap_servers), "jobs", [name]) as member:
            taken: list[Any] = []
            while len(taken) < 2:
                taken += member.poll(2 - len(taken))
            member.acknowledge(taken, ACCEPT)
            soon(lambda: group(gather(client), "jobs").committed[name, 0].offset == 2)
            found = group(gather(client), "jobs")
            assert (found.type, found.state, found.committed[name, 0].lag) == ("share", "Stable", 3)
            assert [each.owned for each in found.members] == [{(name, 0)}]
            assert found.configs["share.auto.offset.reset"] == "earliest"


def test_an_open_transaction_and_one_that_no_coordinator_knows(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    producer = produce(broker, name, 3, **{"transactional.id": "pay"})
    found = seen(broker)
    (opened,) = found.transactions
    assert (opened.place, opened.name, opened.start_offset, opened.timeout_ms) == ((name, 0), "pay", 0, 60_000)
    assert topic(found, name).partitions[0].stable == 0
    assert opened.started_ms is not None
    assert found.at_ms - 60_000 < opened.started_ms
    producer.abort_transaction(30)
    assert seen(broker).transactions == ()


def test_a_fault_on_a_real_node_is_found_and_its_advice_helps(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    produce(broker, name, 10)
    consumer = reader(broker, name, "late")
    assert consumer.consume(1, 30)
    consumer.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition(name, 0, 8)]).values():
        deleted.result(30)

    def lost() -> list[str]:
        once = seen(broker)
        return [each.finding.sentence for each in diagnose(Evidence(once, once), ["lost-unread"])]

    (sentence,) = lost()
    assert f"late has not read 6 offsets in {name}-0" in sentence
    consumer.commit(offsets=[TopicPartition(name, 0, 8)], asynchronous=False)
    assert lost() == []
    consumer.close()


def test_the_past_of_groups(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    produce(broker, name, 10)
    consumer = reader(broker, name, "past", **{"client.id": "one"})
    assert consumer.consume(1, 30)
    for offset in (3, 5, 4):
        consumer.commit(offsets=[TopicPartition(name, 0, offset)], asynchronous=False)
    other = reader(broker, name, "past", **{"client.id": "two"})
    with Client(broker.bootstrap_servers) as client:

        def both() -> bool:
            consumer.poll(0)
            other.poll(0)
            return gather(client, history_ms=60_000).generations["past"][-1].number == 2

        soon(both)
        found = gather(client, history_ms=60_000)
        assert [each.offset for each in found.commits["past", (name, 0)]] == [3, 5, 4]
        assert all(found.at_ms - 60_000 < each.at_ms <= found.at_ms for each in found.commits["past", (name, 0)])
        *_, first, second = found.generations["past"]
        assert (first.number, {each.client_id for each in first.members}) == (1, {"one"})
        assert {each.client_id for each in second.members - first.members} == {"two"}
        assert from_json(json.loads(json.dumps(to_json(Evidence(found, found))))).last == found
        assert gather(client).commits == {}
    other.close()
    consumer.close()


def test_a_bundle_gives_the_same_findings(broker: EmbeddedBroker) -> None:
    once = seen(broker)
    evidence = Evidence(once, once)
    back = from_json(json.loads(json.dumps(to_json(evidence))))
    assert back == evidence
    for wrong in ([], {"format": 2}, {"format": 1}, {"format": 1, "first": {}, "last": {"at_ms": "x"}}):
        with pytest.raises(NoBundleError):
            from_json(wrong)


def test_the_number_of_requests_does_not_grow_with_groups(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = broker.create_topic()
    sent: list[int] = []
    post = Connection.post
    monkeypatch.setattr(
        Connection, "post", lambda self, message, *a, **k: sent.append(1) or post(self, message, *a, **k)
    )
    with Client(broker.bootstrap_servers) as client:
        commit(client, "many-0", name)
        sent.clear()
        seen(broker)
        before = len(sent)
        for number in range(30):
            commit(client, f"many-{number}", name)
    sent.clear()
    assert len([each for each in seen(broker).groups if each.name.startswith("many-")]) == 30
    assert len(sent) == before < 25


def test_a_user_without_rights_is_told_what_is_missing(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with EmbeddedBroker(directory=tmp_path, settings=settings) as locked:
        found = seen(locked)
        assert found.topics == ()
        assert any("disks of node 1" in each and "CLUSTER_AUTHORIZATION_FAILED" in each for each in found.unseen)
        assert any("node 1 remembers" in each and "CLUSTER_AUTHORIZATION_FAILED" in each for each in found.unseen)


@pytest.mark.slow("tests/doctor/test_gather.py::test_a_fault_on_a_real_node_is_found_and_its_advice_helps")
def test_a_cluster_with_a_killed_node_and_after_it_is_back() -> None:
    with EmbeddedCluster() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        config = {"min.insync.replicas": "3"}
        admin.create_topics([NewTopic("orders", 1, 3, config=config)])["orders"].result(30)

        def found() -> dict[str, str]:
            with Client(cluster.bootstrap_servers) as client:
                once = gather(client)
            return {
                each.check.name: each.finding.sentence
                for each in diagnose(Evidence(once, once))
                if each.finding.severity and each.check.name != "slow-turns"  # of a busy machine
            }

        soon(lambda: found() == {}, found)
        victim = next(node for node in cluster.nodes if node != cluster.leader_of("orders"))
        cluster.kill(victim)
        soon(lambda: "too-few-in-sync" in found(), found)
        assert "2 of 3 replicas in sync, and it needs 3" in found()["too-few-in-sync"]
        cluster.start_node(victim)
        soon(lambda: found() == {}, found)


def commit(client: Client, group: str, topic: str) -> None:
    """Commit an offset as a simple consumer, without a member."""
    rows = [OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, 0)])]
    answer = client.send_to_coordinator(group, OffsetCommitRequest(group, topics=rows), 8)
    assert answer.topics[0].partitions[0].error_code == 0


def set_group_config(client: Client, group: str, name: str, value: str) -> None:
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(32, group, [AlterableConfig(name, 0, value)])])
    assert client.send(request).responses[0].error_code == 0
