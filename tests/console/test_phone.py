"""Every page on a phone: it does not scroll sideways as a whole, and its words stay whole."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.console.test_costs import SUBJECTS
from tests.console.test_costs import console_broker as broker_of_each_thing
from tests.harness.console.browser import opened as open_page
from tests.harness.console.lookers import places
from tests.harness.console.over_http import address

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

WIDTH = 400
console_broker = broker_of_each_thing


def test_no_page_scrolls_sideways_as_a_whole(browser: Browser, console_address: str) -> None:
    wide: dict[str, int] = {}
    with open_page(browser, console_address, viewport={"width": WIDTH, "height": 800}) as found:
        for _, part, path, query in places(SUBJECTS):
            if part is None:
                found.go(address(path, query))
                wide[path] = found.page.evaluate("document.documentElement.scrollWidth")
        assert not found.errors
    assert {path: width for path, width in wide.items() if width > WIDTH} == {}


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
