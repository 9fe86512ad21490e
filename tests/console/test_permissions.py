"""Every route as every user: what a user sees and may change is what the cluster's ACLs allow, and nothing else.

The users log in to the console as themselves. `ada` may read one topic and its groups, `guest` may do nothing. Names
that a user may not describe are in no answer of the console.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.security.acls import decide
from ottla.client import Client
from ottla.client.dead_letters import DEAD_LETTERS
from ottla.client.share_member import ShareMember
from ottla.console.access import Clients, RecordsHiddenError
from ottla.console.app import Console, routes
from ottla.console.registry import PAGES
from ottla.console.sessions import Sessions
from ottla.console.settings import Settings
from ottla.console.workers import Workers
from ottla.protocol.acls import CLUSTER_NAME, Operation, PatternType, ResourceType
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.testing import EmbeddedBroker
from ottla.testing.security import Acl
from tests.harness.console.over_http import User, address, anonymous, hidden_in, settings
from tests.harness.console.over_http import user as console_user
from tests.harness.reports import report, write_reports

OP, KIND = Operation, ResourceType
ADMIN, ADA, GUEST, CLERK = "admin", "ada", "guest", "clerkson"
USERS = (ADMIN, ADA, GUEST)
OFFSETS, REPORTS = "__consumer_offsets", "ottla.reports"
ACLS = [
    Acl(ADA, "read", topic="orders"),
    Acl(ADA, "read", group="billing"),
    Acl(ADA, "read", group="packing"),
    Acl(ADA, "describe", topic="parcels"),
    Acl(ADA, "describe", topic=REPORTS),
    Acl(CLERK, "all", topic="payroll", group="wagebook"),
]
RULES = [rule for acl in ACLS for rule in acl.bindings()]


class Need(NamedTuple):
    """An operation that a request needs."""

    operation: Operation
    kind: ResourceType
    name: str


@dataclass(frozen=True)
class Asked:
    """A request: its address, the operations without which it is refused, and a form for a change."""

    path: str
    needs: tuple[Need, ...] = ()
    query: Mapping[str, object] = field(default_factory=dict[str, object])
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    typed: str = ""

    def __str__(self) -> str:
        return address(self.path, self.query)


def is_allowed(user: str, needs: tuple[Need, ...]) -> bool:
    """Whether the broker's rules allow a user all of these operations."""
    return user == ADMIN or all(may(user, *each) for each in needs)


def may(user: str, operation: Operation, kind: ResourceType, name: str) -> bool:
    about = [rule for rule in RULES if rule.resource_type == kind and rule.pattern_type is PatternType.LITERAL]
    fitting = [rule for rule in about if rule.name == name]
    return decide(fitting, f"User:{user}", "127.0.0.1", operation, allowed_without_acl=False).allowed


# ---- what is asked -------------------------------------------------------------------------------------------------


def on_topic(operation: Operation, name: str) -> Need:
    return Need(operation, KIND.TOPIC, name)


def on_group(operation: Operation, name: str) -> Need:
    return Need(operation, KIND.GROUP, name)


CLUSTER = Need(OP.DESCRIBE, KIND.CLUSTER, CLUSTER_NAME)
CLUSTER_CONFIGS = Need(OP.DESCRIBE_CONFIGS, KIND.CLUSTER, CLUSTER_NAME)
CONFIGS_ALTER = Need(OP.ALTER_CONFIGS, KIND.CLUSTER, CLUSTER_NAME)
CLUSTER_ALTER = Need(OP.ALTER, KIND.CLUSTER, CLUSTER_NAME)
TOPICS = ("orders", "parcels", "payroll")
GROUPS = {"billing": "orders", "wagebook": "payroll"}
SHARE_GROUPS = {"packing": "orders", "severance": "payroll"}
QUESTION = {"principal": "User:ada", "operation": "READ", "kind": "TOPIC", "resource": "orders"}


