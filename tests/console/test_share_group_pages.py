"""Share groups: who has which records, for how long, what waits; pause and resume."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from ottla.client import Client, ShareReasons, ask_node
from ottla.client.client import LATEST
from ottla.client.dead_letters import DEAD_LETTERS, REDRIVE_PREFIX
from ottla.client.read_together import read_together
from ottla.client.share_groups import Pause
from ottla.client.share_member import ACCEPT, REJECT, RELEASE, Delivered, ShareMember
from ottla.client.share_partitions import FrequentReason, InFlight, RunState, ShareGroup, SharePartition
from ottla.console.access import Clients, Lease, RecordsHiddenError
from ottla.console.failures_since import Counters, Since, counters_in, counters_of, since
from ottla.console.letter_counts import NotSentBack, not_sent_back
from ottla.console.page import Context, InputError
from ottla.console.pages.dead_letters import sent_until
from ottla.console.pages.share_group import (
    by_in_words,
    doing,
    load_letters,
    partition_row,
    total,
    why_nothing,
    with_pause,
)
from ottla.console.reading import Config
from ottla.console.redrive_times import RedriveTimes, forwards
from ottla.console.sessions import Session, Shared
from ottla.console.worker_reasons import shown_reasons
from ottla.doctor.snapshot import Commit, Committed, Group, Member, Partition, Snapshot, Topic
from ottla.protocol.messages.describe_share_partitions import DescribeSharePartitionsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import User, settings, user
from tests.harness.waiting import soon

GROUP = 32
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.retry.backoff.ms": "60000",
}


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with the topic `tasks` of ten records."""
    with EmbeddedBroker(settings={"auto.create.topics.enable": "true"}) as broker:
        broker.create_topic("tasks")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        for number in range(10):
            producer.produce("tasks", str(number))
        producer.flush()
        yield broker


def configured(client: Client, group: str, configs: dict[str, str]) -> None:
    """Set the configs of a group."""
    rows = [AlterableConfig(name, 0, value) for name, value in configs.items()]
    (result,) = client.send(IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, group, rows)])).responses
    assert not result.error_code, result.error_message


@contextmanager
def member(broker: EmbeddedBroker, group: str, configs: dict[str, str] = CONFIGS) -> Iterator[ShareMember]:
    """A member of a share group with these configs."""
    with Client(broker.bootstrap_servers) as client:
        configured(client, group, configs)
    with ShareMember(lambda: Client(broker.bootstrap_servers, client_id="ada"), group, ["tasks"]) as found:
        yield found


def take(worker: ShareMember, count: int) -> list[Delivered]:
    """This many records."""
    found: list[Delivered] = []
    for _ in range(200):
        found += worker.poll(count - len(found), 200)
        if len(found) == count:
            return found
    raise AssertionError(f"got {len(found)} of {count} records")


# ---- views ---------------------------------------------------------------------------------------------------------


def test_what_happens_to_records_in_words() -> None:
    assert [
        doing(each)
        for each in (
            InFlight(0, 0, RunState.ACQUIRED, 1),
            InFlight(0, 0, RunState.ACQUIRED, 1, is_being_written=True),
            InFlight(0, 0, RunState.ARCHIVING, 1, is_rejected=True),
            InFlight(0, 0, RunState.ARCHIVING, 5),
            InFlight(0, 0, RunState.BACKING_OFF, 2, next_try_ms=5),
            InFlight(0, 0, RunState.DELAYED, 0, next_try_ms=5),
            InFlight(0, 0, RunState.AVAILABLE, 2),
        )
    ] == [
        "with a member",
        "acknowledged, being stored",
        "rejected, dead letter to be written",
        "delivered too often, dead letter to be written",
        "backing off",
        "delayed",
        "waits for its next delivery",
    ]


