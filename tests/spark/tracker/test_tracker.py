"""KMQ's tracker on Spark against a real node, with real workers: what comes again, how, and what is kept."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.kmq import KmqClient, KmqConfig, create_topics, headers
from ottla.kmq.events import Reason
from ottla.kmq.stats import standings
from ottla.spark.running.run import PipelineFailedError, RunOptions
from ottla.testing import EmbeddedBroker
from tests.harness.topics import every_record
from tests.harness.waiting import soon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.tracker.running import Tracked

PATIENCE_S = 120.0
PARTITIONS = 3
QUICK = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 300}
"""A worker that the machine holds up for seconds keeps its partitions: else another one gets its messages once more."""


class Stage:
    """A queue, its workers and its tracker."""

    def __init__(self, bootstrap: str, spark: SparkSession, checkpoint: Path) -> None:
        self.spark, self.properties = spark, {"bootstrap.servers": bootstrap, "log_level": 0}
        self.options = RunOptions(bootstrap, str(checkpoint), once=True, trigger_s=0.2, quiet=True)
        name = f"jobs-{uuid.uuid4().hex[:8]}"
        self.config = KmqConfig(queue=name, timeout_ms=500, use_now_after_ms=100, max_redeliveries=1)
        admin = AdminClient(self.properties)
        create_topics(admin, self.config, partitions=PARTITIONS)

    def send(self, count: int, **record: Any) -> None:
        """Messages with their numbers for values, over all partitions."""
        producer = Producer(self.properties)
        for number in range(count):
            value, key = b"%d" % number, b"key %d" % number
            producer.produce(self.config.queue, value, key, number % PARTITIONS, **record)
        assert producer.flush(PATIENCE_S) == 0

    def work(self, count: int, handle: Callable[[KmqClient, Message, int], object], **settings: Any) -> list[Message]:
        """A worker takes so many messages, is given each with its number, and is gone."""
        found: list[Message] = []
        until = time.monotonic() + PATIENCE_S
        with KmqClient(self.properties, replace(self.config, **settings), consumer=QUICK) as client:
            while len(found) < count:
                assert time.monotonic() < until, f"{len(found)} of {count} messages came"
                for message in client.next_batch(0.2):
                    found.append(message)
                    handle(client, message, int(message.value() or b""))
        assert len(found) == count
        return found

    def spoil(self) -> None:
        """Delete the first record, and write nonsense among the markers."""
        admin, place = AdminClient(self.properties), TopicPartition(self.config.queue, 0, 1)
        admin.delete_records([place])[place].result(PATIENCE_S)
        producer = Producer(self.properties)
        for key, value in ((b"short", b"\x00"), (None, None)):
            producer.produce(self.config.markers, value, key, 1)
        assert producer.flush(PATIENCE_S) == 0

    def await_overdue(self, count: int) -> None:
        """Return when so many messages are overdue, and no other is open. A tracker does what was due when it began:
        whether it also does what is due a moment later depends on how fast its batches are."""

        def are_overdue() -> bool:
            found = standings(self.properties, self.config)
            return [sum(each.open for each in found), sum(each.overdue for each in found)] == [count, count]

        soon(are_overdue, lambda: standings(self.properties, self.config), patience_s=PATIENCE_S)

    def track(self, **settings: Any) -> Tracked:
        """Run the tracker until it has done what was due when it began."""
        from ottla.spark.tracker.running import follow

        return follow(self.spark, self.options, replace(self.config, **settings))

    def records(self, topic: str) -> list[Message]:
        return list(every_record(self.options.bootstrap, topic))

    def dead_letters(self) -> list[Message]:
        return self.records(self.config.dead_letters)

    def copies(self) -> list[Message]:
        return [each for each in self.records(self.config.queue) if self.count_of(each)]

    def count_of(self, message: Message) -> int:
        return headers.count_in(message.headers() or [], self.config.count_header)  # type: ignore[arg-type]


@pytest.fixture
def stage(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(broker.bootstrap_servers, spark, tmp_path)
    yield made
    config, admin = made.config, AdminClient(made.properties)
    for future in admin.delete_topics([config.queue, config.markers, config.dead_letters]).values():
        future.result(PATIENCE_S)


@pytest.mark.slow("tests/spark/tracker/test_step.py::test_both_trackers_do_the_same_at_the_same_times")
def test_what_workers_leave_comes_again_as_it_was_and_then_is_a_dead_letter(stage: Stage) -> None:
    """One life of a queue: a worker finishes most, says that some fail or are useless, and dies over the others; the
    tracker gives those again; the next worker leaves one of them again; the tracker after that has the first one's
    checkpoint. Retention took one record meanwhile, and somebody wrote nonsense among the markers."""
    sent_ms = int(time.time() * 1000) - 3_600_000
    own = [("trace", b"7"), ("empty", None), ("trace", b"8")]
    stage.send(30, timestamp=sent_ms, headers=own)

    def first(client: KmqClient, message: Message, number: int) -> None:
        if number % 10 == 7:
            client.failed(message, reason="the database is away")
        elif number % 10 == 8:
            client.reject(message, reason="no such customer")
        elif 0 < number % 10 < 7 or number in (10, 20):
            client.processed(message)

    stage.work(30, first)
    stage.spoil()
    stage.await_overdue(10)
    tracked = stage.track()
    figures = tracked.progress.figures
    assert (figures.redelivered, figures.dead_lettered) == (6, {Reason.REJECTED: 3, Reason.LOST: 1})
    assert (tracked.left, figures.markers_malformed) == ((0, 0), 2)
    assert sorted(int(each.value() or b"") for each in stage.copies()) == [7, 9, 17, 19, 27, 29]
    for each in stage.copies():
        number = int(each.value() or b"")
        assert (each.key(), each.partition(), each.timestamp()[1]) == (b"key %d" % number, number % PARTITIONS, sent_ms)
        assert each.headers() == [*own, ("kmq-redelivery-count", b"\x01")]

    stage.work(6, lambda client, message, number: None if number == 9 else client.processed(message))
    stage.await_overdue(1)
    again = stage.track()
    assert (again.progress.figures.redelivered, again.progress.figures.dead_lettered) == (0, {Reason.TIMED_OUT: 1})
    letters = {each.value(): headers.provenance(each.headers() or []) for each in stage.dead_letters()}  # type: ignore[arg-type]
    assert {value: (said.reason, said.text, said.delivery_count) for value, said in letters.items()} == {
        **{b"%d" % number: (Reason.REJECTED, "no such customer", 1) for number in (8, 18, 28)},
        b"9": (Reason.TIMED_OUT, "No worker finished it in time.", 2),
        None: (Reason.LOST, "There is no record at this offset any more.", None),
    }
    lost = letters[None]
    assert (lost.topic, lost.partition, lost.offset, lost.group) == (stage.config.queue, 0, 0, stage.config.group_id)
    found = standings(stage.properties, stage.config)
    assert [(each.open, each.waiting) for each in found] == [(0, 0)] * PARTITIONS
    assert all(each.markers_lag <= 8 for each in found), "the positions are kept: what is left are our own end markers"
    assert "0 messages are open, 0 overdue." in str(again)


def test_a_queue_that_a_standalone_tracker_follows_is_left_to_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.tracker.running.MEMBERS_PATIENCE_S", 0.0)
    other = Consumer({**stage.properties, "group.id": stage.config.tracker_group_id})
    joined = threading.Event()
    other.subscribe([stage.config.markers], on_assign=lambda *_: joined.set())
    until = time.monotonic() + PATIENCE_S
    while not joined.is_set() and time.monotonic() < until:
        other.poll(0.1)
    with pytest.raises(PipelineFailedError, match="1 standalone trackers of"):
        stage.track()
    other.close()