def reads() -> Iterator[Asked]:
    """The pages, parts and downloads, with each thing that they can be about."""
    for path in ("/overview", "/overview/part/findings", "/overview/part/traffic", "/overview/part/disks", "/topics",
                 "/messages", "/groups", "/share-groups", "/transactions", "/transactions/part/held", "/cluster",
                 "/cluster/part/behind", "/security", "/kmq-queues", "/pipelines"):  # fmt: skip
        yield Asked(path)
    yield Asked("/topics", query={"internal": 1})
    yield Asked("/search")
    yield Asked("/cluster/part/moves", (CLUSTER,))
    yield Asked("/cluster/part/configs", (CLUSTER,))
    yield Asked("/cluster/part/throttle", (CLUSTER_CONFIGS,))
    yield Asked("/rebalance", (CLUSTER,))
    yield Asked("/drain", (CLUSTER,), {"node": 1})
    yield Asked("/drain", (CLUSTER,), {"node": 1, "replicas": "yes"})
    yield Asked("/cluster/part/isr", (CLUSTER,))
    yield Asked("/security", (CLUSTER,), QUESTION)
    yield Asked("/security/part/users", (CLUSTER,))
    yield Asked("/security/part/acls", (CLUSTER,))
    yield Asked("/security/part/quotas", (CLUSTER_CONFIGS,))
    for name in TOPICS:
        described = on_topic(OP.DESCRIBE, name)
        yield Asked("/topic", (described,), {"name": name})
        yield Asked("/topic/part/configs", (on_topic(OP.DESCRIBE_CONFIGS, name),), {"name": name})
        for begins in ("newest", "start"):
            yield Asked("/messages", (described,), {"topic": name, "from": begins})
        yield Asked("/messages/part/tail", (described,), {"topic": name, "after": "0:0"})
        place = {"topic": name, "partition": 0, "offset": 0}
        for path in ("/message", "/message/download/key", "/message/download/value"):
            yield Asked(path, (on_topic(OP.READ, name),), place)
    for name in GROUPS:
        described = on_group(OP.DESCRIBE, name)
        yield Asked("/group", (described,), {"name": name})
        yield Asked("/group/part/ages", (described,), {"name": name})
        yield Asked("/group/part/changes", (described,), {"name": name})
        yield Asked("/group/part/past", (described, on_topic(OP.DESCRIBE, OFFSETS)), {"name": name})
    for name in SHARE_GROUPS:
        described = on_group(OP.DESCRIBE, name)
        yield Asked("/share-group", (described,), {"name": name})
        yield Asked("/share-group/part/runs", (described,), {"name": name})
        yield Asked("/share-group/part/changes", (described,), {"name": name})
        configs = on_group(OP.DESCRIBE_CONFIGS, name)
        yield Asked("/share-group/part/configs", (configs,), {"name": name})
        yield Asked("/dead-letters", (configs, on_topic(OP.DESCRIBE, "dlq.gravestones")), {"name": name})
        yield Asked("/share-group/part/letters", (configs, on_topic(OP.DESCRIBE, "dlq.gravestones")), {"name": name})
    for path in ("/kmq-queue", "/kmq-dead-letters"):
        yield Asked(path, (on_topic(OP.DESCRIBE, "payroll"),), {"name": "payroll"})
    yield Asked("/pipeline", (on_topic(OP.READ, REPORTS),), {"name": "nightshift"})
    for path in ("/transaction", "/transaction/part/readers"):
        yield Asked(path, (Need(OP.DESCRIBE, KIND.TRANSACTIONAL_ID, "strongbox"),), {"name": "strongbox"})


