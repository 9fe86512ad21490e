"""A dead letter whose record can't be read any more: it stays where it is, and the others go back."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.client import Client
from ottla.client.dead_letters import Letter, Progress, letter_of, original_of
from ottla.console.letter_owners import _Owned
from ottla.protocol.records.batch import set_crc
from ottla.protocol.records.record import Record, build_batch


def batch(*, magic: int = 2) -> bytes:
    made = build_batch([Record(timestamp_ms=1, key=b"k", value=b"v", headers=[(b"\xff", b"h")])])
    made[16] = magic
    set_crc(made)
    return bytes(made)


@pytest.mark.parametrize(
    ("octets", "found"),
    [
        (batch(), (b"k", b"v", [("\ufffd", b"h")])),
        (batch(magic=66), None),
        (batch()[:61] + b"\xff" * (len(batch()) - 61), None),
        (b"", None),
    ],
)
def test_the_original_of_a_bare_letter(octets: bytes, found: object) -> None:
    client = cast(Client, SimpleNamespace(fetch_raw=lambda *where, **how: SimpleNamespace(records=octets)))
    fields: dict[str, Any] = dict.fromkeys(Letter.__dataclass_fields__)
    letter = Letter(**{**fields, "topic": "t", "source_partition": 0, "source_offset": 0})
    assert original_of(client, letter) == found


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([], (None, None)),
        ([("first", b"5"), ("last", b"7"), ("first", b"6")], (6, 7)),
        ([("first", None), ("last", b"-1")], (None, None)),
    ],
)
def test_the_times_of_failures(times: list[tuple[str, bytes | None]], found: object) -> None:
    """The last header counts: the record may have been a dead letter before, which another program has sent back."""
    where: list[tuple[str, bytes | None]] = [
        (f"__dlq.errors.{name}", value)
        for name, value in (("topic", b"t"), ("partition", b"0"), ("offset", b"1"), ("group", b"g"))
    ]
    headers = [("own", b"x"), *where, *((f"ottla-{name}-failure-ms", value) for name, value in times)]
    letter = letter_of(0, Record(offset=3, headers=headers))
    assert letter is not None
    assert (letter.first_failed_ms, letter.last_failed_ms) == found
    assert letter.headers == [("own", b"x")]


@pytest.mark.parametrize(
    "text", [None, "", "nonsense", "7", "[1]", '[["a",1]]', "[[1e999,1]]", "[" * 3_000, "[[[1],1]]"]
)
def test_progress_in_another_format_is_ignored(text: str | None) -> None:
    assert Progress.of(5, text) == Progress(5)


def test_how_much_is_left_to_send_back() -> None:
    progress = Progress.of(5, "[[2,3],[10,1000000000000000000]]")
    assert progress.ranges[0] == (7, 10)
    assert [progress.left(*each) for each in ((0, 5), (0, 7), (6, 12), (8, 15), (20, 30))] == [0, 2, 3, 5, 0]
    owned = _Owned(4, 12, 0b11111111)
    assert owned.waiting(progress) == 4, "5, 6, 10 and 11"
