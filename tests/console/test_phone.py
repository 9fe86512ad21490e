"""Every page on a phone: it does not scroll sideways as a whole, and its words stay whole. On a laptop, each column of
its tables is on the screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from ottla.console.registry import PAGES
from tests.console.test_costs import SUBJECTS
from tests.console.test_costs import console_broker as broker_of_each_thing
from tests.harness.console.browser import opened as open_page
from tests.harness.console.lookers import places
from tests.harness.console.over_http import address

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

WIDTH = 360
console_broker = broker_of_each_thing


LAPTOP = 1280
LONG = """() => {
    for (const cell of document.querySelectorAll(".scrolls tbody :is(th, td):not(.number):not(:has(time))")) {
        let inner = cell;
        while (inner.lastElementChild) inner = inner.lastElementChild;
        inner.append(" a-name.of-forty_characters-in-one-piece and-then words");
    }
}"""
"""Lengthens the texts in tables."""


def test_no_page_scrolls_sideways_as_a_whole(browser: Browser, console_address: str) -> None:
    """On a laptop, no table does either, with long names too."""
    wide: dict[str, int] = {}
    off_screen: dict[str, list[str]] = {}
    with open_page(browser, console_address, viewport={"width": WIDTH, "height": 800}) as found:
        folded = found.page.locator("details:not([open]) > summary")
        for _, part, path, query in places(SUBJECTS):
            if part is None:
                found.go(address(path, query))
                while folded.count():
                    folded.first.press("Enter")
                found.page.wait_for_selector(".loading:visible", state="detached")
                wide[path] = found.page.evaluate("document.documentElement.scrollWidth")
                found.page.set_viewport_size({"width": LAPTOP, "height": 800})
                found.page.evaluate(LONG)
                off_screen[path] = found.columns_off_screen()
                found.page.set_viewport_size({"width": WIDTH, "height": 800})
        assert not found.errors
    assert {path: width for path, width in wide.items() if width > WIDTH} == {}
    assert {path: columns for path, columns in off_screen.items() if columns} == {}


BROKEN = """() => {
    const broken = new Set();
    for (const cell of document.querySelectorAll("th, td")) {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            for (const word of walker.currentNode.data.matchAll(/[^\\s]+/g)) {
                const range = document.createRange();
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
                if (lines.size > 1 && word[0].length < 20 && !/[-/]/.test(word[0])) broken.add(word[0]);
            }
        }
    }
    return [...broken];
}"""
"""The words of tables, of less than 20 characters, that a line break divides; a browser may break after - and /."""


@pytest.mark.parametrize("width", [WIDTH, 1280])
def test_no_word_is_broken_that_fits_into_its_cell(browser: Browser, console_address: str, width: int) -> None:
    broken: dict[str, list[str]] = {}
    with open_page(browser, console_address, viewport={"width": width, "height": 800}) as found:
        for path in (
            "/cluster",
            "/share-group?name=workers",
            "/groups",
            "/topic?name=clicks",
            "/messages?topic=clicks",
        ):
            found.go(path)
            broken[path] = found.page.evaluate(BROKEN)
    assert {path: words for path, words in broken.items() if words} == {}


def test_the_whole_navigation_is_visible(browser: Browser, console_address: str) -> None:
    """Each page is one touch away, in an area of at least 24 pixels, and Tab shows where it is."""
    with open_page(browser, console_address, viewport={"width": WIDTH, "height": 720}, has_touch=True) as found:
        found.go("/security")
        for width in (WIDTH, 390, 768, 1023):
            found.page.set_viewport_size({"width": width, "height": 720})
            links = found.page.locator("header nav a")
            boxes = [each.bounding_box() or {"x": -1, "y": 0, "width": 0, "height": 0} for each in links.all()]
            assert len(boxes) == len([page for page in PAGES if page.label])
            assert all(each["x"] >= 0 and each["x"] + each["width"] <= width for each in boxes), (width, boxes)
            assert all(each["height"] >= 24 for each in boxes)
        found.page.get_by_role("link", name="Share groups", exact=True).tap()
        expect(found.page.get_by_role("heading", name="Share groups", level=1)).to_be_visible()
        assert not found.errors


def test_a_folded_part_asks_only_while_it_is_open(browser: Browser, console_address: str) -> None:
    asked: list[str] = []
    with open_page(browser, console_address, viewport={"width": WIDTH, "height": 800}) as found:
        found.page.on("request", lambda each: asked.append(each.url) if "/part/runs" in each.url else None)
        found.page.clock.install()
        with found.page.expect_response(lambda answer: "/part/letters" in answer.url):
            found.go("/share-group?name=workers")
        section = found.page.locator("#part-runs-title")
        for _ in range(2):
            asked.clear()
            found.page.clock.run_for(20_000)
            assert asked == []
            with found.page.expect_response(lambda answer: "/part/runs" in answer.url):
                section.press("Enter")
            with found.page.expect_response(lambda answer: "/part/runs" in answer.url):
                found.page.clock.run_for(3_000)
            section.press("Enter")
        assert not found.errors


def test_sections_fold_on_a_phone_and_stay_as_their_reader_left_them(browser: Browser, console_address: str) -> None:
    """Also when the page updates itself or is loaded again. On a wide screen, the golden page has all open."""
    path = "/share-group?name=workers"
    with open_page(browser, console_address, viewport={"width": WIDTH, "height": 800}) as found:
        opened = found.page.locator("details.fold[open] > summary")
        found.go(path)
        expect(opened).to_have_count(0)
        with found.page.expect_response(lambda answer: answer.url.endswith(path)):
            found.page.locator("#members").press("Enter")
        expect(opened).to_have_attribute("id", "members")
        found.page.reload()
        expect(opened).to_have_attribute("id", "members")
        assert not found.errors