def test_why_members_get_nothing() -> None:
    reads = Member("m", "ada", "/h", owned=frozenset({("t", 0)}))
    group = Group("g", "share", "Stable", (reads,))
    assert "is paused" in why_nothing(group, Pause(1, "an admin"), 5)
    assert "has paused itself" in why_nothing(group, Pause(1, "the breaker: more than 3 dead letters"), 5)
    assert "no members" in why_nothing(Group("g", "share", "Empty"), None, 5)
    assert why_nothing(Group("g", "share", "Empty"), None, 0) == "Every record is done."
    idle = Group("g", "share", "Stable", (Member("m", "ada", "/h"),))
    assert "No member has a partition" in why_nothing(idle, None, 5)
    assert "Every record is done: members" in why_nothing(group, None, 0)
    assert "or became a dead letter: members" in why_nothing(group, None, 0, has_letters=True)
    by = Pause(1, "the breaker: more than 3 dead letters")
    assert by_in_words(by) == "its circuit breaker (more than 3 dead letters)"
    assert by_in_words(Pause(1, "an admin")) == "an admin"
    assert why_nothing(group, None, 5) == ""
    assert (total([None, 3, 4]), total([None])) == (7, None)


def test_dead_letters_that_were_not_sent_back_are_counted_in_a_snapshot() -> None:
    """Of the redrive of `a`, offsets below 3 and from 5 up to 7 were sent back; `b` and `c` share a topic."""

    def group(name: str, topic: str | None) -> Group:
        return Group(name, "share", "Empty", configs={} if topic is None else {DEAD_LETTERS: topic})

    def topic(name: str, *bounds: tuple[int, int]) -> Topic:
        parts = [Partition(at, 1, (1,), (1,), start=start, end=end) for at, (start, end) in enumerate(bounds)]
        return Topic(name, tuple(parts))

    used = {"a": "dlq.a", "b": "dlq.b", "c": "dlq.b", "d": "dlq.d", "e": None}
    redrives = {("dlq.a", 0): Committed(3, metadata="[[2,2]]")}
    snapshot = Snapshot(
        0,
        topics=(topic("dlq.a", (1, 9), (0, 1)), topic("dlq.b", (4, 6)), topic("dlq.d", (7, 7))),
        groups=(
            *(group(name, letters) for name, letters in used.items()),
            Group(f"{REDRIVE_PREFIX}a", "classic", "Empty", committed=redrives),
            Group(f"{REDRIVE_PREFIX}c", "classic", "Empty", committed={("dlq.b", 0): Committed(6)}),
        ),
    )
    assert not_sent_back(snapshot) == (NotSentBack("a", 5, False), NotSentBack("b", 2, True))


def test_the_author_of_a_pause_is_the_one_that_the_node_stores() -> None:
    since = Config("share.delivery.paused.since.ms", "1795768034775", "this group", False, False)
    by = Config("share.delivery.paused.by", "the breaker: 4 dead letters", "this group", False, False)
    paused = Config("share.delivery.paused", "true", "this group", False, False)
    found = with_pause(
        (paused, by, since, Config("share.isolation.level", "read_committed", "this group", False, False))
    )
    assert [each.set_by for each in found] == [*["the breaker: 4 dead letters"] * 3, ""]
    assert found[0].set_ms == found[2].time_ms == 1_795_768_034_775
    assert with_pause((paused,)) == (paused,)


def test_a_cluster_that_reports_nothing_leaves_the_start_and_the_lag() -> None:
    group = Group("g", "share", "Stable", committed={("t", 0): Committed(7, lag=3)})
    row = partition_row(("t", 0), group, None)
    assert (row.start, row.lag, row.held, row.letters) == (7, 3, None, None)


# ---- pages ---------------------------------------------------------------------------------------------------------


def test_records_under_way_and_who_has_them(visitor: User, console_broker: EmbeddedBroker) -> None:
    with member(console_broker, "work") as ada:
        first, second, third = take(ada, 3)
        ada.acknowledge([first], ACCEPT)
        ada.acknowledge([second], RELEASE)
        view = visitor.json("/share-group", name="work")
        assert (view["lag"], view["held"], view["waiting"]) == (9, 1, 8)
        assert view["members"][0]["client_id"] == "ada"
        (partition,) = view["partitions"]
        assert (partition["start"], partition["accepted"], partition["released"]) == (1, 1, 1)
        runs = visitor.json("/share-group/part/runs", name="work")["runs"]
        held = next(each for each in runs if each["doing"] == "with a member")
        assert (held["first"], held["last"], held["client_id"], held["deliveries"]) == (2, 2, "ada", 1)
        assert held["for_ms"] >= 0
        assert 0 < held["left_ms"] <= 31_000  # the node reads its clock once per turn
        waits = next(each for each in runs if each["doing"] == "backing off")
        assert (waits["first"], waits["limit"]) == (1, 5)
        assert 0 < waits["left_ms"] <= 61_000  # the console and the node read their own clocks
        assert "backing off" in visitor.get("/share-group/part/runs", name="work")
        assert {each["name"] for each in visitor.json("/share-groups")["groups"]} >= {"work"}
        assert "share.retry.backoff.ms" in visitor.get("/share-group/part/configs", name="work")
        ada.acknowledge([third], REJECT)