def changes() -> Iterator[Asked]:
    """The changes, those last that take the subject of another one away."""
    record = {"value": "forged"}
    yield Asked("/topics/create", (Need(OP.CREATE, KIND.CLUSTER, CLUSTER_NAME),), form={"name": "made"}, typed="made")
    for name in TOPICS:
        write = on_topic(OP.WRITE, name)
        yield Asked("/messages/produce", (write,), {"topic": name}, record)
        place = {"topic": name, "partition": 0, "offset": 0}
        yield Asked("/message/resend", (on_topic(OP.READ, name), write), place, {"target": name})
    for name, topic in SHARE_GROUPS.items():
        alter = on_group(OP.ALTER_CONFIGS, name)
        yield Asked("/share-group/pause", (alter,), {"name": name})
        yield Asked("/share-group/resume", (alter,), {"name": name})
        read = on_group(OP.READ, name), on_topic(OP.READ, topic)
        yield Asked("/share-group/reset", read, {"name": name}, {"to": "the first record"}, name)
        redrive = on_group(OP.DESCRIBE_CONFIGS, name), on_topic(OP.READ, "dlq.gravestones")
        yield Asked("/dead-letters/redrive", redrive, {"name": name}, {"most": "10"}, name)
        yield Asked("/share-group/delete", (on_group(OP.DELETE, name),), {"name": name}, typed=name)
    redrive = on_topic(OP.READ, "payroll"), on_topic(OP.WRITE, "payroll")
    yield Asked("/kmq-dead-letters/redrive", redrive, {"name": "payroll"}, {"most": "10"}, "payroll")
    for name, topic in GROUPS.items():
        read = on_group(OP.READ, name), on_topic(OP.READ, topic)
        yield Asked("/group/reset", read, {"name": name}, {"to": "the end", "topic": topic}, name)
        forget = on_group(OP.DELETE, name), on_topic(OP.READ, topic)
        yield Asked("/group/forget", forget, {"name": name}, {"topic": topic}, name)
        yield Asked("/group/delete", (on_group(OP.DELETE, name),), {"name": name}, typed=name)
    yield Asked(
        "/transaction/abort",
        (Need(OP.WRITE, KIND.TRANSACTIONAL_ID, "strongbox"),),
        {"name": "strongbox"},
        {},
        "strongbox",
    )
    yield Asked("/transactions/abort-hanging", (on_topic(OP.WRITE, "payroll"),), {"topic": "payroll", "partition": 0})
    password = {"password": "a secret", "again": "a secret"}
    yield Asked("/security/add-user", (CLUSTER_ALTER,), form={"name": "new", **password})
    yield Asked("/security/password", (CLUSTER_ALTER,), {"name": CLERK}, password, CLERK)
    yield Asked("/security/remove-user", (CLUSTER_ALTER,), {"name": CLERK}, typed=CLERK)
    acl = {"principal": "User:ada", "permission": "ALLOW", "operation": "DESCRIBE", "kind": "TOPIC",
           "name": "parcels", "pattern": "LITERAL", "host": "*"}  # fmt: skip
    yield Asked("/security/remove-acl", (CLUSTER_ALTER,), acl, typed="User:ada")
    yield Asked("/security/add-acl", (CLUSTER_ALTER,), form=acl, typed="User:ada")
    limit = {"user": "ada", "limit": "producer_byte_rate", "value": "1000"}
    yield Asked("/security/quota", (CONFIGS_ALTER,), form=limit, typed="user ada")
    yield Asked("/cluster/elect", (CLUSTER_ALTER,))
    yield Asked("/cluster/cancel-move", (CLUSTER_ALTER,), {"topic": "payroll", "partition": 0}, {}, "payroll")
    for path in ("/cluster/cancel-moves", "/cluster/finish-moves", "/rebalance/start"):
        yield Asked(path, (CLUSTER_ALTER,), typed="cluster")
    for path in ("/drain/start", "/drain/remove"):
        yield Asked(path, (CLUSTER_ALTER,), {"node": 1}, typed="node 1")
    for name in TOPICS:
        yield Asked("/topic/delete", (on_topic(OP.DELETE, name),), {"name": name}, typed=name)


READS, CHANGES = list(reads()), list(changes())
IDLE = {"/transactions/abort-hanging", "/cluster/elect", "/cluster/cancel-move", "/cluster/cancel-moves",
        "/cluster/finish-moves", "/rebalance/start", "/drain/start", "/drain/remove", "/dead-letters/redrive",
        "/kmq-dead-letters/redrive"}  # fmt: skip
"""Changes that this cluster has nothing for: the admin gets a sentence that says so."""
HIDDEN = {
    "payroll": on_topic(OP.DESCRIBE, "payroll"),
    "parcels": on_topic(OP.DESCRIBE, "parcels"),
    "orders": on_topic(OP.DESCRIBE, "orders"),
    "dlq.gravestones": on_topic(OP.DESCRIBE, "dlq.gravestones"),
    "billing": on_group(OP.DESCRIBE, "billing"),
    "wagebook": on_group(OP.DESCRIBE, "wagebook"),
    "packing": on_group(OP.DESCRIBE, "packing"),
    "severance": on_group(OP.DESCRIBE, "severance"),
    "strongbox": Need(OP.DESCRIBE, KIND.TRANSACTIONAL_ID, "strongbox"),
    "nightshift": on_topic(OP.READ, REPORTS),
    "clerkson": CLUSTER,
    **{f"text-of-{name}": on_topic(OP.READ, name) for name in TOPICS},
}
"""Names and texts, and the operation without which they are in no answer."""


