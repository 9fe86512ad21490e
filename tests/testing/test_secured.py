"""Brokers that a test secures: each way to log in, the users' rights, and what is refused."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer

from ottla.client import BrokerError, Client
from ottla.client.sasl import Login, login_of
from ottla.client.set_up import ClientSetUp
from ottla.testing import Acl, EmbeddedBroker, EmbeddedCluster

PATIENCE_S = 30.0
ACLS = [Acl("ada", "write", topic="orders"), Acl("ada", "read", topic="orders", group="billing")]


def outcome_of(properties: dict[str, str], topic: str) -> int | None:
    """The code of a record's error."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({**properties, "log_level": 0})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S)
    (outcome,) = outcomes
    return None if outcome is None else outcome.code()


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        (True, "scram-sha-256", "SASL_SSL"),
        (True, "SCRAM-SHA-512", "SASL_SSL"),
        (True, "plain", "SASL_SSL"),
        (False, "plain", "SASL_PLAINTEXT"),
        ("mutual", None, "SSL"),
        ("mutual", "scram-sha-256", "SASL_SSL"),
    ],
)
def test_a_user_may_do_what_its_acls_allow(tls: Any, sasl: str | None, protocol: str) -> None:
    with EmbeddedBroker(tls=tls, sasl=sasl, users=["ada"], acls=ACLS) as broker:
        properties = broker.client_properties("ada")
        assert properties["security.protocol"] == protocol
        assert outcome_of(broker.client_properties(), broker.create_topic("hidden")) is None
        assert outcome_of(properties, broker.create_topic("orders")) is None
        assert outcome_of(properties, "hidden") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer = Consumer({**properties, "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        found = consumer.poll(PATIENCE_S)
        assert found is not None
        assert (found.error(), found.value()) == (None, b"v")
        consumer.close()


@pytest.mark.parametrize(("tls", "sasl"), [(True, "scram-sha-256"), (False, "scram-sha-512"), ("mutual", None)])
def test_clients_in_python_take_the_arguments(tls: Any, sasl: str | None) -> None:
    with EmbeddedBroker(tls=tls, sasl=sasl, users=["ada"]) as broker:
        topic, arguments = broker.create_topic(), broker.client_arguments("ada")

        async def send() -> None:
            async with AIOKafkaProducer(**arguments) as producer:
                await producer.send_and_wait(topic, b"of aiokafka", partition=0)

        asyncio.run(send())
        producer = KafkaProducer(**arguments)
        producer.send(topic, b"of kafka-python", partition=0).get(PATIENCE_S)
        producer.close()
        consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **arguments)
        assert [next(consumer).value for _ in range(2)] == [b"of aiokafka", b"of kafka-python"]
        consumer.close()


def test_without_acls_every_user_may_do_everything_and_a_restart_keeps_the_logins(tmp_path: Path) -> None:
    with EmbeddedBroker(tls=True, sasl="plain", users={"ada": "lovelace"}, directory=tmp_path) as broker:
        before = broker.client_properties("ada")
        assert before["sasl.password"] == "lovelace"
        assert outcome_of(before, broker.create_topic("orders")) is None
        broker.restart()
        assert broker.client_properties("ada") == before
        assert outcome_of(before, "orders") is None
    with pytest.raises(RuntimeError, match="has not been started"):
        broker.client_properties("ada")
    assert not os.path.exists(before["ssl.ca.location"])
    with EmbeddedBroker(sasl="plain", users={"ada": "byron"}, directory=tmp_path) as broker:
        assert outcome_of(broker.client_properties("ada"), "orders") is None
        wrong = Login("PLAIN", "ada", "lovelace")
        with pytest.raises(BrokerError, match="credentials"), Client(broker.bootstrap_servers, login=wrong) as client:
            client.metadata([])


def test_an_open_broker_has_client_properties_too() -> None:
    with EmbeddedBroker() as broker:
        assert outcome_of(broker.client_properties(), broker.create_topic("orders")) is None
        assert broker.client_arguments()["security_protocol"] == "PLAINTEXT"
        assert broker.java_properties()["bootstrap.servers"] == broker.bootstrap_servers
        with pytest.raises(ValueError, match="no user ada"):
            broker.client_properties("ada")


def test_a_password_of_any_characters_reaches_java() -> None:
    login = Login("SCRAM-SHA-512", "ada", 'a"b\\c')
    assert login_of(ClientSetUp("h:1", "ca.pem", login=login).java()) == login


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls": "yes"}, "tls can be False, True or 'mutual', not 'yes'"),
        ({"sasl": "gssapi"}, "'scram-sha-512', 'plain', not 'gssapi'"),
        ({"users": ["ada"]}, "users needs a way to tell clients apart"),
        ({"tls": True, "acls": []}, "acls needs a way to tell clients apart"),
        ({"tls": "mutual", "users": {"ada": "secret"}}, "Passwords need sasl"),
        ({"tls": "mutual", "users": ["a,O=b"]}, "can't be in a certificate"),
        ({"sasl": "plain", "users": "ada"}, "users is a list of names"),
        ({"sasl": "plain", "users": {"admin": "secret"}}, "admin is the broker's own user"),
        ({"sasl": "plain", "acls": [Acl("bob", "read", topic="t")]}, "names a user who is not in users"),
        ({"tls": True, "settings": {"ssl.client.auth": "none"}}, r"ssl\.client\.auth can't be one of the settings"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], says: str) -> None:
    for kind in (EmbeddedBroker, EmbeddedCluster):
        with pytest.raises(ValueError, match=says):
            kind(**given)


def test_an_acl_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no operation 'fly'"):
        Acl("ada", "fly", topic="t")
    with pytest.raises(ValueError, match="names no resource"):
        Acl("ada", "read")


def test_the_nodes_of_a_cluster_are_secured_for_clients() -> None:
    """And answer the cluster's own questions about leaders; one that returns knows the users."""
    with EmbeddedCluster(nodes=2, tls=True, sasl="scram-sha-256", users=["ada"], acls=ACLS) as cluster:
        admin, ada = cluster.client_properties(), cluster.client_properties("ada")
        assert outcome_of(admin, "orders") is None
        assert outcome_of(admin, "hidden") is None
        assert outcome_of(ada, "orders") is None
        assert outcome_of(ada, "hidden") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        leader = cluster.leader_of("orders")
        cluster.kill(leader)
        assert outcome_of(ada, "orders") is None
        cluster.start_node(leader)
        cluster.wait_in_sync("orders")
        one = {**ada, "bootstrap.servers": cluster.address_of(leader)}
        assert outcome_of(one, "hidden") == KafkaError.TOPIC_AUTHORIZATION_FAILED
