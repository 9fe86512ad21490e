"""Somebody who has never used Kafka sees a stuck queue in the console, finds out why, mends it, and sees it run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from ottla.demo.stuck import BROKEN, GOOD, MAILERS, stick
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with the queue that `./demo --console` leaves stuck."""
    with EmbeddedBroker() as broker:
        jobs = stick(broker.bootstrap_servers)
        yield broker
        jobs.stop()


def test_a_stuck_queue_is_seen_understood_and_mended(opened: Opened) -> None:
    page = opened.page
    opened.go("/overview")
    finding = page.get_by_role("listitem").filter(has_text=f"{MAILERS} is paused")
    expect(finding).to_contain_text("records wait.")
    finding.get_by_role("link", name=f"Look at {MAILERS}").click()
    expect(page.get_by_role("heading", name=f"Share group {MAILERS}", level=1)).to_be_visible()
    expect(page.get_by_text("Paused since")).to_contain_text(f"more than {BROKEN - 1} dead letters within a minute")
    page.get_by_role("link", name="Dead letters").click()
    causes = page.get_by_role("region", name="Causes")
    expect(causes.get_by_role("row", name=f"rejected mails {BROKEN} {BROKEN}")).to_be_visible()
    page.get_by_role("link", name=MAILERS, exact=True).click()
    page.get_by_role("link", name="Resume", exact=True).click()
    expect(page.get_by_text("get records again")).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text(f"Resumed {MAILERS}.")).to_be_visible()
    expect(page.get_by_text("Every record is done")).to_be_visible(timeout=60_000)
    row = page.get_by_role("region", name="Partitions of the group").get_by_role("row").nth(1)
    expect(row).to_contain_text(f"{GOOD + BROKEN}")
    opened.go("/overview")
    expect(page.get_by_text(f"{MAILERS} is paused")).to_have_count(0)
