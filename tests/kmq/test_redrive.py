"""Dead letters go back, each once, chosen as asked; and what is left can still go."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.kmq import KmqRefusedError, headers
from ottla.kmq.events import Reason
from ottla.kmq.redrive import METADATA_BYTES_MAX, Choice, Done, Outcome, Redrive

from .conftest import QueueStage, take, until

AT_MS = 1_700_000_000_000


def write_letter(stage: QueueStage, value: bytes, **said: Any) -> int:
    """Write a dead letter as the tracker does; its offset."""
    given = {"topic": stage.config.queue, "partition": 0, "offset": 5, "group": "g", "delivery_count": 4}
    source = headers.Provenance(**{**given, "reason": Reason.TIMED_OUT, "text": "late", "at_ms": AT_MS, **said})
    own = [("h", value), ("kmq-redelivery-count", b"\x03")]
    (offset,) = stage.produce(
        stage.config.dead_letters, value, key=b"k", timestamp=int(time.time() * 1000) - 60_000,
        headers=[*own, *source.headers()],
    )  # fmt: skip
    return offset


def redrive(stage: QueueStage, choice: Choice | None = None, **options: Any) -> Outcome:
    with Redrive(stage.properties, stage.config, choice or Choice(), **options) as walk:
        return walk.run()


def values(stage: QueueStage) -> list[bytes | None]:
    return [each.value() for each in stage.records(stage.config.queue)]


def test_letters_go_back_as_the_messages_they_were_and_only_once(stage: QueueStage) -> None:
    write_letter(stage, b"a")
    write_letter(stage, b"b", reason=Reason.LOST)
    assert redrive(stage, dry_run=True) == Outcome(sent=1, lost=1)
    assert values(stage) == []
    assert redrive(stage) == Outcome(sent=1, lost=1)
    assert redrive(stage) == Outcome()
    (back,) = stage.records(stage.config.queue)
    (letter, _) = stage.dead_letters()
    assert (back.key(), back.value(), back.timestamp()) == (b"k", b"a", letter.timestamp())
    assert back.headers() == [("h", b"a"), ("kmq-redrive-count", b"\x01")]


def test_a_message_that_fails_once_more_counts_its_redrives(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=100, max_redeliveries=0)
    stage.send(b"poison")
    with stage.tracker() as tracker, stage.client() as client:
        take(client, 1)
        until(lambda: sum(tracker.figures.dead_lettered.values()) == 1, "it is a dead letter")
        assert redrive(stage) == Outcome(sent=1)
        take(client, 1)
        until(lambda: sum(tracker.figures.dead_lettered.values()) == 2, "it is one again")
        assert redrive(stage) == Outcome(sent=1)
        (again,) = take(client, 1, client.processed)
    assert headers.count_in(again.headers() or [], headers.REDRIVE_COUNT) == 2


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (Choice(), [b"a", b"b", b"c"]),
        (Choice(reason=Reason.FAILED), [b"b"]),
        (Choice(partition=1), [b"c"]),
        (Choice(since_ms=AT_MS + 1), [b"b"]),
        (Choice(until_ms=AT_MS + 1), [b"a", b"c"]),
        (Choice(key=b"k"), [b"a", b"b", b"c"]),
        (Choice(key=b"other"), []),
        (Choice(headers=(("h", b"b"),)), [b"b"]),
    ],
)
def test_letters_are_chosen(stage: QueueStage, choice: Choice, chosen: list[bytes]) -> None:
    write_letter(stage, b"a")
    write_letter(stage, b"b", reason=Reason.FAILED, at_ms=AT_MS + 5)
    write_letter(stage, b"c", partition=1)
    assert redrive(stage, choice) == Outcome(sent=len(chosen), not_chosen=3 - len(chosen))
    assert values(stage) == chosen
    assert redrive(stage).sent == 3 - len(chosen), "those that were left can still go"
    assert sorted(values(stage)) == [b"a", b"b", b"c"]


def test_the_rate_and_the_limit_are_kept(stage: QueueStage) -> None:
    for index in range(12):
        write_letter(stage, b"%d" % index)
    began = time.monotonic()
    assert redrive(stage, rate=20, limit=9).sent == 9
    assert time.monotonic() - began >= 8 / 20
    assert values(stage) == [b"%d" % index for index in range(9)]
    assert redrive(stage).sent == 3


def test_letters_of_the_original_have_no_headers_and_go_back_too(stage: QueueStage) -> None:
    stage.produce(stage.config.dead_letters, b"bare", key=b"k")
    assert redrive(stage, Choice(reason=Reason.FAILED)) == Outcome(not_chosen=1)
    assert redrive(stage) == Outcome(sent=1)
    assert values(stage) == [b"bare"]


def test_a_choice_too_scattered_to_remember_stops_and_says_so(stage: QueueStage) -> None:
    half = 1_300
    for parity in (b"even", b"odd") * half:
        stage.later(stage.config.dead_letters, parity, headers=[("h", parity)])
    stage.flush()
    outcome = redrive(stage, Choice(headers=(("h", b"odd"),)))
    assert outcome.scattered == [0]
    assert 0 < outcome.sent < half
    assert redrive(stage, Choice(headers=(("h", b"odd"),))).scattered == [0]
    assert len(values(stage)) == outcome.sent, "what was sent is remembered"
    assert redrive(stage, limit=half) == Outcome(sent=half)
    assert redrive(stage).sent == half - outcome.sent
    assert sorted(values(stage)) == [b"even"] * half + [b"odd"] * half


@given(st.integers(0, 50), st.sets(st.integers(0, 120)), st.sets(st.integers(0, 120)))
def test_what_is_done_is_remembered_in_a_position_and_a_string(start: int, done: set[int], more: set[int]) -> None:
    first = Done(start)
    for offset in done:
        first.add(offset)
    position, metadata = first.position(more)
    again = Done(position, metadata)
    for offset in range(130):
        assert (offset in again) == (offset < start or offset in done or offset in more)
    assert position not in again
    assert len(metadata) <= METADATA_BYTES_MAX


def test_a_missing_topic_is_refused_with_a_sentence(stage: QueueStage) -> None:
    with pytest.raises(KmqRefusedError, match=r"^There is no topic nowhere\.$"):
        redrive(stage.with_(dead_letters="nowhere"))