# ---- the cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A secured broker with topics, groups, share groups and a transaction. The group `billing` and the share group
    `packing` read a topic too that their reader may not see. `payroll` is a KMQ queue."""
    users = {name: f"secret-{name}" for name in (ADA, GUEST, CLERK)}
    with EmbeddedBroker(sasl="scram-sha-256", users=users, acls=ACLS) as started, ExitStack() as stack:
        for name in (*TOPICS, "dlq.gravestones", "payroll__markers", "payroll__undelivered"):
            started.create_topic(name)
        given: dict[str, Any] = dict(started.client_properties())
        producer = Producer({**given, "linger.ms": 0})
        for name in TOPICS:
            producer.produce(name, f"text-of-{name}", f"text-of-{name}", partition=0)
        producer.flush()
        opened = Producer({**given, "transactional.id": "strongbox", "transaction.timeout.ms": 600_000})
        opened.init_transactions(60)
        opened.begin_transaction()
        opened.produce("payroll", "text-of-payroll", partition=0)
        opened.flush()
        for group in GROUPS:
            consumer = Consumer({**given, "group.id": group})
            places = [TopicPartition(topic, 0, 1) for topic in ("orders", "payroll")]
            consumer.commit(offsets=places, asynchronous=False)
            consumer.close()
        login = started._client(None).login

        def connect() -> Client:
            return Client(started.bootstrap_servers, login=login)

        with connect() as admin:
            write_reports(admin, report("nightshift"))
            for group in SHARE_GROUPS:
                configs = {DEAD_LETTERS: "dlq.gravestones", "share.auto.offset.reset": "earliest"}
                rows = [AlterableConfig(name, 0, value) for name, value in configs.items()]
                (result,) = admin.send(
                    IncrementalAlterConfigsRequest([AlterConfigsResource(32, group, rows)])
                ).responses
                assert not result.error_code, result.error_message
                with ShareMember(connect, group, ["orders", "payroll"]) as member:
                    while not member.poll(1, 200):
                        pass
        yield started
        stack.close()
        del opened


@pytest.fixture(scope="module")
def guests(broker: EmbeddedBroker) -> Iterator[dict[str, User]]:
    """Each user of USERS, logged in to a console of their own."""
    passwords = {ADA: "secret-ada", GUEST: "secret-guest"}
    login = broker._client(None).login
    assert login is not None
    passwords[ADMIN] = login.password
    with ExitStack() as stack:
        found: dict[str, User] = {}
        for name, password in passwords.items():
            client = stack.enter_context(anonymous(settings(broker.bootstrap_servers, mechanism="SCRAM-SHA-256")))
            found[name] = User(client, (name, password))
        yield found


# ---- tests ---------------------------------------------------------------------------------------------------------


def test_no_route_is_left_out() -> None:
    """A new page, part, download or change has to say what it needs."""
    used = Settings("localhost:1", frozenset(), mechanism="PLAIN")
    console = Console(used, PAGES, Sessions(used), Workers())
    known = {each.path.removesuffix(".json") for each in routes(console)}
    console.workers.close()
    fixed = {each for each in known if each.startswith("/static/")} | {"/", "/login", "/logout", "/favicon.ico"}
    assert known - fixed == {each.path for each in (*READS, *CHANGES)}


def leaked(user: str, asked: Asked, text: str) -> list[str]:
    """The names in an answer that the user may not know, beyond those in the request."""
    given = f"{asked}{dict(asked.form)}"
    return [
        name for name, need in HIDDEN.items() if name in text and name not in given and not is_allowed(user, (need,))
    ]


@pytest.mark.parametrize("user", USERS)
def test_a_user_sees_what_the_rules_allow(guests: dict[str, User], user: str) -> None:
    seen: set[str] = set()
    for asked in READS:
        for suffix in ("", ".json")[: 1 if "/download/" in asked.path else 2]:
            answer = guests[user].client.get(address(f"{asked.path}{suffix}", asked.query))
            assert answer.status_code in ((200,) if is_allowed(user, asked.needs) else (403, 404)), (asked, answer.text)
            assert not leaked(user, asked, answer.text), (asked, suffix)
            seen |= {name for name in HIDDEN if name in answer.text and name not in str(asked)}
    assert seen == {name for name, need in HIDDEN.items() if is_allowed(user, (need,))}


def test_hidden_records_are_on_no_page(broker: EmbeddedBroker) -> None:
    """With --no-records, also for the admin: the client below the pages sends no Fetch."""
    refused: set[str] = set()
    with console_user(broker.bootstrap_servers, login=broker._client(None).login, no_records=True) as admin:
        for asked in READS:
            answer = admin.client.get(str(asked))
            assert answer.status_code in (200, 403), (asked, answer.text)
            assert "text-of-" not in answer.text, asked
            if answer.status_code == 403:
                assert "started with --no-records" in answer.text
                refused |= {str(asked)}
        form = {"step": "preview", "target": "orders"}
        assert admin.post("/message/resend", form, {"topic": "orders", "partition": 0, "offset": 0}).status_code == 403
    assert {urlsplit(each).path for each in refused} == {
        "/messages",
        "/messages/part/tail",
        "/message",
        "/message/download/key",
        "/message/download/value",
        "/group/part/past",
        "/pipeline",
    }
    clients = Clients(
        broker.bootstrap_servers, None, broker._client(None).login, deadline_s=30, read_only=False, no_records=True
    )
    for use in (clients.read, clients.change):
        with pytest.raises(RecordsHiddenError):
            use(lambda lease: lease.client.fetch_raw("orders", 0, 0))
    clients.close()


def test_a_record_that_may_not_be_read_is_not_missing(guests: dict[str, User]) -> None:
    """`ada` may describe the topic, so the console says what is lacking."""
    place = {"topic": "parcels", "partition": 0, "offset": 0}
    form = {"step": "preview", "target": "orders"}
    answers = [guests[ADA].client.get(address(f"/message{end}", place)) for end in ("", ".json", "/download/value")]
    for answer in (*answers, guests[ADA].post("/message/resend", form, place)):
        assert (answer.status_code, "TOPIC_AUTHORIZATION_FAILED" in answer.text) == (403, True), answer.text
    assert guests[ADMIN].client.get(address("/message", {**place, "offset": 999})).status_code == 404


@contextmanager
def reading(guests: dict[str, User], topic: str) -> Iterator[None]:
    """`ada` may read the topic until the end of the block."""
    acl = {"principal": "User:ada", "permission": "ALLOW", "operation": "READ", "kind": "TOPIC", "name": topic,
           "pattern": "LITERAL", "host": "*"}  # fmt: skip
    assert guests[ADMIN].change("/security/add-acl", "User:ada", acl).status_code == 303
    yield
    assert guests[ADMIN].change("/security/remove-acl", "User:ada", **acl).status_code == 303


def test_reports_are_hidden_as_soon_as_the_right_to_read_is_gone(guests: dict[str, User]) -> None:
    """A session remembers the reports that it has read; the broker's present answer decides whether it shows them."""
    for path in ("/pipelines", "/pipeline?name=nightshift"):
        assert "web1" not in guests[ADA].client.get(path).text
    with reading(guests, REPORTS):
        assert "nightshift" in guests[ADA].get("/pipelines")
        assert guests[ADA].get("/pipeline", name="nightshift")
    text = guests[ADA].get("/pipelines")
    assert "You may not read the topic ottla.reports" in text
    assert "nightshift" not in text
    guests[ADA].get("/pipeline", 403, name="nightshift")


