"""`ottla acls` against a real node, and what other clients see of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.testing import EmbeddedBroker

PATIENCE_S = 30.0
NAMED = ("resource", "name", "pattern", "principal", "host", "operation", "permission")


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """A broker with ACLs whose clients, which are all ANONYMOUS, may do what no ACL is about."""
    with EmbeddedBroker(
        settings={"authorizer.class.name": AUTHORIZERS[0], "allow.everyone.if.no.acl.found": "true"}
    ) as own:
        yield own


def test_acls_are_added_listed_checked_and_removed(ottla: Callable[..., Any], own: EmbeddedBroker) -> None:
    where = ("--bootstrap", own.bootstrap_servers)

    def listed(*words: str) -> list[tuple[str, ...]]:
        rows = ottla("acls", "list", "--format", "json", *words, *where).json()
        return [tuple(row[name] for name in NAMED) for row in rows]

    ada = ("--principal", "User:ada")
    done = ottla("acls", "add", *ada, "--operation", "read", "--topic", "orders-", "--group", "b-", "--prefix", *where)
    assert done.out == "Added 2 ACLs for User:ada.\n"
    of_topics = ("TOPIC", "orders-", "PREFIXED", "User:ada", "*", "READ", "ALLOW")
    assert listed() == [("GROUP", "b-", "PREFIXED", "User:ada", "*", "READ", "ALLOW"), of_topics]
    ottla("acls", "add", *ada, "--deny", "--operation", "all", "--topic", "orders-x", "--host", "10.0.0.9", *where)
    denied = ("TOPIC", "orders-x", "LITERAL", "User:ada", "10.0.0.9", "ALL", "DENY")
    assert listed("--topic", "orders-x") == [denied]
    assert listed("--topic", "orders-x", "--for-name") == [of_topics, denied]

    def check(*words: str, code: int = 0) -> str:
        return str(ottla("acls", "check", *ada, *words, *where, code=code).out)

    assert check("--operation", "describe", "--topic", "orders-x") == (
        "User:ada may DESCRIBE TOPIC orders-x: An ACL allows it: User:ada may READ TOPIC orders- (prefix).\n"
    )
    assert "An ACL denies it: User:ada from 10.0.0.9 may not ALL TOPIC orders-x." in check(
        "--operation", "read", "--topic", "orders-x", "--host", "10.0.0.9", code=1
    )
    assert "none of them allows it" in check("--operation", "write", "--topic", "orders-x", code=1)
    assert "lets everyone in" in check("--operation", "write", "--topic", "new", "--cluster")
    assert "Nothing was changed" in ottla("acls", "remove", "--topic", "orders-x", *where, stdin="n\n", code=1).err
    assert "Removed 1 ACL." in ottla("acls", "remove", "--topic", "orders-x", *where, stdin="y\n").out
    own.restart()
    assert "Removed 2 ACLs." in ottla("acls", "remove", *ada, "--yes", *where).out
    assert "No ACL matches" in ottla("acls", "remove", *ada, "--yes", *where, code=1).err
    ottla("acls", "add", *ada, "--producer", "--consumer", "--topic", "t", "--group", "g", *where)
    assert sorted((row[0], row[5]) for row in listed()) == [
        ("GROUP", "READ"),
        *(("TOPIC", each) for each in ("CREATE", "DESCRIBE", "READ", "WRITE")),
    ]


def test_what_is_incomplete_or_misspelled_is_refused(ottla: Callable[..., Any], own: EmbeddedBroker) -> None:
    where, ada = ("--bootstrap", own.bootstrap_servers), ("--principal", "User:ada")
    for words, says in (
        (("add", "--operation", "read", "--topic", "t"), "--principal"),
        (("add", *ada, "--topic", "t"), "Say what may be done"),
        (("add", *ada, "--operation", "reed", "--topic", "t"), "there is no operation 'reed'"),
        (("add", *ada, "--operation", "read"), "Say what may be done"),
        (("remove",), "Say which ACLs"),
        (("check", *ada, "--topic", "t"), "Say what to check"),
        (("check", "--principal", "ada", "--operation", "read", "--topic", "t"), "User:ada"),
    ):
        assert says in ottla("acls", *words, *where, code=2).err
    refused = ottla("acls", "add", "--principal", "ada", "--operation", "read", "--topic", "t", *where, code=1)
    assert "no colon" in refused.err


def test_a_node_without_an_authorizer_says_so(ottla: Callable[..., Any]) -> None:
    assert "No Authorizer is configured" in ottla("acls", "list", code=1).err


def test_a_real_client_sets_acls_and_is_held_to_them(own: EmbeddedBroker) -> None:
    properties = {"bootstrap.servers": own.bootstrap_servers, "log_level": 0}
    admin = AdminClient(properties)
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    acl = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    admin.create_acls([acl])[acl].result(PATIENCE_S)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(everything).result(PATIENCE_S) == [acl]
    producer = Producer(properties)
    outcomes: list[KafkaError | None] = []
    producer.produce("t", b"v", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S)
    (error,) = outcomes
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin.delete_acls([everything])[everything].result(PATIENCE_S) == [acl]
    another = Producer(properties)  # librdkafka remembers for a while that a topic was denied
    another.produce("t", b"v", on_delivery=lambda error, _: outcomes.append(error))
    another.flush(PATIENCE_S)
    assert outcomes[1] is None
    nameless = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "ada", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    with pytest.raises(KafkaException, match="no colon"):
        admin.create_acls([nameless])[nameless].result(PATIENCE_S)
