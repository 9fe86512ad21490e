"""Messages that a schema registry decodes: list, one message, searches, files, sending again."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from ottla.client import Client
from ottla.console.browsing.filters import Filter
from ottla.console.browsing.texts import AUTO, shown
from ottla.console.settings import Settings
from ottla.protocol.records import Record, build_batch
from ottla.schemas.decoder import Decoded
from ottla.schemas.nesting import DEPTH_MAX
from ottla.schemas.registry import Bounds, OutOfBoundsError, RegistrySettings
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import opened, served
from tests.harness.console.golden import check_golden
from tests.harness.console.over_http import User, user
from tests.harness.schemas.registry import SmallRegistry, small_registry
from tests.harness.schemas.serializers import Deserializers

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
}
KEY = b"\0\0\0\0\1\x06ann"
VALUE = b"\0\0\0\0\2\x06<b>\x54"
UNKNOWN = b"\0\0\0\0\x63\1"


def test_json_that_no_text_can_hold_stops_neither_search_nor_page() -> None:
    half = Decoded(b'"\\ud800"', "JSON Schema, schema 1", "")
    assert not Filter(key=b"a").accepts(Record(0, 0, b"k", None), half)
    deep = Decoded(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, "JSON Schema, schema 1", "")
    for each in (half, deep):
        assert shown(each.json, AUTO, 100, indent=True, decoded=each).undecoded == ""


@dataclass
class Shop:
    """A broker whose topic has a decoded record, one whose schema is unknown, and one without a schema."""

    bootstrap: str
    registry: SmallRegistry

    @property
    def settings(self) -> RegistrySettings:
        return RegistrySettings(self.registry.address)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with EmbeddedBroker() as broker, small_registry() as registry:
        registry.add('"string"', subject="users-key")
        registry.add(json.dumps(USER), subject="users-value")
        broker.create_topic("users", configs={"retention.ms": -1})
        broker.create_topic("copies", configs={"retention.ms": -1})
        records = [
            Record(0, 1_700_000_001_000, KEY, VALUE),
            Record(1, 1_700_000_002_000, None, UNKNOWN),
            Record(2, 1_700_000_003_000, None, b'{"name": "bob"}'),
        ]
        with Client(broker.bootstrap_servers) as client:
            client.produce_raw("users", 0, bytes(build_batch(records)))
        yield Shop(broker.bootstrap_servers, registry)


@pytest.fixture(scope="module")
def visitor(shop: Shop) -> Iterator[User]:
    with user(shop.bootstrap, registry=shop.settings) as found:
        yield found


def test_the_list_decodes_keys_and_values(visitor: User, shop: Shop) -> None:
    view = visitor.json("/messages", topic="users", **{"from": "start"})
    first, second, third = view["rows"]
    assert (first["key"]["text"], first["key"]["schema"]) == ('"ann"', "Avro, schema 1, string")
    assert json.loads(first["value"]["text"]) == {"name": "<b>", "age": 42}
    assert (first["value"]["schema"], first["value"]["size"]) == ("Avro, schema 2, shop.User", len(VALUE))
    assert (second["value"]["format"], second["value"]["text"]) == ("hex", UNKNOWN.hex(" "))
    assert second["value"]["undecoded"] == "The registry has no schema 99."
    assert (third["value"]["text"], third["value"]["schema"]) == ('{"name": "bob"}', "")
    assert f"--schema-registry {shop.registry.address}" in view["command"]
    text = visitor.get("/messages", topic="users")
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    raw = visitor.json("/messages", topic="users", format="hex")["rows"][-1]
    assert (raw["value"]["text"], raw["value"]["schema"]) == (VALUE.hex(" "), "")


@pytest.mark.parametrize(
    ("search", "offsets"),
    [
        ({"path": "$.age", "is": "42"}, [0]),
        ({"path": "$.name"}, [0, 2]),
        ({"text": '"age": 42'}, [0]),
        ({"regex": '"name": "(<|b)'}, [0, 2]),
        ({"key": "ann"}, [0]),
        ({"text": "nowhere"}, []),
    ],
)
def test_searches_read_what_is_decoded(visitor: User, search: dict, offsets: list[int]) -> None:
    view = visitor.json("/messages", topic="users", **search, **{"from": "start"})
    assert [each["offset"] for each in view["rows"]] == offsets
    assert view["is_over"]
    assert len(view["troubles"]) == 1
    assert "schema 99, which were searched as bytes" in view["troubles"][0]


def test_one_message_and_its_bytes(visitor: User) -> None:
    place = {"topic": "users", "partition": 0, "offset": 0}
    assert "json, decoded by Avro, schema 2, shop.User" in visitor.get("/message", **place)
    assert visitor.client.get("/message/download/value", params=place).content == VALUE
    assert visitor.change("/message/resend", form={"target": "copies"}, **place).status_code == 303
    copy = {"topic": "copies", "partition": 0, "offset": 0}
    assert visitor.client.get("/message/download/value", params=copy).content == VALUE
    assert visitor.client.get("/message/download/key", params=copy).content == KEY


def newest(visitor: User, topic: str) -> tuple[bytes, bytes]:
    """The key and value of the newest record of a topic."""
    offset = visitor.json("/messages", topic=topic)["rows"][0]["offset"]
    place = {"topic": topic, "partition": 0, "offset": offset}
    key, value = (visitor.client.get(f"/message/download/{part}", params=place).content for part in ("key", "value"))
    return key, value


def test_produce_offers_the_subjects_of_the_topic_and_encodes(visitor: User, shop: Shop) -> None:
    form = visitor.get("/messages/produce", topic="users")
    assert 'name="value_subject" type="text" value="users-value"' in form
    assert "Version 1 is the newest." in form
    assert "The registry has no subject copies-value." in visitor.get("/messages/produce", topic="copies")
    given = {"key": '"bob"', "key_subject": "users-key", "value_subject": "users-value"}
    typed = {**given, "value": '{"name": "bob", "age": 7}'}
    preview = visitor.post("/messages/produce", {"step": "preview", **typed}, {"topic": "copies"}).text
    assert "The value is encoded by Avro, schema 2, shop.User (users-value version 1)." in preview
    assert "--key-schema users-key:1 --value-schema users-value:1 --schema-registry" in preview
    assert visitor.change("/messages/produce", form=typed, topic="copies").status_code == 303
    sent = newest(visitor, "copies")
    assert sent == (b"\0\0\0\0\1\x06bob", b"\0\0\0\0\2\x06bob\x0e")
    assert Deserializers(shop.registry.address).avro(sent[1]) == {"name": "bob", "age": 7}
    wrong = {**given, "value": '{"name": "bob", "age": "old"}'}
    refused = visitor.post("/messages/produce", {"step": "preview", **wrong}, {"topic": "copies"})
    assert refused.status_code == 400
    assert "It does not fit Avro, schema 2: the field age must be a whole number" in refused.text
    assert "&#34;old&#34;" in refused.text
    assert newest(visitor, "copies") == sent
    assert not shop.registry.posted


def test_an_edited_copy_has_the_same_schema(visitor: User) -> None:
    place = {"topic": "users", "partition": 0, "offset": 0}
    form = visitor.get("/message/resend", **place)
    key, value = (html.unescape(each) for each in re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", form, re.DOTALL))
    assert json.loads(value) == {"name": "<b>", "age": 42}
    same = {"target": "copies", "key": key, "value": value.replace("\n", "\r\n")}
    shown = visitor.post("/message/resend", {"step": "preview", **same}, place).text
    assert "Key and value are sent byte for byte." in shown
    visitor.change("/message/resend", form=same, **place)
    assert newest(visitor, "copies") == (KEY, VALUE)
    visitor.change("/message/resend", form={**same, "value": value.replace("42", "43")}, **place)
    assert newest(visitor, "copies") == (KEY, b"\0\0\0\0\2\x06<b>\x56")
    wrong = {"step": "preview", **same, "value": value.replace("age", "agee")}
    assert "the field agee is unknown" in visitor.post("/message/resend", wrong, place).text
    visitor.change("/message/resend", form={"target": "copies", "value": "plain"}, topic="users", partition=0, offset=2)
    assert newest(visitor, "copies")[1] == b"plain"
    undecoded = {"step": "preview", "target": "copies", "value": "x"}
    answer = visitor.post("/message/resend", undecoded, place | {"offset": 1})
    assert "The value cannot be edited now" in answer.text


def test_a_search_continues_where_its_time_ended(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with user(shop.bootstrap, registry=shop.settings) as found:
        monkeypatch.setattr(Bounds, "require_time", _out_of_time)
        view = found.json("/messages", topic="users", text="bob", **{"from": "start"})
        assert (view["rows"], view["is_over"]) == ([], False)
        assert view["next"].endswith("after=0%3A0")


def _out_of_time(bounds: Bounds) -> None:
    bounds.seconds_left = 0.0
    raise OutOfBoundsError("There was no time left to decode it.")


def test_a_console_that_hides_records_asks_no_registry(shop: Shop) -> None:
    asked = len(shop.registry.asked)
    with user(shop.bootstrap, registry=shop.settings, no_records=True) as found:
        assert "--no-records" in found.get("/messages", 403, topic="users", **{"from": "start"})
    assert len(shop.registry.asked) == asked


def test_a_registry_that_is_away_leaves_bytes(shop: Shop) -> None:
    with user(shop.bootstrap, registry=RegistrySettings("http://127.0.0.1:1")) as found:
        row = found.json("/messages", topic="users", **{"from": "start"})["rows"][0]
    assert (row["value"]["format"], row["key"]["format"]) == ("hex", "hex")
    assert "The schema registry gives no answer." in row["value"]["undecoded"]


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(
    ("name", "path"),
    [("messages-schemas", "/messages?topic=users"), ("message-schema", "/message?topic=users&offset=0")],
)
def test_pages_are_as_recorded_and_accessible(browser: Browser, shop: Shop, name: str, path: str, update: bool) -> None:
    with (
        served(Settings(shop.bootstrap, frozenset(), registry=shop.settings)) as address,
        opened(browser, address) as found,
    ):
        found.go(path)
        expect(found.page.get_by_text("Avro, schema 2, shop.User")).to_be_visible()
        assert found.accessibility() == []
        check_golden(found, name, update)
        assert not found.errors
