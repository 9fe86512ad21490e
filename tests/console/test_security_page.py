"""The page of security: rules as the broker decides them, users, quotas, and clusters without an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from ottla.broker.security.acls import decide
from ottla.client import Client
from ottla.console.acl_rules import Acl, decided
from ottla.metadata.acls import AclBinding
from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType
from ottla.testing import EmbeddedBroker
from ottla.testing.security import Acl as Rule
from tests.harness.console.over_http import User, user

ADA, BOB = "User:ada", "User:bob"


def test_rules_are_those_of_the_broker() -> None:
    """For every pair of ACLs of a small world."""
    one = [
        AclBinding(ResourceType.TOPIC, PatternType.LITERAL, "t", principal, host, operation, permission)
        for principal, host, operation, permission in product(
            (ADA, "User:*", BOB),
            ("*", "10.0.0.1"),
            (Operation.ALL, Operation.READ, Operation.ALTER_CONFIGS),
            PermissionType,
        )
    ]
    for given in [[], *([each] for each in one), *([a, b] for a, b in product(one, one[::5]))]:
        ours = [Acl(a[0].name, a[2], a[1].name, a[3], a[4], a[5].name, a[6].name) for a in given]
        for operation in (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
            theirs = decide(given, ADA, "10.0.0.2", operation, allowed_without_acl=False)
            allowed, acl = decided(ours, ADA, "10.0.0.2", operation)
            assert (bool(allowed), acl is None) == (theirs.allowed, theirs.acl is None)
            assert (allowed is None) == (not given)


def test_patterns_cover_names() -> None:
    def acl(name: str, pattern: PatternType) -> Acl:
        return Acl("TOPIC", name, pattern.name, ADA, "*", "READ", "ALLOW")

    assert acl("t", PatternType.LITERAL).covers(ResourceType.TOPIC, "t")
    assert acl("*", PatternType.LITERAL).covers(ResourceType.TOPIC, "t")
    assert acl("t", PatternType.PREFIXED).covers(ResourceType.TOPIC, "topic")
    assert not acl("t", PatternType.LITERAL).covers(ResourceType.TOPIC, "topic")
    assert not acl("t", PatternType.LITERAL).covers(ResourceType.GROUP, "t")


@pytest.fixture(scope="module")
def secured() -> Iterator[User]:
    """The admin's console over a broker with users and ACLs."""
    rules = [Rule("ada", "read", topic="orders"), Rule("ada", "read", group="*")]
    with EmbeddedBroker(sasl="scram-sha-256", users={"ada": "secret-ada"}, acls=rules) as broker:
        login = broker._client(None).login
        with user(broker.bootstrap_servers, login=login) as found:
            yield found


def test_acls_and_users_are_listed_without_secrets(secured: User) -> None:
    acls = secured.json("/security/part/acls")["acls"]
    assert ("User:ada", "READ", "TOPIC", "orders", "ALLOW") in [
        (each["principal"], each["operation"], each["kind"], each["name"], each["permission"]) for each in acls
    ]
    assert secured.json("/security/part/acls", q="nothing like it")["acls"] == []
    users = secured.json("/security/part/users")["users"]
    assert {"name": "ada", "mechanisms": ["SCRAM-SHA-256"]} in users
    assert "secret-ada" not in secured.get("/security/part/users")
    assert secured.json("/security/part/quotas")["quotas"] == []


@pytest.mark.parametrize(
    ("principal", "operation", "kind", "name", "allowed"),
    [
        (ADA, "READ", "TOPIC", "orders", True),
        (ADA, "DESCRIBE", "TOPIC", "orders", True),
        (ADA, "WRITE", "TOPIC", "orders", False),
        (BOB, "READ", "TOPIC", "orders", False),
        (ADA, "READ", "TOPIC", "other", False),
        (ADA, "READ", "GROUP", "any", True),
        ("User:admin", "ALTER", "CLUSTER", "", True),
    ],
)
def test_may_a_user_do_something(
    secured: User, principal: str, operation: str, kind: str, name: str, allowed: bool
) -> None:
    view = secured.json("/security", principal=principal, operation=operation, kind=kind, resource=name)
    assert view["allowed"] == allowed, view["why"]
    assert "ottla acls check --principal" in view["command"]


def test_a_question_that_makes_no_sense_is_refused(secured: User) -> None:
    assert "TYPE:NAME" in secured.get("/security", 400, principal="ada")
    assert "Choose an operation" in secured.get("/security", 400, principal=ADA, operation="FLY", kind="TOPIC")


def test_a_cluster_without_an_authorizer_says_so_in_its_place(visitor: User) -> None:
    assert "May a user do something?" in visitor.get("/security")
    assert "every client may do everything" in visitor.get("/security/part/acls")
    question = {"principal": ADA, "operation": "READ", "kind": "TOPIC", "resource": "t"}
    found = visitor.json("/security", **question)
    assert (found["allowed"], found["why"]) == (True, "The cluster has no authorizer: every client may do everything.")


def test_users_see_what_their_acls_allow() -> None:
    """The console has no rights of its own: the same page, as a user who may do less."""
    rules = [Rule("ada", "describe", topic="orders")]
    with EmbeddedBroker(sasl="plain", users={"ada": "secret"}, acls=rules) as broker:
        for name in ("orders", "payroll"):
            broker.create_topic(name)
        with user(broker.bootstrap_servers, login=broker._client("ada").login) as found:
            assert [each["name"] for each in found.json("/topics")["topics"]] == ["orders"]
            assert found.get("/topic", 403, name="payroll")
            refused = found.change("/topic/delete", "orders", name="orders")
            assert (refused.status_code, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (403, True)
            assert "CLUSTER_AUTHORIZATION_FAILED" in found.get("/security/part/acls", 403)
        with Client(broker.bootstrap_servers, login=broker._client(None).login) as admin:
            assert {"orders", "payroll"} <= {each.name for each in admin.topics()}
