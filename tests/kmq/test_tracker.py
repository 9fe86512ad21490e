"""The tracker against a real broker: what comes again, when, how often, with what in it, and the rest."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from ottla.kmq import KmqRefusedError, RedeliveryTracker, headers
from ottla.kmq.events import Reason
from ottla.kmq.markers import END, Kind, pack_key, start
from ottla.kmq.metrics import serve_metrics
from ottla.kmq.stats import standings
from ottla.testing import EmbeddedBroker

from .conftest import PATIENCE_S, QueueStage, new_stage, take, until


def count_of(stage: QueueStage, message: Any) -> int:
    return headers.count_in(message.headers() or [], stage.config.count_header)


def settled(stage: QueueStage) -> bool:
    return not any(each.open or each.waiting for each in standings(stage.properties, stage.config))


def test_what_nobody_finishes_comes_again_as_it_was_and_then_is_a_dead_letter(stage: QueueStage) -> None:
    stage = stage.with_(max_redeliveries=2)
    sent_ms = int(time.time() * 1000) - 3_600_000
    own = [("trace", b"7"), ("empty", None), ("trace", b"8")]
    stage.send(b"value", key=b"key", timestamp=sent_ms, headers=own)
    stage.send(b"other")
    times: list[float] = []

    def handle(message: Any) -> None:
        if message.value() == b"other":
            client.processed(message)
        else:
            times.append(time.monotonic())

    with stage.tracker() as tracker, stage.client() as client:
        first, _, second, third = take(client, 4, handle)
        until(lambda: settled(stage), "the message is a dead letter")
    assert [count_of(stage, each) for each in (first, second, third)] == [0, 1, 2]
    for each in (second, third):
        assert (each.key(), each.value(), each.timestamp()[1], each.partition()) == (b"key", b"value", sent_ms, 0)
        assert each.headers()[:3] == own
    assert second.headers()[3:] == [("kmq-redelivery-count", b"\x01")]
    for before, after in itertools.pairwise(times):
        assert after - before >= 0.95, "before its time-out was over"
    (letter,) = stage.dead_letters()
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"key", b"value", sent_ms)
    assert letter.headers()[:4] == [*own, ("kmq-redelivery-count", b"\x02")]
    said = headers.provenance(letter.headers())
    assert (said.topic, said.partition, said.offset) == (stage.config.queue, 0, third.offset())
    assert (said.group, said.delivery_count) == (stage.config.group_id, 3)
    assert (said.reason, said.text) == (Reason.TIMED_OUT, "No worker finished it in time.")
    assert abs((said.at_ms or 0) - time.time() * 1000) < PATIENCE_S * 1000
    assert tracker.figures.redelivered == 2
    assert tracker.figures.dead_lettered == {Reason.TIMED_OUT: 1}


def test_what_failed_comes_again_after_its_delay_and_what_is_rejected_never(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=60_000)
    stage.send(b"fails", b"useless")
    times: list[float] = []

    def handle(message: Any) -> None:
        if message.value() == b"useless":
            client.reject(message, reason="no such customer")
            return
        times.append(time.monotonic())
        if len(times) == 1:
            client.failed(message, delay_ms=500, reason="the database is away")
        elif len(times) <= 4:
            client.failed(message, reason="still away")

    with stage.tracker() as tracker, stage.client() as client:
        take(client, 5, handle)
        until(lambda: sum(tracker.figures.dead_lettered.values()) == 2, "both are dead letters")
    assert times[1] - times[0] >= 0.5
    rejected, failed = sorted(stage.dead_letters(), key=lambda each: each.value() or b"", reverse=True)
    said = headers.provenance(rejected.headers() or [])
    assert (said.reason, said.text, said.delivery_count) == (Reason.REJECTED, "no such customer", 1)
    said = headers.provenance(failed.headers() or [])
    assert (said.reason, said.text, said.delivery_count) == (Reason.FAILED, "still away", 4)


def test_an_extended_message_does_not_come_again(stage: QueueStage) -> None:
    stage.send(b"long")
    with stage.tracker() as tracker, stage.client() as client:
        (message,) = take(client, 1)
        for _ in range(6):
            assert client.next_batch(0.4) == []
            client.extend(message)
        client.processed(message)
        until(lambda: settled(stage), "it is done")
        assert tracker.figures.redelivered == 0
        assert client.next_batch(0.1) == []


def test_back_off_grows_and_is_counted_from_the_time_out(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=200, backoff_ms=400, backoff_multiplier=2.0, backoff_ms_max=600, max_redeliveries=3)
    stage.send(b"x")
    times: list[float] = []
    with stage.tracker(), stage.client() as client:
        take(client, 4, lambda message: times.append(time.monotonic()))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert [gap >= least for gap, least in zip(gaps, (0.55, 0.75, 0.75), strict=True)] == [True] * 3, gaps


def test_a_record_that_is_gone_is_a_dead_letter_that_says_so_and_no_other_is_given_instead(stage: QueueStage) -> None:
    stage.send(b"deleted", b"kept")
    with stage.client() as client:
        take(client, 2)
    stage.delete_before(1)
    with stage.tracker() as tracker, stage.client() as client:
        (again,) = take(client, 1, client.processed)
        until(lambda: settled(stage), "both are settled")
    assert (again.value(), count_of(stage, again)) == (b"kept", 1)
    assert tracker.figures.dead_lettered == {Reason.LOST: 1}
    (letter,) = stage.dead_letters()
    said = headers.provenance(letter.headers() or [])
    assert (letter.key(), letter.value()) == (None, None)
    assert (said.topic, said.partition, said.offset, said.reason) == (stage.config.queue, 0, 0, Reason.LOST)


def test_a_hole_that_compaction_left_is_not_filled_with_the_next_record() -> None:
    with EmbeddedBroker(settings={"log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 100}) as broker:
        stage = new_stage(broker.bootstrap_servers)
        for name, value in (("segment.ms", "1"), ("min.cleanable.dirty.ratio", "0.001"), ("cleanup.policy", "compact")):
            stage.alter(stage.config.queue, name, value)
        began = int(time.time() * 1000) - 10_000

        def send(value: bytes, key: bytes) -> None:
            """Each into a segment of its own: two sends can be of the same millisecond."""
            stage.send(value, key=key, timestamp=began + 100 * int(value))

        send(b"0", b"a")
        send(b"1", b"b")
        with stage.client() as client:
            take(client, 2)
        send(b"2", b"a")
        send(b"3", b"c")
        until(lambda: stage.records(stage.config.queue)[0].offset() == 1, "the first is compacted")
        with stage.tracker() as tracker:
            until(lambda: tracker.figures.dead_lettered[Reason.LOST], "the first is known to be lost")
            until(lambda: tracker.figures.redelivered, "the second comes again")
        (letter,) = stage.dead_letters()
        assert headers.provenance(letter.headers() or []).offset == 0
        again = stage.records(stage.config.queue)[-1]
        assert (again.value(), count_of(stage, again)) == (b"1", 1)


def test_a_tracker_that_starts_gives_nothing_again_that_was_finished(stage: QueueStage) -> None:
    """Thousands of old starts, all overdue, whose ends come later in the topic: the original's issue 158."""
    stage = stage.with_(timeout_ms=1)
    stage.send(*(b"%d" % index for index in range(3_000)))
    with stage.client() as client:
        for message in take(client, 3_000)[:-1]:
            client.processed(message)
    with stage.tracker() as tracker, stage.client() as client:
        take(client, 1, client.processed)
        until(lambda: tracker.figures.redelivered, "the one that is open comes again")
        until(lambda: settled(stage), "all is closed")
        end = len(stage.markers())
        until(lambda: stage.committed(stage.config.markers, stage.config.tracker_group_id) == end, "all is committed")
    again = [message.value() for message in stage.records(stage.config.queue)[3_000:]]
    assert tracker.figures.redelivered == len(again)
    assert set(again) == {b"2999"}, again  # once, or more often if it was finished later than its millisecond


