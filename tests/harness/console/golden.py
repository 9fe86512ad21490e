"""Compares pages with their golden files: the page as a screen reader sees it."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

from tests.harness.console.browser import Opened

GOLDEN = Path(__file__).parents[2] / "console" / "golden"
VARIES = [
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"(?<=Topic id )[\w-]{22}|(?<=code: )[\w-]{22}\b"), "ID"),
    (re.compile(r"\d+(\.\d+)? (B|kB|MB|GB|TB)\b"), "SIZE"),
    (re.compile(r"/\S*/ottla-\w+"), "DIRECTORY"),
    (re.compile(r"\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"), "MOMENT"),
    (re.compile(r"\b\d+ (s|min|h|days)\b"), "DURATION"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"used \d+ %"), "used N %"),
    (re.compile(r"since=[-\d]+"), "since=COUNTERS"),
    (re.compile(r'button "Update again" \[pressed\]'), 'button "Stop updates"'),
    (re.compile(r"Ottla \d\S+,"), "Ottla VERSION,"),
    (
        re.compile(r"- list:\n +- listitem:\n +- text: warning Node 1's event loop was blocked .*\n(?: .*\n){3}"),
        "- paragraph: The doctor found nothing.\n",
    ),
]
"""What differs between runs, and what stands for it. A machine under load blocks event loops, as the doctor finds."""


def check_golden(opened: Opened, name: str, update: bool) -> None:
    """The page is as recorded, but for what differs between runs; each column is visible without scrolling."""
    assert opened.columns_off_screen() == []
    text = opened.page.locator("main").aria_snapshot()
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    golden, text = GOLDEN / f"{name}.yaml", text + "\n"
    if update:
        golden.write_text(text)
    recorded = golden.read_text()
    changes = "\n".join(unified_diff(recorded.splitlines(), text.splitlines(), "recorded", "now", lineterm=""))
    assert text == recorded, f"./test -m browser --update tests/console writes it anew:\n{changes}"