def test_pause_and_resume(visitor: User, console_broker: EmbeddedBroker) -> None:
    with member(console_broker, "stops") as ada:
        take(ada, 1)
        done = visitor.change("/share-group/pause", name="stops")
        assert (done.status_code, done.headers["location"]) == (303, "/share-group?name=stops")
        view = visitor.json("/share-group", name="stops")
        assert (view["is_paused"], view["paused_by"]) == (True, "ottla-console at 127.0.0.1")
        assert "is paused" in view["why"]
        assert ">paused<" in visitor.get("/share-groups", q="stops")
        assert "The group is paused already." in visitor.get("/share-group/pause", 400, name="stops")
        assert visitor.change("/share-group/resume", name="stops").status_code == 303
        assert not visitor.json("/share-group", name="stops")["is_paused"]
        assert len(take(ada, 1)) == 1


def test_offsets_are_reset_and_the_group_deleted(visitor: User, console_broker: EmbeddedBroker) -> None:
    with member(console_broker, "again") as ada:
        for each in take(ada, 4):
            ada.acknowledge([each], ACCEPT)
        assert "The group has 1 member." in visitor.get("/share-group/delete", 400, name="again")
    form = {"to": "the first record", "topic": "tasks"}
    shown = visitor.post("/share-group/reset", {"step": "preview", **form}, {"name": "again"})
    assert "4 records will be read again." in shown.text
    assert "ottla share-groups reset-offsets again" in shown.text
    done = visitor.change("/share-group/reset", "again", form=form, name="again")
    assert (done.status_code, done.headers["location"]) == (303, "/share-group?name=again")
    assert visitor.json("/share-group", name="again")["partitions"][0]["start"] == 0
    done = visitor.change("/share-group/delete", "again", name="again")
    assert (done.status_code, done.headers["location"]) == (303, "/share-groups")
    assert "There is no group again." in visitor.get("/share-group", 404, name="again")