def test_the_position_is_the_smallest_open_marker(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=60_000)
    stage.send(*(b"%d" % index for index in range(10)))
    with stage.tracker(), stage.client() as client:
        messages = take(client, 10)
        for message in messages[:3] + messages[5:]:
            client.processed(message)
        until(
            lambda: stage.committed(stage.config.markers, stage.config.tracker_group_id) == 3, "it stands at the fourth"
        )
        for message in messages[3:5]:
            client.processed(message)
        until(lambda: stage.committed(stage.config.markers, stage.config.tracker_group_id) == 20, "it is at the end")


def test_another_tracker_takes_over_what_a_stopped_one_followed(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=1_500)
    stage.send(b"x")
    one, two = stage.tracker(), stage.tracker()
    one.start()
    until(lambda: one.figures.assignments >= 1, "the first follows")
    with stage.client() as client:
        take(client, 1)
        two.start()
        one.close()
        (again,) = take(client, 1, client.processed)
        assert count_of(stage, again) == 1
        until(lambda: settled(stage), "it is done")
    two.close()
    assert (one.figures.redelivered, two.figures.redelivered) == (0, 1)


def test_markers_of_the_original_and_nonsense_are_followed_as_far_as_they_go(stage: QueueStage) -> None:
    stage.send(b"a", b"b")
    plain = start(300)
    for key, value in (
        (pack_key(0, 0), plain),
        (pack_key(0, 1), plain),
        (pack_key(0, 1), END),
        (b"short", plain),
        (pack_key(5, 0), plain),
        (pack_key(0, 0), None),
        (pack_key(0, 1), start(1, Kind.EXTEND)),
    ):
        stage.produce(stage.config.markers, value, key=key)
    with stage.tracker() as tracker:
        until(lambda: tracker.figures.redelivered == 1, "the open one comes again")
        until(lambda: tracker.figures.markers_malformed == 3, "three are malformed")
    assert [each.value() for each in stage.records(stage.config.queue)] == [b"a", b"b", b"a"]
    assert stage.markers()[-1] == (pack_key(0, 0), END)