def test_the_last_hour_of_a_group_is_hidden_as_soon_as_the_right_to_read_is_gone(guests: dict[str, User]) -> None:
    """A client stores the leaders of the topic; the broker's present answer decides."""
    with reading(guests, OFFSETS):
        assert "The last hour" in guests[ADA].get("/group/part/past", name="billing")
    guests[ADA].get("/group/part/past", 403, name="billing")


def test_reports_that_another_login_has_read_are_hidden(broker: EmbeddedBroker) -> None:
    """All sessions of a console share what was read."""
    login = broker._client(None).login
    assert login is not None
    with anonymous(settings(broker.bootstrap_servers, mechanism="SCRAM-SHA-256")) as client:
        assert "nightshift" in User(client, (ADMIN, login.password)).get("/pipelines")
        for name in (ADA, GUEST):
            client.cookies.clear()
            other = User(client, (name, f"secret-{name}"))
            assert "nightshift" not in other.get("/pipelines")
            other.get("/pipeline", 403, name="nightshift")


@pytest.mark.parametrize("user", [ADA, GUEST])
def test_a_hidden_thing_looks_like_a_missing_one(guests: dict[str, User], user: str) -> None:
    """An answer does not tell that a topic, group or transactional id exists."""
    count = 0
    for asked in READS:
        key = next((each for each in ("name", "topic") if each in asked.query), None)
        if key is None or is_allowed(user, (HIDDEN[str(asked.query[key])],)):
            continue
        name, count = str(asked.query[key]), count + 1
        hidden = guests[user].client.get(str(asked))
        missing = guests[user].client.get(address(asked.path, {**asked.query, key: "missing"}))
        assert hidden.status_code == missing.status_code
        assert hidden.text.replace(name, "missing") == missing.text
    assert count > 10