def test_dead_letters_with_their_causes_go_back_once(visitor: User, console_broker: EmbeddedBroker) -> None:
    console_broker.create_topic("dlq.mail", configs={"errors.deadletterqueue.group.enable": "true"})
    with member(console_broker, "mail", {**CONFIGS, "errors.deadletterqueue.topic.name": "dlq.mail"}) as ada:
        ada.acknowledge(take(ada, 3), REJECT)
        for _ in range(200):
            view = visitor.json("/dead-letters", name="mail")
            if len(view["letters"]) == 3:
                break
        else:
            raise AssertionError("there are not three dead letters")
        assert [(each["reason"], each["detail"], each["letters"], each["waiting"]) for each in view["causes"]] == [
            ("rejected", "tasks", 3, 3)
        ]
        assert {each["value"] for each in view["letters"]} == {"0", "1", "2"}
        times = {(each["first_failed_ms"], each["last_failed_ms"]) for each in view["letters"]}
        assert all(first == last > each["at_ms"] for first, last in times for each in view["letters"])
        text = visitor.get("/dead-letters", name="mail")
        assert all(each in text for each in ("dlq.mail", "Failed (UTC)", "rejected by a member"))
        assert "mail: 3 records failed for good and were not sent back" in visitor.get("/overview/part/findings")
        its_own = {"topic": "dlq.mail", "partition": "0", "offset": "0"}
        shown = visitor.get("/message", **its_own)
        assert "A dead letter of the share group" in shown
        assert re.search(r"<code>\d+</code> <small><time datetime=", shown), "the times of the failures"
        shown = visitor.get("/message/resend", **its_own)
        assert 'name="target" type="text" value="tasks"' in shown
        form = {"step": "preview", "target": "tasks", "partition": "0"}
        shown = visitor.post("/message/resend", form, its_own).text
        assert "The dead letter still counts as not sent back." in shown
        assert visitor.json("/share-group/part/letters", name="mail")["waiting"] == 3
        form = {"reason": "rejected", "topic": "", "most": "2"}
        shown = visitor.post("/dead-letters/redrive", {"step": "preview", **form}, {"name": "mail"})
        assert "Sends 2 records back: 2 to tasks." in shown.text
        assert "ottla share-groups redrive mail --reason rejected -n 2 --execute" in shown.text
        before_ms = int(time.time() * 1000)
        done = visitor.change("/dead-letters/redrive", "mail", form=form, name="mail")
        assert "reader of Ottla" in visitor.get("/groups", q="ottla-redrive.mail")
        assert (done.status_code, done.headers["location"]) == (303, "/dead-letters?name=mail")
        view = visitor.json("/dead-letters", name="mail")
        assert "mail: 1 record failed for good and was not sent back" in visitor.get("/overview/part/findings")
        assert visitor.json("/share-group/part/letters", name="mail")["waiting"] == 1
        (row,) = visitor.json("/share-groups", q="mail")["groups"]
        assert (row["letters_topic"], row["dead_letters"], row["sent_back"]) == ("dlq.mail", 3, 2)
        assert ">3</a>, 2 sent back" in visitor.get("/share-groups", q="mail")
        assert (view["waiting"], [each["is_back"] for each in view["letters"]]) == (1, [False, True, True])
        assert [each["back_to"] for each in view["letters"]] == [None, "tasks", "tasks"]
        assert {each["back_ms"] for each in view["letters"][1:]} < set(range(before_ms, before_ms + 60_000))
        text = visitor.get("/dead-letters", name="mail")
        assert "<strong>1 of 3 dead letters</strong> is still to be sent back." in text
        assert re.search(r"sent back to tasks, <time [^>]+>[^<]+</time> at the latest", text)
        assert visitor.json("/topic", name="tasks")["records"] == 12
        refused = visitor.post("/dead-letters/redrive", {"step": "preview", "most": "9999"}, {"name": "mail"})
        assert (refused.status_code, "Give a number from 1 to 5,000." in refused.text) == (400, True)
        refused = visitor.post(
            "/dead-letters/redrive", {"step": "preview", "most": "1", "reason": "exhausted"}, {"name": "mail"}
        )
        assert "No dead letter of this kind" in refused.text


def test_the_first_commit_that_includes_a_dead_letter_says_when_it_was_sent_back_at_the_latest() -> None:
    """Times are 10, 20, 30. The commit at 10 is of a topic of the same name that was deleted."""
    commits = forwards([Commit(9, 10), Commit(3, 20, "[[2,2]]"), Commit(8, 30, "[]")])
    times = RedriveTimes({0: [(each.at_ms, sent_until(each.offset, each.metadata)) for each in commits]})
    assert [times.at(0, offset) for offset in range(9)] == [20, 20, 20, 30, 30, 20, 20, 30, None]
    assert times.at(1, 0) is None


def test_dead_letters_are_counted_without_reading_them_again(console_broker: EmbeddedBroker) -> None:
    """Two groups share the topic. A session that may read no records counts those that another one has read."""
    console_broker.create_topic("dlq.both", configs={"errors.deadletterqueue.group.enable": "true"})
    configs = {**CONFIGS, "errors.deadletterqueue.topic.name": "dlq.both"}
    used = settings(console_broker.bootstrap_servers)
    shared = Shared()

    def count(**options: bool) -> tuple[int | None, int]:
        clients = Clients(used.bootstrap, None, None, deadline_s=30, read_only=True, **options)
        session = Session(None, clients, shared)
        view = clients.read(lambda lease: load_letters(Context(used, session, lease, {"name": "one"})))
        clients.close()
        return view.waiting, view.unread

    with member(console_broker, "one", configs) as ada, member(console_broker, "two", configs) as bob:
        ada.acknowledge(take(ada, 2), REJECT)
        bob.acknowledge(take(bob, 1), REJECT)
        with Client(console_broker.bootstrap_servers) as client:
            soon(lambda: client.list_offsets("dlq.both", [0], LATEST)[0] == 3)
        assert count(no_records=True) == (0, 3), "the offsets are known"
        assert count() == (2, 0)
        assert count(no_records=True) == (2, 0)
        ada.acknowledge(take(ada, 1), REJECT)
        with Client(console_broker.bootstrap_servers) as client:
            soon(lambda: client.list_offsets("dlq.both", [0], LATEST)[0] == 4)
        assert count(no_records=True) == (2, 1)
        assert count() == (3, 0)