def test_with_little_memory_it_follows_part_after_part(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=50, open_max=10, in_flight_max=4, max_redeliveries=0)
    stage.send(*(b"%d" % index for index in range(100)))
    with stage.client() as client:
        take(client, 100)
    with stage.tracker() as tracker:
        until(lambda: tracker.figures.dead_lettered[Reason.TIMED_OUT] == 100, "all are dead letters")
        until(lambda: settled(stage), "and settled")
        assert tracker.figures.rewinds > 5
    assert sorted(int(each.value() or b"") for each in stage.dead_letters()) == list(range(100))


def test_a_topic_that_takes_no_old_timestamps_gets_the_message_without(stage: QueueStage) -> None:
    stage.send(b"old", timestamp=int(time.time() * 1000) - 86_400_000)
    stage.alter(stage.config.queue, "message.timestamp.before.max.ms", "60000")
    with stage.tracker(), stage.client() as client:
        _, again = take(client, 2)
    assert again.value() == b"old"
    assert abs(again.timestamp()[1] - time.time() * 1000) < 60_000


def test_what_cannot_be_written_is_tried_again_and_nothing_is_committed_past_it(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=100, max_redeliveries=0)
    stage.send(b"x" * 1_000)
    with stage.client() as client:
        take(client, 1)
    stage.alter(stage.config.dead_letters, "max.message.bytes", "200")
    with stage.tracker() as tracker:
        until(lambda: tracker.figures.write_failures >= 2, "the letter is refused again and again")
        assert stage.committed(stage.config.markers, stage.config.tracker_group_id) <= 0
        stage.alter(stage.config.dead_letters, "max.message.bytes", "1000000")
        until(lambda: sum(tracker.figures.dead_lettered.values()) == 1, "it is taken")
        until(lambda: settled(stage), "and settled")


def test_topics_that_are_missing_are_refused_with_a_sentence(stage: QueueStage) -> None:
    with pytest.raises(KmqRefusedError, match=r"has no topic nowhere: `ottla kmq create"):
        RedeliveryTracker(stage.properties, stage.with_(dead_letters="nowhere").config)


def test_metrics_say_how_it_is_doing(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=100, max_redeliveries=0)
    stage.send(b"a", b"b")
    with stage.client() as client:
        client.processed(take(client, 2)[0])
    with stage.tracker() as tracker:
        until(lambda: settled(stage), "both are settled")
        until(lambda: tracker.figures.markers_read == 4, "it has read its own end marker")
        until(lambda: tracker.partitions and not tracker.partitions[0].open, "it has looked")
        port, stop = serve_metrics(tracker, "127.0.0.1", 0)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
        finally:
            stop()
    queue = f'queue="{stage.config.queue}"'
    assert f'ottla_kmq_dead_lettered_total{{{queue},reason="timed-out"}} 1.0' in text
    assert f"ottla_kmq_markers_read_total{{{queue}}} 4.0" in text
    assert f'ottla_kmq_open_messages{{partition="0",{queue}}} 0.0' in text
    assert f'ottla_kmq_overdue_seconds{{partition="0",{queue}}} 0.0' in text


def test_the_trackers_process_stops_in_order(stage: QueueStage) -> None:
    command = [sys.executable, "-m", "ottla", "kmq", "tracker", stage.config.queue, "--bootstrap", stage.bootstrap]
    process = subprocess.Popen([*command, "--max-redeliveries", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "follows markers" not in (line := process.stderr.readline()):
        assert line, "it ended before it followed anything"
    stage.send(b"a")
    with stage.client() as client:
        client.processed(take(client, 1)[0])
    os.kill(process.pid, signal.SIGTERM)
    assert "gave up markers" in process.stderr.read()
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()
