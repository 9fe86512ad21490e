"""`ottla kmq create | tracker | stats | redrive`, as they are typed."""

from __future__ import annotations

import uuid

import pytest

from tests.cli.conftest import Run, ottla  # noqa: F401

from .conftest import QueueStage, take, until


@pytest.fixture
def run(ottla: Run) -> Run:  # noqa: F811
    return ottla


def test_a_queue_is_created_once(run: Run) -> None:
    queue = f"made-{uuid.uuid4().hex[:8]}"
    assert run("kmq", "create", queue, "-p", "3").out == f"Created {queue}, {queue}__markers, {queue}__undelivered.\n"
    assert run("kmq", "create", queue).out == "Nothing was missing.\n"
    assert run("kmq", "create", queue, "-p", "3", "-r", "1").out == "Nothing was missing.\n"
    assert run("kmq", "create", queue, "-p", "8").out == (
        f"Nothing was missing. {queue} has 3 partitions, not 8. {queue}__markers has 3 partitions, not 8. "
        f"{queue}__undelivered has 3 partitions, not 8.\n"
    )
    assert run("kmq", "create", queue, "--markers", "m-" + queue, "--format", "json").json() == {
        "created": ["m-" + queue],
        "differs": [],
    }
    rows = run("kmq", "stats", queue).rows()
    assert [row[:5] for row in rows[:3]] == [[queue, str(index), "0", "0", "0"] for index in range(3)]
    described = run("topics", "describe", f"{queue}__markers").out
    assert "message.timestamp.type=LogAppendTime" in described


def test_stats_say_what_waits_what_is_open_and_what_is_overdue(run: Run, stage: QueueStage) -> None:
    stage = stage.with_(batch_size=3, timeout_ms=60_000)
    stage.send(b"a", b"b", b"c", b"d", b"e")
    with stage.client() as client:
        client.processed(take(client, 3)[0])
    told = run("kmq", "stats", stage.config.queue, "--format", "json").json()
    assert told == {
        "queue": stage.config.queue,
        "partitions": [{"partition": 0, "waiting": 2, "open": 2, "overdue": 0, "overdue_ms": None, "markers_lag": 4}],
        "dead_letters": 0,
        "not_redriven": 0,
    }
    short = stage.with_(timeout_ms=1)
    with short.client() as client:
        take(client, 2)
    until(
        lambda: run("kmq", "stats", stage.config.queue, "--format", "json").json()["partitions"][0]["overdue"] == 2,
        "two are overdue",
    )


def test_letters_are_shown_and_sent_back(run: Run, stage: QueueStage) -> None:
    stage = stage.with_(max_redeliveries=0)
    stage.send(b"a", key=b"one")
    stage.send(b"b", key=b"two")
    with stage.tracker(), stage.client() as client:
        first, second = take(client, 2)
        client.reject(first, reason="no use")
        client.failed(second, reason="boom")
        until(lambda: len(stage.dead_letters()) == 2, "both are dead letters")
    queue = stage.config.queue
    dry = run("kmq", "redrive", queue, "--format", "json").json()
    assert [(each["source"], each["key"], each["reason"], each["deliveries"], each["message"]) for each in dry] == [
        (f"{queue}-0@0", "one", "rejected", 1, "no use"),
        (f"{queue}-0@1", "two", "failed", 1, "boom"),
    ]
    ended = run("kmq", "redrive", queue, "--reason", "failed", "--since", "2020-01-01T00:00:00Z", "--execute")
    assert ended.err == "Sent 1 back, left 1.\n"
    assert "boom" in ended.out
    assert run("kmq", "stats", queue).out.splitlines()[-1] == (
        f"{queue}__undelivered: 2 dead letters, 2 not read by a redrive."
    )
    assert run("kmq", "redrive", queue, "--execute").err == "Sent 1 back, left 0.\n"
    assert run("kmq", "stats", queue, "--format", "json").json()["not_redriven"] == 0
    assert [each.value() for each in stage.records(queue)] == [b"a", b"b", b"b", b"a"]


def test_what_cannot_be_done_is_told_in_a_sentence(run: Run, stage: QueueStage) -> None:
    queue = stage.config.queue
    assert run("kmq", "tracker", "nowhere", code=1).err == "ottla: There is no topic nowhere.\n"
    assert run("kmq", "stats", queue, "--markers", "no", code=1).err == (
        f"ottla: The queue {queue} has no topic no: `ottla kmq create {queue}` makes what is missing.\n"
    )
    run("topics", "create", f"{queue}-3", "--partitions", "3")
    told = run("kmq", "tracker", f"{queue}-3", "--markers", stage.config.markers, "--dead-letters", queue, code=1).err
    assert told.startswith(
        f"ottla: {queue}-3 has 3 partitions and {stage.config.markers} has 1: they must have the same"
    )
    assert run("kmq", "redrive", queue, "--reason", "bored", code=2).err == (
        "ottla: 'bored' is no reason: expected timed-out, failed, rejected, lost.\n"
    )
    assert run("kmq", "redrive", queue, "--since", "now", code=2).err.startswith("ottla: 'now' is no time")
    assert run("kmq", "redrive", queue, "--header", "h", code=2).err.startswith("ottla: A header must be KEY=VALUE")
    assert run("kmq", "tracker", queue, "--metrics", "here", code=2).err.startswith("ottla: 'here' is no address")
    assert "--max-redeliveries" in run("kmq", "tracker", queue, "--max-redeliveries", "-1", code=2).err
