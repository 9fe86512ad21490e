"""Somebody who has never used Kafka sees a stuck queue in the console, finds out why, mends it, and sees it run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from ottla.console.finding_links import OF_GROUPS, OF_NODES, OF_TOPICS, OF_TRANSACTIONS, Links
from ottla.demo.stuck import GOOD, LETTERS_A_MINUTE, MAILERS, MAILS, REFUSED, stick
from ottla.doctor.checks import CHECKS
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
        yield broker
        jobs.stop()


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_a_stuck_queue_is_seen_understood_and_mended(opened: Opened) -> None:
    page = opened.page
    opened.go("/overview")
    finding = page.get_by_role("listitem").filter(has_text=f"{MAILERS} is paused")
    expect(finding).to_contain_text("too many of its records failed within a minute")
    expect(finding).to_contain_text("records wait.")
    finding.get_by_role("link", name=f"Look at {MAILERS}").click()
    expect(page.get_by_role("heading", name=f"Share group {MAILERS}", level=1)).to_be_visible()
    expect(page.get_by_text("Paused since")).to_contain_text(
        f"more than {LETTERS_A_MINUTE} dead letters within a minute"
    )
    reason, records = (
        page.get_by_text("the group has paused itself"),
        page.get_by_role("heading", name="Records in flight"),
    )
    expect(reason).to_be_visible()
    above, below = reason.bounding_box(), records.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]
    page.get_by_role("link", name="dead letters", exact=True).click()
    expect(page.get_by_role("region", name="Causes").get_by_role("row", name=f"rejected {MAILS}")).to_be_visible()
    expect(page.get_by_text("a member refused the record")).to_be_visible()
    page.get_by_role("link", name="resume it", exact=True).click()
    page.get_by_role("link", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Stop updates")).to_have_count(0)
    expect(page.get_by_text("get records again")).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text(f"Resumed {MAILERS}.")).to_be_visible()
    expect(page.get_by_text("Every record is done")).to_be_visible(timeout=60_000)
    send_back(page)
    row = page.get_by_role("region", name="Partitions of the group").get_by_role("row").nth(1)
    expect(row).to_contain_text(f"{GOOD + 2 * REFUSED}")
    opened.go("/overview")
    expect(page.get_by_text(f"{MAILERS} is paused")).to_have_count(0)


def send_back(page: Page) -> None:
    """Send the dead letters back: their jobs succeed now, so that none waits to be sent back again."""
    page.get_by_role("link", name="Dead letters", exact=True).click()
    page.get_by_role("link", name="Send back").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text(f"Sends {REFUSED} records back: {REFUSED} to {MAILS}.")).to_be_visible()
    page.get_by_label("to confirm").fill(MAILERS)
    page.get_by_role("button", name="Send back").click()
    expect(page.get_by_text(f"Sent {REFUSED} records of {MAILERS} back.")).to_be_visible()
    page.get_by_role("link", name=MAILERS, exact=True).click()
    expect(page.get_by_text("Every record is done")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Dead letters", exact=True).click()
    expect(page.get_by_role("heading", name="Causes")).to_be_visible()
    expect(page.get_by_role("link", name="Send back")).to_have_count(0)
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
