"""Somebody who has never used Kafka sees a stuck queue in the console, finds out why, mends it, and sees it run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from ottla.console.finding_links import (
    OF_GROUPS,
    OF_NODES,
    OF_TOPICS,
    OF_TRANSACTIONS,
    PAGES_OF_COMMANDS,
    PAGES_OF_NAMES,
    Links,
    links_in,
    reaching,
)
from ottla.console.registry import PAGES
from ottla.demo.stuck import COUNT, LETTERS_A_MINUTE, MAILERS, MAILS, log_of, stick
from ottla.demo.worker import SERVER_SAYS
from ottla.doctor.checks import CHECKS
from ottla.doctor.finding import Finding, Severity
from ottla.doctor.snapshot import Group, OpenTransaction, Snapshot, Topic
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened

CLIENT_IDS = {"throttled", "full-fetch-queues", "waits-for-bytes"}
"""Checks whose subject is a client id, which has no page."""
SNAPSHOT = Snapshot(
    0,
    topics=(Topic("orders", ()),),
    groups=(Group("orders", "consumer", "Stable"), Group("a&b", "share", "Stable")),
    transactions=(OpenTransaction(("orders", 0), 1, 0, 0, name="shop"),),
)


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with the queue that `./demo --console` leaves stuck."""
    with EmbeddedBroker() as broker:
        jobs = stick(broker.bootstrap_servers)
        first, *_, last = log_of(jobs)
        assert re.fullmatch(r"mailer-\d: refused mail \d to \w+@example.org: 451 the mail server is down", first)
        assert last == "mailers: the mail server is up again"
        yield broker
        jobs.stop()


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_a_stuck_queue_is_seen_understood_and_mended(opened: Opened) -> None:
    page = opened.page
    page.clock.install()
    opened.go("/overview")
    finding = page.get_by_role("listitem").filter(has_text=f"{MAILERS} has paused itself")
    expect(finding).to_contain_text("too many of its records failed within a minute")
    expect(finding).to_contain_text("records wait.")
    expect(finding).to_contain_text(f'The most common reason that its members gave: "{SERVER_SAYS}".')
    expect(finding.get_by_text("--execute")).to_be_hidden()
    expect(page.get_by_role("link", name=f"See the dead letters of {MAILERS}")).to_be_visible()
    expect(finding.get_by_role("link", name="Resume", exact=True)).to_be_visible()
    expect(finding.get_by_role("link", name="Dead letters", exact=True)).to_be_visible()
    finding.get_by_role("link", name=f"Look at {MAILERS}").click()
    expect(page.get_by_role("heading", name=f"Share group {MAILERS}", level=1)).to_be_visible()
    expect(page.get_by_text("Paused since")).to_contain_text(
        f"by its circuit breaker (more than {LETTERS_A_MINUTE} dead letters within a minute)."
    )
    said = page.get_by_role("listitem").filter(has_text=SERVER_SAYS)
    expect(said).to_contain_text(re.compile(r"\d failures, the last at "))
    expect(page.get_by_text("the page then counts failures from that moment on")).to_be_visible()
    reason, records = (
        page.get_by_text("the group has paused itself"),
        page.get_by_role("heading", name="Records in flight"),
    )
    expect(reason).to_be_visible()
    above, below = (each.evaluate("each => each.getBoundingClientRect().y") for each in (reason, records))
    assert above < below
    letters = page.get_by_role("link", name="dead letters", exact=True)
    letters.focus()
    for _ in range(2):  # the second request comes after the first answer was shown
        with page.expect_response(lambda each: "/share-group?" in each.url):
            page.clock.run_for(6_000)
    expect(letters).to_be_focused()
    letters.press("Enter")
    outcomes = page.get_by_role("region", name="Outcomes")
    expect(outcomes.get_by_role("row", name=f"rejected by a member {MAILS} {SERVER_SAYS}")).to_be_visible()
    expect(page.get_by_text("The reason is in that program's words")).to_be_visible()
    expect(page.get_by_text('"subject": "Your order 1"')).to_be_visible()
    assert opened.columns_off_screen() == []
    expect(page.get_by_text("Every reader of these topics gets them again.")).to_be_visible()
    refused = page.get_by_role("region", name="Newest dead letters").get_by_role("row").count() - 1
    assert refused > LETTERS_A_MINUTE
    page.get_by_role("link", name="resume it", exact=True).click()
    expect(page.get_by_role("button", name="Stop updates")).to_have_count(0)
    expect(page.get_by_text("get records again")).to_contain_text(re.compile(r"\d records wait\."))
    expect(page.get_by_text(f"pauses itself again after more than {LETTERS_A_MINUTE} dead letters")).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text(f"Resumed {MAILERS}.")).to_be_visible()
    expect(page.get_by_text("Every record is done, or became a dead letter")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("The cause is mended: each record that was tried since then was accepted")).to_be_visible()
    expect(page.get_by_text("Failures since")).to_have_count(1)
    expect(page.get_by_text(f"{refused} dead letters not sent back.")).to_be_visible()
    expect(said.locator("strong")).to_have_text(SERVER_SAYS)
    send_back(opened, refused)
    counts = f"{MAILS} 0 {COUNT + refused} 0 0 {COUNT} 0 {refused} 0 {refused}"
    expect(page.get_by_role("row", name=counts)).to_be_visible()
    expect(page.get_by_text("These failures are over")).to_be_visible()
    expect(said.locator("strong")).to_have_count(0)
    expect(said).to_contain_text("none of these records is left to do")
    opened.go("/overview")
    expect(page.locator("#part-findings :is(.findings, .good)")).to_be_visible()
    expect(page.get_by_role("link", name=f"See the dead letters of {MAILERS}")).to_have_count(0)
    expect(page.get_by_text(f"{MAILERS} has paused itself")).to_have_count(0)


