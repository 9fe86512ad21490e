"""Share groups that deliver nothing, on a real node: what the doctor says of their records in flight."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.client import Client, read_together
from ottla.client.errors import UnsupportedVersionError
from ottla.client.share_member import ACCEPT, RELEASE, Delivered, ShareMember
from ottla.doctor import Evidence, diagnose, gather
from ottla.doctor.bundle import from_json, to_json
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.testing import EmbeddedBroker

GROUP = 32
LOCKS = 100
"""The least that share.partition.max.record.locks may be."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(
        settings={
            "group.share.min.partition.max.record.locks": str(LOCKS),
            "group.share.partition.max.record.locks": "200",
        }
    ) as made:
        yield made


def _topic(broker: EmbeddedBroker, records: int) -> str:
    name = broker.create_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(records):
        producer.produce(name, str(number))
    producer.flush(30)
    return name


def _member(broker: EmbeddedBroker, group: str, topic: str, **configs: str) -> ShareMember:
    with Client(broker.bootstrap_servers) as client:
        own = {"share.auto.offset.reset": "earliest"} | {key.replace("_", "."): each for key, each in configs.items()}
        rows = [AlterableConfig(name, 0, value) for name, value in own.items()]
        (result,) = client.send(IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, group, rows)])).responses
        assert not result.error_code, result.error_message
    return ShareMember(lambda: Client(broker.bootstrap_servers, client_id="ada"), group, [topic])


def _take(worker: ShareMember, count: int) -> list[Delivered]:
    found: list[Delivered] = []
    for _ in range(200):
        found += worker.poll(count - len(found), 200)
        if len(found) >= count:
            return found
    raise AssertionError(f"got {len(found)} of {count} records")


def _found(broker: EmbeddedBroker, group: str) -> str:
    """What the doctor says of the group, after its evidence has been in a file."""
    with Client(broker.bootstrap_servers) as client:
        seen = gather(client)
    evidence = Evidence(seen, seen)
    assert from_json(to_json(evidence)) == evidence
    return "".join(
        each.finding.sentence for each in diagnose(evidence, ["share-group-idle"]) if each.finding.subject == group
    )


def test_a_member_that_holds_as_many_records_as_it_may(broker: EmbeddedBroker) -> None:
    name = _topic(broker, LOCKS + 5)
    with _member(broker, "full", name, share_partition_max_record_locks=str(LOCKS)) as ada:
        held = _take(ada, LOCKS - 1)
        assert _found(broker, "full") == ""
        held += _take(ada, 1)
        said = _found(broker, "full")
        assert f"Members of full have acquired {LOCKS} records of {name}-0" in said
        assert f"ada (/127.0.0.1) has {LOCKS} of them" in said
        ada.acknowledge(held, ACCEPT)
        assert _found(broker, "full") == ""


def test_records_that_all_back_off(broker: EmbeddedBroker) -> None:
    name = _topic(broker, 3)
    with _member(broker, "failing", name, share_retry_backoff_ms="60000") as ada:
        held = _take(ada, 3)
        ada.acknowledge(held[:2], RELEASE)
        assert _found(broker, "failing") == ""
        ada.acknowledge(held[2:], RELEASE)
        assert f"failing has 3 records of {name}-0 left, and delivers none before the end of a back-off" in _found(
            broker, "failing"
        )


def test_other_kafkas_do_not_report_records_in_flight(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = _topic(broker, 3)
    with _member(broker, "silent", name) as ada:
        _take(ada, 1)
        monkeypatch.setattr(
            read_together, "ask_nodes", lambda client, asked: dict.fromkeys(asked, UnsupportedVersionError("no"))
        )
        with Client(broker.bootstrap_servers) as client:
            found = gather(client)
    assert [each for each in found.unseen if "only Ottla reports" in each]
    assert not [each for group in found.groups for each in group.deliveries]
