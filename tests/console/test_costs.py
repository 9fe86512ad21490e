"""The cost of the console: a bounded number of requests for each page, and memory that does not grow with use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from starlette.testclient import TestClient

from ottla.client import Client
from ottla.client.sasl import Login
from ottla.client.share_member import ShareMember
from ottla.console.access import Clients, Lease
from ottla.console.app import REFRESH, create_app
from ottla.console.page import Context, Page, Part, View
from ottla.console.pages import overview, topics
from ottla.console.pages.overview import Findings
from ottla.console.sessions import FORGET_S, SESSIONS_MAX, VIEWS_MAX, Kept, Session, Sessions, Views
from ottla.testing import EmbeddedBroker
from tests.console.test_share_group_pages import configured, take
from tests.harness.console.lookers import places, subjects
from tests.harness.console.over_http import ORIGIN, User, address, settings, user
from tests.harness.reports import report, write_reports

REQUESTS_MAX = 20
ROUNDS = 3
SUBJECTS = subjects("clicks", "readers", "workers", "pay")


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with one of each thing: a topic that is a KMQ queue too, a group, a share group with a held record, an
    open transaction."""
    with EmbeddedBroker() as broker, ExitStack() as stack:
        servers: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0}
        for name in ("clicks", "clicks__markers", "clicks__undelivered"):
            broker.create_topic(name, partitions=3)
        producer = Producer({**servers, "transactional.id": "pay"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(9):
            producer.produce("clicks", str(number), partition=number % 3)
        producer.flush()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("clicks", 0, 0)], asynchronous=False)
        consumer.close()
        broker.create_topic("dlq.letters", configs={"errors.deadletterqueue.group.enable": "true"})
        with Client(broker.bootstrap_servers) as client:
            write_reports(client, report("readers", figures={"lag": 1}))
            configured(
                client,
                "workers",
                {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.letters"},
            )
        worker = stack.enter_context(ShareMember(lambda: Client(broker.bootstrap_servers), "workers", ["clicks"]))
        assert take(worker, 1)
        yield broker
        del producer


def test_each_page_and_part_sends_few_requests(console_broker: EmbeddedBroker) -> None:
    used = settings(console_broker.bootstrap_servers)
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
    assert sum(sent.values()) > len(sent)


@pytest.mark.slow("tests/console/test_costs.py::test_a_session_keeps_little")
def test_looking_again_and_again_keeps_no_objects(visitor: User) -> None:
    def look() -> None:
        for _, _, path, query in places(SUBJECTS):
            for shown in (path, f"{path}.json"):
                answer = visitor.client.get(address(shown, query))
                assert answer.status_code == 200, (shown, answer.text[-1000:])

    for _ in range(2):  # templates, clients and the first snapshot of the doctor
        look()
    counts: list[int] = []
    for _ in range(ROUNDS):
        look()
        gc.collect()
        counts.append(len(gc.get_objects()))
    requests = 2 * len(list(places(SUBJECTS)))
    assert min(after - before for before, after in pairwise(counts)) < requests, counts  # a leak grows in each round


def test_sessions_are_bounded(console_broker: EmbeddedBroker) -> None:
    kept = Sessions(settings(console_broker.bootstrap_servers))
    first = kept.begin()
    for _ in range(2 * SESSIONS_MAX):
        kept.begin()
        kept.find(first.id)
    found = [each for each in gc.get_objects() if isinstance(each, Session) and kept.find(each.id) is each]
    assert len(found) <= SESSIONS_MAX
    assert first in found, "the session that is used stays"


def test_an_unused_session_remembers_nothing(console_broker: EmbeddedBroker) -> None:
    kept = Sessions(settings(console_broker.bootstrap_servers))
    used, unused = kept.begin(), kept.begin()
    for each in (used, unused):
        each.memory["snapshot"] = "large"
    unused.used_at -= FORGET_S + 1
    kept.close_idle()
    assert (dict(used.memory), dict(unused.memory)) == ({"snapshot": "large"}, {})


def test_a_session_keeps_little(console_broker: EmbeddedBroker) -> None:
    """What a session remembers is named by what it is, not by the things that were looked at."""
    with user(console_broker.bootstrap_servers) as visitor:
        for number in range(20):
            for page, _, path, query in places(SUBJECTS):
                if page.name in ("topic", "group", "messages"):
                    other = {**query, **{name: f"other-{number}" for name in ("name", "topic") if name in query}}
                    assert visitor.client.get(address(path, other)).status_code == 404
        sessions = [each for each in gc.get_objects() if isinstance(each, Session)]
        assert max(len(each.memory) for each in sessions) <= 4


def test_sessions_of_one_login_ask_for_all_topics_once(console_broker: EmbeddedBroker) -> None:
    """Others with another login do not see what the first may see, and a change is seen at once."""
    used = settings(console_broker.bootstrap_servers)
    kept = Sessions(used)
    ada = Login("PLAIN", "ada", "lovelace")
    sessions = [kept.begin(), kept.begin(), kept.begin("ada", ada), kept.begin("ada", replace(ada, password="x"))]
    shared = [each.shared for each in sessions]
    assert shared[0] is shared[1]
    assert len({id(each) for each in shared}) == 3

    def sent(session: Session) -> int:
        def work(lease: Lease) -> int:
            before = lease.limits.sent
            topics.load(Context(used, session, lease))
            return lease.limits.sent - before

        return session.clients.read(work)

    for session in sessions[:2]:
        sent(session)  # connects
    sessions[0].shared.forget()
    first, second = map(sent, sessions[:2])
    assert second == first - 1
    sessions[0].shared.forget()
    assert sent(sessions[1]) == first
    snapshots: list[Findings] = []
    for session in sessions[:2]:
        snapshots.append(
            session.clients.read(lambda lease, session=session: overview.load_findings(Context(used, session, lease)))
        )
    assert snapshots[0].findings == snapshots[1].findings
    assert sessions[0].memory["snapshot"] is sessions[1].memory["snapshot"]
    kept.close()


def test_open_pages_of_one_login_read_once_for_all() -> None:
    """A page that is loaded reads the cluster; one that refreshes itself takes what another has just read."""
    reads: list[str] = []

    def load(context: Context) -> View:
        reads.append(context.query.get("name", ""))
        return View(title="seen", command=str(len(reads)))

    page = Page("seen", "/seen", load, refresh_s=3600, parts=(Part("own", "Refreshes itself", load, refresh_s=0),))
    app = create_app(settings("127.0.0.1:1"), [page])
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as browser:
        users = [User(browser), User(TestClient(app, base_url=ORIGIN, follow_redirects=False))]

        def seen(who: int, *, path: str = "/seen", refreshes: bool = True, **query: str) -> str:
            asked = address(f"{path}.json", query)
            return users[who].client.get(asked, headers={REFRESH: "true"} if refreshes else {}).json()["command"]

        assert [seen(0), seen(1), seen(0)] == ["1", "1", "1"]
        assert [seen(0, refreshes=False), seen(1, refreshes=False)] == ["2", "3"]
        assert [seen(0, name="other"), seen(1, name="other")] == ["4", "4"]
        assert [seen(0, path="/seen/part/own"), seen(1, path="/seen/part/own")] == ["5", "6"]


def test_views_are_bounded() -> None:
    views = Views()
    first = views.at("first")
    for number in range(2 * VIEWS_MAX):
        views.at(number)
        assert views.at("first") is first
    assert views.at(0).get(60, lambda: "read again", 1) == "read again"
    first.get(60, lambda: "seen", 1)
    views.forget(60)
    assert views.at("first") is first
    views.forget(0)
    assert views.at("first") is not first


def test_a_fact_that_was_forgotten_while_it_was_read_is_read_again() -> None:
    kept = Kept()

    def read_before_a_change() -> str:
        kept.forget()
        return "old"

    assert kept.get(60, read_before_a_change, 1) == "old"
    assert kept.get(60, lambda: "new", 1) == "new"
    assert kept.get(60, lambda: "newer", 1) == "new"
    kept.forget(60)
    assert kept.get(60, lambda: "newer", 1) == "new"
    kept.forget()
    assert kept.get(60, lambda: "newer", 1) == "newer"
