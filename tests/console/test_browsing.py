"""The parts of the page of messages that decide: paths, filters, texts, partitions, positions."""

from __future__ import annotations

import json

import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_another

from ottla.console.browsing.filters import filter_of
from ottla.console.browsing.json_path import InvalidPathError, found_in, parsed
from ottla.console.browsing.partitioner import murmur2, partition_of
from ottla.console.browsing.texts import shown
from ottla.console.page import InputError, time_in
from ottla.console.pages.messages import caught_up, cursor_of, cursor_text
from ottla.protocol.records import Record
from ottla.schemas.decoder import Decoded

ORDER = {"id": 7, "user": {"name": "ann", "odd name": 1.5}, "items": [{"sku": "a"}, {"sku": "b"}], "gift": None}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$", [ORDER]),
        ("$.id", [7]),
        ("id", [7]),
        ("user.name", ["ann"]),
        ("$.user['odd name']", [1.5]),
        ('$["user"].name', ["ann"]),
        ("$.items[0].sku", ["a"]),
        ("$.items[-1].sku", ["b"]),
        ("$.items[*].sku", ["a", "b"]),
        ("$.items.*.sku", ["a", "b"]),
        ("$.items[2]", []),
        ("$.user[0]", []),
        ("$.gift", [None]),
        ("$.id.name", []),
    ],
)
def test_a_path_finds_values(path: str, values: list[object]) -> None:
    assert found_in(ORDER, parsed(path)) == values


@pytest.mark.parametrize("path", ["$.a[?(@.b)]", "$..a", "$.a[", "$.__import__('os')", "$.a b", "$" + ".a" * 33])
def test_no_other_path_is_read(path: str) -> None:
    with pytest.raises(InvalidPathError):
        parsed(path)


RECORD = Record(0, 0, b"k1", json.dumps(ORDER).encode(), (("trace", b"x=1"), ("empty", None)))


@pytest.mark.parametrize(
    ("query", "accepted"),
    [
        ({"key": "k1"}, True),
        ({"key": "k"}, False),
        ({"text": "ann"}, True),
        ({"text": "k1"}, True),
        ({"text": "bob"}, False),
        ({"regex": r'"sku": "[b-z]"'}, True),
        ({"regex": "^ann$"}, False),
        ({"header": "trace"}, True),
        ({"header": "trace=x=1"}, True),
        ({"header": "trace=x"}, False),
        ({"header": "other"}, False),
        ({"path": "$.items[*].sku", "is": "b"}, True),
        ({"path": "$.id", "is": "7"}, True),
        ({"path": "$.gift", "is": "null"}, True),
        ({"path": "$.nothing"}, False),
        ({"key": "k1", "text": "bob"}, False),
        ({"key": "", "text": ""}, True),
    ],
)
def test_a_record_must_meet_every_condition(query: dict[str, str], accepted: bool) -> None:
    search = filter_of(query)
    assert search.is_empty == (not any(query.values()))
    assert search.accepts(RECORD) == accepted


@pytest.mark.parametrize(
    ("written", "typed", "found"),
    [
        ("1", "1.0", True),
        ("1.0", "1", True),
        ("1.10", "1.1", True),
        ("1e3", "1000", True),
        ("0.1", "0.1000000000000000055", False),
        ("1e999", "1e999", True),
        ("1e999", "1e1000", False),
        ("1e999", "Infinity", False),
        ("1e999", "inf", False),
        ("-1e999", "-Infinity", False),
        ("Infinity", "Infinity", True),
        ("NaN", "NaN", True),
        ("9007199254740993", "9007199254740993", True),
        ("9007199254740993", "9007199254740992", False),
        ("9007199254740993.0", "9007199254740993", True),
        ("1" * 5_000, "1" * 5_000, True),
        ("1e-400", "0", False),
        ("0.0", "-0", True),
        ("1e99999999999999999999", "1e99999999999999999999", True),
        ("1e99999999999999999999", "1e99999999999999999998", False),
        ("1", "true", False),
        ("true", "1", False),
        ("true", "true", True),
        ("0", "false", False),
        ("null", "null", True),
        ('"null"', "null", True),
        ('"7"', "7", True),
        ('"7"', '"7"', True),
        ("7", '"7"', False),
        ("7", "+7", False),
        ("7", "0x7", False),
        ("7", "1_000", False),
        ("7", " 7 ", True),
        ('"ann"', "ann", True),
        ('"ann"', '"ann"', True),
        ('"1.0"', "1", False),
        ('"\\ud800"', "x", False),
        ('{"a":1,"b":[2]}', '{"b": [2.0], "a": 1}', True),
        ('{"a":1}', '{"a": true}', False),
        ('{"a":1}', '{"a": 1, "b": 2}', False),
        ("[1,2]", "[1, 2]", True),
        ("[1,2]", "[2, 1]", False),
        ("[1]", "[" * 100_000, False),
        ("[" * 500 + "]" * 500, "[" * 500 + "]" * 500, True),
    ],
)
def test_a_value_at_a_path_is_compared_exactly(written: str, typed: str, found: bool) -> None:
    value = f'{{"a": {written}}}'.encode()
    assert filter_of({"path": "$.a", "is": typed}).accepts(Record(value=value)) == found