def test_a_group_without_a_topic_for_dead_letters_says_so(visitor: User) -> None:
    assert "has no dead-letter topic" in visitor.get("/dead-letters", 400, name="nobody")


# ---- reasons -------------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A delivered record, as ShareReasons wants it."""

    delivered: Delivered

    def topic(self) -> str:
        return self.delivered.topic

    def partition(self) -> int:
        return self.delivered.place[1]

    def offset(self) -> int:
        return self.delivered.record.offset

    def delivery_count(self) -> int:
        return self.delivered.delivery_count


HOSTILE = "<script>alert(1)</script>\u202e"
"""A member chooses the text."""
AS_TEXT = "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e"


def test_the_reasons_of_members_are_shown_as_text(visitor: User, console_broker: EmbeddedBroker) -> None:
    address = console_broker.bootstrap_servers
    console_broker.create_topic("dlq.why", configs={"errors.deadletterqueue.group.enable": "true"})
    with (
        member(console_broker, "why", {**CONFIGS, DEAD_LETTERS: "dlq.why"}) as ada,
        ShareReasons({"bootstrap.servers": address, "group.id": "why"}) as reasons,
    ):
        first, second, third = take(ada, 3)
        assert reasons.give(Given(first), HOSTILE + "x" * 600), reasons.why_not
        assert reasons.give(Given(second), "out of paper"), reasons.why_not
        assert reasons.give(Given(third), "out of paper"), reasons.why_not
        ada.acknowledge([first], RELEASE)
        ada.acknowledge([second, third], REJECT)
        runs = visitor.get("/share-group/part/runs", name="why")
        assert all(each in runs for each in ("Last reason given", AS_TEXT, "xxx..."))
        assert "x" * 300 not in runs
        (run,) = visitor.json("/share-group/part/runs", name="why")["runs"]
        assert (run["reason"], run["reason_delivery"]) == (HOSTILE + "x" * (200 - len(HOSTILE)) + "...", 1)
        shown = visitor.get("/share-group", name="why")
        assert "<strong>out of paper</strong> (2 failures, the last at " in shown
        assert "1 record not done yet" in shown
        link = re.search(r'href="(/share-group\?name=why&amp;since=[-0-9]+)">Count failures from now on', shown)
        assert link is not None, "the page says how one sees that the cause is mended"
        counted = html.unescape(link[1])
        assert "No record was tried since then, so it is not known" in visitor.client.get(counted).text
        assert AS_TEXT in shown
        soon(lambda: len(visitor.json("/dead-letters", name="why")["letters"]) == 2)
        ada.acknowledge(take(ada, 1), ACCEPT)
        assert "The cause seems mended" in visitor.client.get(counted).text
        ada.acknowledge(take(ada, 1), REJECT)
        assert "Records still fail." in visitor.client.get(counted).text
        assert visitor.get("/share-group", 400, name="why", since="1-2-3")
        view = visitor.json("/dead-letters", name="why")
        assert [(each["reason"], each["worker_reason"], each["letters"]) for each in view["causes"]] == [
            ("rejected", "out of paper", 2),
            ("rejected", None, 1),
        ]
        assert {each["client_id"] for each in view["letters"]} == {"ada"}
        letters = visitor.get("/dead-letters", name="why")
        assert all(each in letters for each in ("Reason given", "<td>out of paper</td>", "that program's words"))
        preview = visitor.post(
            "/dead-letters/redrive", {"step": "preview", "reason": "any", "topic": "", "most": "9"}, {"name": "why"}
        )
        assert "out of paper" in preview.text
        soon(lambda: "gave of late: <q>out of paper</q>" in visitor.get("/overview/part/findings"))  # a new snapshot
        assert "out of paper" in visitor.get("/message", topic="dlq.why", partition="0", offset="0")


