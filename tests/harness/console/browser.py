"""Opens the console in a real browser: Debian's chromium, driven by playwright; where there is one, in its headless
shell, which does the same with half of the CPU.

A page that a test opens must print no error to the browser's console. That includes violations of the Content Security
Policy, which browsers report there. Nothing turns the policy off.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from ottla.console import serving
from ottla.console.settings import Settings

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)
REQUIRED = "OTTLA_TEST_BROWSER"
"""With this variable, which .ci/run sets, tests fail where they would be skipped for want of a browser."""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--mute-audio")
AXE = Path(__file__).parent / "axe-4.14.1.min.js"
OFF_SCREEN = """() => [...document.querySelectorAll(".scrolls")].flatMap((region) => {
    const edge = region.getBoundingClientRect().right;
    const heads = [...region.querySelectorAll("thead th, tbody tr:first-child > *")];
    const off = heads.filter((each) => each.getBoundingClientRect().right > edge + 1);
    return off.map((each) => `${region.getAttribute("aria-label")}: ${each.textContent.trim()}`);
})"""
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Opened:
    """A page of the console in the browser, and the errors that the browser has printed."""

    page: Page
    address: str
    errors: list[str] = field(default_factory=list[str])

    def go(self, path: str) -> None:
        """Open a page, and wait for its parts that are not folded."""
        self.page.goto(self.address.replace("/?", f"{path}{'&' if '?' in path else '?'}"))
        self.page.wait_for_selector(".loading:visible", state="detached")

    def columns_off_screen(self) -> list[str]:
        """The columns of tables that a reader has to scroll to: the table's name and the column's heading."""
        found: list[str] = self.page.evaluate(OFF_SCREEN)
        return found

    def accessibility(self) -> list[str]:
        """What axe-core finds wrong with the page: rule and place."""
        self.page.evaluate(AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """A console on a port of its own; gives its address with the token."""
    with serving.bound("127.0.0.1", 0) as listener:
        used = serving.with_hosts(settings, listener, ())
        server = serving.server(used)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield serving.address_of(used, listener)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def started() -> Iterator[Browser]:
    """The browser; skips the test where there is none."""
    if CHROMIUM is None:
        if os.environ.get(REQUIRED):
            pytest.fail("no chromium is installed")
        pytest.skip("no chromium: apt-get install --no-install-recommends chromium-headless-shell fonts-dejavu-core")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, address: str, **given: Any) -> Iterator[Opened]:
    """A new profile of the browser with one page. `given`: color_scheme, viewport and so on."""
    context: BrowserContext = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **given})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    found = Opened(page, address)
    page.on("console", lambda each: found.errors.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda each: found.errors.append(str(each)))
    try:
        yield found
    finally:
        context.close()