@pytest.mark.parametrize(("typed", "found"), [("1", True), ("1.0", True), ("1.5", False), ("01", False)])
def test_a_decoded_key_is_compared_as_json(typed: str, found: bool) -> None:
    assert filter_of({"key": typed}).accepts(Record(key=b"\x00\x02"), Decoded(b"1.0", "orders-key", "")) == found


def test_values_that_are_no_json_have_no_paths() -> None:
    for value in (None, b"", b"{", b"\xff", b"[" * 100_000):
        assert not filter_of({"path": "$.a"}).accepts(Record(value=value))


@pytest.mark.parametrize("query", [{"regex": "("}, {"regex": "a" * 5_000}, {"regex": r"(a)\1"}, {"path": "$["}])
def test_a_filter_that_cannot_be_read_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InputError):
        filter_of(query)


def test_keys_are_put_where_kafkas_clients_put_them() -> None:
    for key in (b"", b"a", b"ab", b"abc", b"abcd", b"\xff\xfe\xfd\xfc\xfb", b"a longer key, with a tail"):
        assert murmur2(key) == murmur2_of_another(key)
    assert partition_of(b"abc", 7) == (murmur2_of_another(b"abc") & 0x7FFFFFFF) % 7


@pytest.mark.parametrize(
    ("data", "format", "text", "said"),
    [
        (b'{"a":1}', "auto", '{"a":1}', "json"),
        (b"{no", "auto", "{no", "text"),
        ("caf\u00e9".encode(), "auto", "caf\u00e9", "text"),
        (b"\x00\x01\x02\xff", "auto", "00 01 02 ff", "hex"),
        (b"ab", "hex", "61 62", "hex"),
        (b"\xff", "text", "\ufffd", "text"),
        (b"", "auto", "", "text"),
        (None, "auto", None, "null"),
    ],
)
def test_bytes_are_shown_as_what_they_look_like(data: bytes | None, format: str, text: str, said: str) -> None:
    found = shown(data, format, 100)
    assert (found.text, found.format, found.is_cut) == (text, said, False)


def test_long_bytes_are_cut() -> None:
    found = shown(b"\xc3\xa9" * 1_000, "auto", 10)
    assert (found.text, found.size, found.is_cut) == ("\u00e9" * 10, 2_000, True)
    assert shown(b"x" * 1023 + b"\xc3\xa9" * 9, "auto", 10).format == "text"
    assert shown(b'{"a":[1]}', "json", 100, indent=True).text == '{\n  "a": [\n    1\n  ]\n}'
    written = b'{"a": 1e999, "b":[-1.10,{ }, []], "c": "\\u00e9,}\\"", "a": 12345678901234567890.5}'
    assert shown(written, "json", 200, indent=True).text == (
        '{\n  "a": 1e999,\n  "b": [\n    -1.10,\n    {},\n    []\n  ],\n  "c": "\u00e9,}\\"",\n'
        '  "a": 12345678901234567890.5\n}'
    )


def test_positions_are_texts() -> None:
    assert cursor_of(cursor_text({1: 7, 0: 12})) == {0: 12, 1: 7}
    assert cursor_of("") == {}
    for text in ("0", "0:", "a:1", "0:1,", "0:-1", "0:1;1:2"):
        with pytest.raises(InputError):
            cursor_of(text)


def test_times_are_utc() -> None:
    assert time_in("1970-01-01T00:00:01") == time_in("1970-01-01T01:00:01+01:00") == time_in("1000") == 1_000
    for text in ("", "yesterday", "9999-99-99"):
        with pytest.raises(InputError):
            time_in(text)


def test_a_live_page_skips_what_it_cannot_show() -> None:
    assert caught_up({0: 5, 1: 5}, {0: 7, 1: 5, 2: 9}, 200) == ({0: 5, 1: 5, 2: 9}, 0)
    first, skipped = caught_up({0: 0, 1: 0}, {0: 3_000, 1: 1_000}, 200)
    assert first == {0: 2_850, 1: 950}
    assert skipped == 3_800
