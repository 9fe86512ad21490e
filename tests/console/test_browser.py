"""The console in a real browser: pages as text, accessibility, keyboard, dark mode, a phone, live parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from ottla.client import Client
from ottla.console.app import REFRESH
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import PATIENCE_MS, Opened
from tests.harness.console.browser import opened as open_page
from tests.harness.console.golden import check_golden

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

PAGES = {
    "overview": "/overview",
    "topics": "/topics",
    "topic": "/topic?name=clicks",
    "topics-create": "/topics/create",
    "topic-delete": "/topic/delete?name=clicks",
    "messages": "/messages?topic=clicks",
    "message": "/message?topic=clicks&partition=0&offset=0",
    "cluster": "/cluster",
    "rebalance": "/rebalance",
    "rebalance-start": "/rebalance/start",
    "drain": "/drain?node=1&replicas=yes",
    "security": "/security",
    "search": "/search?q=cli",
}


FIRST_READINGS = ("found nothing so far", "it takes two readings")
"""What parts of pages say that compare two moments, until they have both."""


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker whose contents are those of the golden pages."""
    with EmbeddedBroker() as broker:
        broker.create_topic("clicks", partitions=3, configs={"retention.ms": -1})
        records = [
            Record(0, 1_700_000_001_000, b"ann", b'{"page": "/"}', (("trace", b"1"),)),
            Record(1, 1_700_000_002_000, None, b"\x00\xff"),
        ]
        with Client(broker.bootstrap_servers) as client:
            client.produce_raw("clicks", 0, bytes(build_batch(records)))
        yield broker


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_as_recorded_and_accessible(opened: Opened, name: str, update: bool) -> None:
    opened.go(PAGES[name])
    for first in FIRST_READINGS:
        expect(opened.page.get_by_text(first)).to_have_count(0, timeout=4 * PATIENCE_MS)
    opened.page.keyboard.press("p")  # a page that updates itself would change meanwhile
    expect(opened.page.get_by_role("heading", level=1)).to_be_visible()
    assert opened.accessibility() == []
    check_golden(opened, name, update)


def test_pages_are_reached_by_keyboard(opened: Opened) -> None:
    opened.go("/overview")
    opened.page.keyboard.press("Tab")
    expect(opened.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    opened.page.keyboard.press("g")
    opened.page.keyboard.press("t")
    expect(opened.page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("cli")
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("link", name="clicks", exact=True)).to_be_visible()
    opened.page.keyboard.press("j")
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("heading", name="Topic clicks", level=1)).to_be_visible()


def test_a_live_page_asks_again_until_it_is_paused(opened: Opened, console_broker: EmbeddedBroker) -> None:
    opened.go("/topic?name=clicks")
    asked: list[str] = []
    opened.page.on("request", lambda each: asked.append(each.url))
    with opened.page.expect_response(lambda each: "/topic?" in each.url and "part" not in each.url) as found:
        pass
    assert found.value.request.headers[REFRESH] == "true"
    with opened.page.expect_response(lambda each: "/topic/part/" in each.url) as first:
        opened.page.reload()
    assert REFRESH not in first.value.request.headers, "a part that is loaded reads the cluster"
    opened.page.keyboard.press("p")
    expect(opened.page.get_by_role("button", name="Update again")).to_have_attribute("aria-pressed", "true")
    assert all(each.startswith(opened.address.split("/?")[0]) for each in asked), "a request left the console"


def test_a_console_that_does_not_answer(browser: Browser, console_address: str) -> None:
    with open_page(browser, console_address) as found:
        found.page.clock.install()
        found.go("/topics")
        alert = found.page.get_by_role("alert")
        found.page.context.set_offline(True)
        found.page.clock.run_for(11_000)
        expect(alert).to_have_text(
            "The console does not answer. What you see may be old. The page asks again by itself."
        )
        found.page.context.set_offline(False)
        found.page.clock.run_for(11_000)
        expect(alert).to_have_count(0)


def test_new_messages_appear_by_themselves(opened: Opened, console_broker: EmbeddedBroker) -> None:
    name = console_broker.create_topic()
    opened.go(f"/messages?topic={name}")
    with Client(console_broker.bootstrap_servers) as client:
        for text in (b"apple", b"pear"):
            client.produce_raw(name, 0, bytes(build_batch([Record(0, 1_000, None, text)])))
            expect(opened.page.get_by_text(text.decode())).to_be_visible(timeout=30_000)
    console_broker.delete_topic(name)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_phone_in_either_colour_scheme(browser: Browser, console_address: str, scheme: str) -> None:
    with open_page(browser, console_address, color_scheme=scheme, viewport={"width": 360, "height": 720}) as found:
        found.go("/topics")
        assert found.accessibility() == []
        wide = found.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, "the page scrolls sideways"
        back = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)")
        assert not found.errors


def test_the_navigation_fits_in_one_line(opened: Opened) -> None:
    opened.go("/topics")
    rows = "new Set([...document.querySelectorAll('header nav li')].map((each) => each.offsetTop)).size"
    for width in (1024, 1100, 1180, 1280):
        opened.page.set_viewport_size({"width": width, "height": 800})
        assert opened.page.evaluate(rows) == 1, width
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_column_off_the_screen_is_found(opened: Opened) -> None:
    """So that the golden pages, whose columns are all on the screen, mean something."""
    opened.go("/topics")
    opened.page.evaluate("document.querySelector('tbody th').style.minWidth = '80rem'")
    assert "Topics: State" in opened.columns_off_screen()


def test_an_injected_script_is_blocked(browser: Browser, console_address: str) -> None:
    """So the absence of errors in the other tests means something."""
    with open_page(browser, console_address) as found:
        found.go("/topics")
        script = "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title = 1\">')"
        found.page.evaluate(script)
        found.page.evaluate("() => new Promise(done => setTimeout(done))")
        expect(found.page).not_to_have_title("1")
        assert any("Content Security Policy" in each for each in found.errors)