def test_failures_are_counted_since_a_moment_as_long_as_no_leader_changes() -> None:
    def group(epoch: int, accepted: int, rejected: int) -> ShareGroup:
        counts = {"accept": accepted, "reject": rejected, "release": 1, "renew": 9}
        part = SharePartition("t", 0, 0, 0, is_loaded=True, acknowledged=counts, lock_timeouts=2, leader_epoch=epoch)
        return ShareGroup("g", "Stable", 1, (part,))

    before = counters_of(group(5, 10, 4), 1000)
    assert before is not None
    assert before == Counters(1000, epochs=5, failed=7, accepted=10)
    assert counters_in(str(before)) == before
    assert since(before, counters_of(group(5, 12, 4), 2000)) == Since(1000, 0, 2)
    assert since(before, counters_of(group(5, 12, 7), 2000)) == Since(1000, 3, 2)
    for other in (group(6, 12, 7), group(5, 3, 0)):
        assert since(before, counters_of(other, 2000)) == Since(1000, None, None)
    assert since(before, None) == Since(1000, None, None)
    silent = ShareGroup("g", "Stable", 1, (SharePartition("t", 0, 0, 0, "gone"),))
    assert (counters_of(silent, 1000), counters_of(None, 1000)) == (None, None)
    for text in ("", "1-2-3", "1-2-3-x", "1-2-3-\u0664", f"1-2-3-{'9' * 19}"):
        with pytest.raises(InputError):
            counters_in(text)


def test_a_reason_is_over_when_none_of_its_records_fails_any_more() -> None:
    def over(quiet_since_ms: int | None, *runs: InFlight, has_more: bool = False) -> list[bool]:
        reasons = (FrequentReason("old", 9, 1000), FrequentReason("new", 1, 5000))
        part = SharePartition("t", 0, 0, 0, runs=runs, has_more=has_more, reasons=reasons)
        return [each.is_over for each in shown_reasons([part], quiet_since_ms)]

    assert over(None) == [False, False]
    assert over(2000) == [True, False]
    assert over(9000) == [True, True]
    assert over(9000, has_more=True) == [False, False]
    assert over(9000, InFlight(3, 4, RunState.BACKING_OFF, 1, reason="old")) == [False, True]


def test_a_console_without_records_shows_no_reasons(console_broker: EmbeddedBroker) -> None:
    """Reasons may quote records. The client below the pages refuses to ask for them."""
    address = console_broker.bootstrap_servers
    with (
        member(console_broker, "secret") as ada,
        ShareReasons({"bootstrap.servers": address, "group.id": "secret"}) as reasons,
    ):
        (first,) = take(ada, 1)
        assert reasons.give(Given(first), "card 4711 refused"), reasons.why_not
        ada.acknowledge([first], RELEASE)
        with user(address, no_records=True) as blind:
            for page in ("/share-group", "/share-group/part/runs", "/overview/part/findings"):
                assert "4711" not in blind.get(page, name="secret")
        with user(address) as seeing:
            assert "4711" in seeing.get("/share-group", name="secret")
    clients = Clients(address, None, None, deadline_s=30, read_only=False, no_records=True)
    wanted = DescribeSharePartitionsRequest("secret", with_reasons=True)

    def alone(lease: Lease) -> None:
        lease.client.metadata([])
        ask_node(lease.client, lease.client.broker_ids()[0], wanted)

    def together(lease: Lease) -> None:
        lease.client.metadata([])
        answers = read_together(lease.client, {lease.client.broker_ids()[0]: [wanted, ListGroupsRequest()]})
        for answer, _ in answers.values():
            raise answer

    for ask in (alone, together):
        with pytest.raises(RecordsHiddenError):
            clients.read(ask)
    clients.close()
