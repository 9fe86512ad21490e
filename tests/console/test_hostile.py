"""Names and values from the cluster are text, whatever they hold: no script runs, no mark reverses a line.

The payloads follow published faults of other consoles: script in topics, groups, client ids, headers, values, errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import Browser, expect

from ottla.client import Client
from ottla.client.reports import FAILED, Report
from ottla.console.page import url
from ottla.console.rendering import advice
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import opened as open_page
from tests.harness.console.over_http import User
from tests.harness.reports import report, write_reports

PAYLOADS = (
    "<script>document.title='hacked'</script>",
    '"><img src=x onerror="document.title=\'hacked\'">',
    "'><svg/onload=document.title='hacked'>",
    "</pre></code></textarea><iframe srcdoc='<script>top.document.title=1</script>'>",
    "javascript:document.title='hacked'",
    "{{ 7*7 }}{% raw %}",
    '<b hx-get="/topics" hx-trigger="load" hx-on:click="1">x</b>',
    "a\u202egnp.exe\u2066",
    "a\r\nSet-Cookie: x=1",
    "a\x00b\x1b[2J",
)
EVIL = PAYLOADS[1]
ADDRESSES = (
    "/messages?topic=clicks&from=start",
    *(f"/message?topic=clicks&partition=0&offset={offset}&format=text" for offset in range(len(PAYLOADS))),
    url("/messages", topic="clicks", key=EVIL, text=EVIL, regex=".", header=EVIL, everywhere=1, **{"is": EVIL}),
    url("/messages", topic=EVIL),
    url("/messages", topic="clicks", at=EVIL, **{"from": "offset"}),
    url("/message", topic=EVIL, partition=0, offset=0),
    url("/message/resend", topic="clicks", partition=0, offset=0, target=EVIL),
    url("/topic", name=EVIL),
    url("/topic/delete", name=EVIL),
    url("/topics", q=EVIL, page=EVIL),
    url("/topics", q=EVIL),
    "/pipelines",
    *(url("/pipeline", name=payload) for payload in PAYLOADS),
    url("/pipelines", q=EVIL),
    url("/pipeline", name=f"no {EVIL}"),
    "/groups",
    *(url("/group", name=f"{payload}-group") for payload in PAYLOADS if "\x00" not in payload),
    url("/transaction", name=EVIL),
    url(f"/{EVIL}"),
)


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with hostile keys, values, headers and groups."""
    with EmbeddedBroker() as broker:
        broker.create_topic("clicks", configs={"retention.ms": -1})
        records = [
            Record(place, 1_000 + place, each.encode(), each.encode(), ((each, each.encode()),))
            for place, each in enumerate(PAYLOADS)
        ]
        with Client(broker.bootstrap_servers) as client:
            client.produce_raw("clicks", 0, bytes(build_batch(records)))
            write_reports(client, *(hostile(each) for each in PAYLOADS))
        for each in PAYLOADS:
            if "\x00" not in each:  # librdkafka's names end there
                group = {"group.id": f"{each}-group", "client.id": each, "bootstrap.servers": broker.bootstrap_servers}
                consumer = Consumer(group)
                consumer.commit(offsets=[TopicPartition("clicks", 0, 1)], asynchronous=False)
                consumer.close()
        yield broker


def hostile(text: str) -> Report:
    """A report with a text wherever one can be."""
    texts = {"kind": text, "host": text, "ottla": text, "summary": text, "error": text}
    return report(text, state=FAILED, reads=(text,), writes=(text,), figures={text: 1, "lag": 2}, **texts)


class Elements(HTMLParser):
    """Finds elements and attributes that no template of the console writes."""

    SCRIPTS = ("/static/htmx-", "/static/console.js")

    def __init__(self) -> None:
        super().__init__()
        self.odd: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        is_ours = tag == "script" and given.get("src", "").startswith(self.SCRIPTS)
        bad_names = [name for name in given if name.startswith(("on", "hx-on")) or name in ("style", "srcdoc")]
        links = [given.get(name, "") for name in ("href", "src", "action", "hx-get")]
        bad_links = [each for each in links if each and not each.startswith(("/", "#"))]
        if (tag in ("script", "img", "iframe", "b", "object", "base") and not is_ours) or bad_names or bad_links:
            self.odd.append(f"{tag} {given}")


@pytest.mark.parametrize("address", ADDRESSES, ids=range(len(ADDRESSES)))
def test_payloads_make_no_elements(visitor: User, address: str) -> None:
    answer = visitor.client.get(address)
    assert answer.status_code in (200, 400, 404), answer.text[-500:]
    found = Elements()
    found.feed(answer.text)
    assert not found.odd
    assert not re.search("[\x00\x1b\u202e\u2066]", answer.text)
    assert "set-cookie" not in answer.headers
    assert "{{ 7*7 }}".replace("7*7", "49") not in answer.text


def test_a_file_keeps_a_hostile_name_out_of_its_headers(visitor: User) -> None:
    for offset in range(len(PAYLOADS)):
        answer = visitor.client.get(f"/message/download/value?topic=clicks&partition=0&offset={offset}")
        assert answer.content == PAYLOADS[offset].encode()
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_no_payload_runs_in_a_browser(browser: Browser, console_address: str) -> None:
    with open_page(browser, console_address) as found:
        for address in ("/messages?topic=clicks&from=start", ADDRESSES[2], "/groups", "/pipelines"):
            found.go(address)
            expect(found.page.get_by_text("onerror").first).to_be_visible()
            expect(found.page).not_to_have_title(re.compile("hacked|^1$"))
        assert not found.errors


def test_an_advice_shows_its_commands() -> None:
    assert advice("ottla doctor <b>") == "<code>ottla doctor &lt;b&gt;</code>"
    assert advice("stop it, or `ottla x <b>\u202e`.") == "stop it, or <code>ottla x &lt;b&gt;\\u202e</code>."
    assert advice("<b>") == "&lt;b&gt;"