def send_back(opened: Opened, refused: int) -> None:
    """Send the dead letters back: their jobs succeed now, so that none waits to be sent back again."""
    page = opened.page
    page.get_by_role("link", name="Dead letters", exact=True).click()
    page.get_by_role("link", name="Send back").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text(f"Sends {refused} records back: {refused} to {MAILS}.")).to_be_visible()
    expect(page.get_by_text("Every reader of these topics gets them again.")).to_be_visible()
    expect(page.get_by_role("cell", name='"subject": "Your order 1"')).to_be_visible()
    page.get_by_label("to confirm").fill(MAILERS)
    page.get_by_role("button", name="Send back").click()
    expect(page.get_by_text(f"Sent {refused} records of {MAILERS} back.")).to_be_visible()
    page.get_by_role("link", name=MAILERS, exact=True).click()
    expect(page.get_by_text("Every record is done, or became a dead letter")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("No dead letter waits to be sent back.")).to_be_visible()
    page.get_by_role("link", name="Dead letters", exact=True).click()
    expect(page.get_by_role("heading", name="Outcomes")).to_be_visible()
    expect(page.get_by_role("link", name="Send back")).to_have_count(0)
    expect(page.get_by_text(f"All {refused} dead letters were sent back.")).to_be_visible()
    rows = page.get_by_role("region", name="Newest dead letters").get_by_role("row")
    expect(rows.filter(has_text=re.compile(f"sent back to {MAILS}, 20.* at the latest"))).to_have_count(refused)
    assert opened.columns_off_screen() == []
    page.get_by_role("link", name=MAILERS, exact=True).click()


@pytest.mark.parametrize(
    ("check", "subject", "expected"),
    [
        ("share-group-idle", "a&b", "/share-group?name=a%26b"),
        ("stuck", "orders", "/group?name=orders"),
        ("offline-partition", "orders", "/topic?name=orders"),
        ("one-failure-away", "node 2", "/cluster"),
        ("disk-fills", "node 2", "/cluster"),
        ("readers-held-back", "shop", "/transaction?name=shop"),
        ("readers-held-back", "orders-0", "/transactions"),
        ("throttled", "orders", ""),
        ("stuck", "a group that has been deleted", ""),
    ],
)
def test_a_finding_leads_to_the_page_of_its_subject(check: str, subject: str, expected: str) -> None:
    assert Links(SNAPSHOT).of(CHECKS[check], subject) == expected


def test_each_check_has_a_kind_of_page() -> None:
    assert CHECKS.keys() == OF_TOPICS | OF_GROUPS | OF_NODES | OF_TRANSACTIONS | CLIENT_IDS


def test_advice_leads_to_the_pages_that_follow_it() -> None:
    by_itself = Finding(
        Severity.WARNING, "a&b", "", "list with `ottla share-groups redrive a&b`, then `ottla share-groups resume a&b`"
    )
    letters, resume = ("Dead letters", "/dead-letters?name=a%26b"), ("Resume", "/share-group/resume?name=a%26b")
    assert links_in(by_itself, is_read_only=False) == (letters, resume)
    assert links_in(by_itself, is_read_only=True) == (letters,)
    other = replace(by_itself, subject="a", advice="ottla share-groups resume a&b")
    assert links_in(other, is_read_only=False) == ()
    rebalanced = replace(by_itself, advice="shorter retention, or `ottla cluster rebalance`")
    assert links_in(rebalanced, is_read_only=False) == (("Rebalance", "/rebalance"),)


def test_commands_of_advice_name_the_cluster() -> None:
    there = ("--bootstrap", "a b:9092")
    assert reaching("read, then `ottla x y`", there) == "read, then `ottla x y --bootstrap 'a b:9092'`"
    assert reaching("ottla x y", there) == "`ottla x y --bootstrap 'a b:9092'`"
    assert reaching("start node 3", there) == "start node 3"


def test_pages_of_advice_exist() -> None:
    paths = {page.path for page in PAGES} | {f"{page.path}/{each.name}" for page in PAGES for each in page.changes}
    assert {path for _, path in (*PAGES_OF_COMMANDS.values(), *PAGES_OF_NAMES.values())} <= paths