# ---- changes -------------------------------------------------------------------------------------------------------


def state(admin: User) -> list[Any]:
    """What changes could have changed, as the admin sees it."""
    things = [Asked("/topics"), Asked("/security/part/users"), Asked("/security/part/acls"), Asked("/groups")]
    things += [Asked("/security/part/quotas"), Asked("/share-groups")]
    things += [Asked("/group", query={"name": each}) for each in GROUPS]
    things += [Asked("/share-group", query={"name": each}) for each in SHARE_GROUPS]
    found = [admin.json(each.path, **each.query) for each in things]
    for page in found:
        if "counters" in page:
            page["counters"] = page["counters"].partition("-")[2]  # it begins with the time of the page
        for topic in page.get("topics", ()):
            topic.pop("rate", None)  # it compares with the page before
    return [*found, admin.json("/transaction", name="strongbox")["state"]]


def is_idle(asked: Asked) -> bool:
    """Whether the cluster has nothing for this change."""
    return asked.path in IDLE or asked.path.endswith("/resume")


def attempted(user: User, admin: User, asked: Asked) -> Any:
    """The answer to a change as its user would send it; with the confirmation of the admin's preview, if the user gets
    no preview."""
    shown = user.post(asked.path, {"step": "preview", **asked.form}, asked.query)
    if shown.status_code != 200:
        assert shown.status_code in ((400, 403, 404) if is_idle(asked) else (403, 404)), (asked, shown.text)
        shown = admin.post(asked.path, {"step": "preview", **asked.form}, asked.query)
    form = {"step": "apply", "typed": asked.typed, **asked.form, **hidden_in(shown.text)}
    return user.post(asked.path, form, asked.query)


@pytest.mark.parametrize("name", [GUEST, ADA])
def test_a_change_without_permission_changes_nothing(guests: dict[str, User], name: str) -> None:
    user, admin = guests[name], guests[ADMIN]
    before = state(admin)
    for asked in CHANGES:
        if is_allowed(name, asked.needs):
            continue
        form = user.client.get(str(asked))
        answer = attempted(user, admin, asked)
        assert form.status_code in (200, 400, 403, 404), asked
        is_forgotten = "password" in asked.form  # the session of the admin has it
        expected = (400, 403, 404) if is_idle(asked) or is_forgotten else (403, 404)
        assert answer.status_code in expected, (asked, answer.text)
        assert not leaked(name, asked, form.text + answer.text), asked
    changed = [(was, now) for was, now in zip(before, state(admin), strict=True) if was != now]
    assert not changed, changed


def test_a_change_with_permission_is_done(guests: dict[str, User], caplog: pytest.LogCaptureFixture) -> None:
    """The user whom the rules allow it first; the admin last, who may do everything. Each change has an audit line."""
    caplog.set_level(logging.INFO, "ottla.console.audit")
    done: list[tuple[str, str]] = []
    for name in (ADA, ADMIN):
        for asked in CHANGES:
            if is_allowed(name, asked.needs):
                answer = attempted(guests[name], guests[ADMIN], asked)
                assert answer.status_code == (400 if asked.path in IDLE else 303), (name, asked, answer.text)
                done += [(name, asked.path)] if answer.status_code == 303 else []
    assert guests[ADMIN].json("/topics")["topics"][0]["name"] == "dlq.gravestones"
    lines = [json.loads(each.message) for each in caplog.records if each.name == "ottla.console.audit"]
    assert [(each["user"], each["change"]) for each in lines if each["outcome"] == "done"] == done
    assert {path for _, path in done} == {each.path for each in CHANGES} - set(IDLE)
