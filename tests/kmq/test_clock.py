"""This machine's wall clock is set: what is due by markers' timestamps comes neither early nor late."""

from __future__ import annotations

import time

import pytest

from ottla.kmq import KmqConfig, tracker
from ottla.kmq.clock import MarkersClock
from ottla.kmq.events import EndReached, Failed, MarkersRead, ReadRecord, Tick
from ottla.kmq.machine import RETRY_MS, UNDERWAY_MS, MarkersPartition
from ottla.kmq.markers import pack_key, start

from .conftest import QueueStage, take, until

WALL = 1_700_000_000_000
HOUR = 3_600_000
NOW = 5_000


def confirmed() -> MarkersClock:
    clock = MarkersClock()
    clock.look(NOW, WALL)
    clock.read(NOW, WALL, WALL - 40)
    return clock


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_wall_clock_that_is_set_is_believed_when_a_marker_says_so_too(step: int) -> None:
    clock = confirmed()
    clock.look(NOW + 10, WALL + 10 + step)
    assert clock.ahead_ms == WALL - NOW
    clock.read(NOW + 20, WALL + 20 + step, WALL + 15)  # the broker's clock was not set
    assert clock.ahead_ms == WALL - NOW
    clock.read(NOW + 30, WALL + 30 + step, WALL + 25 + step)  # it was set too
    assert clock.ahead_ms == WALL - NOW + step


def test_the_wall_clock_is_followed_while_nothing_confirms_it_and_as_it_drifts() -> None:
    clock = MarkersClock()
    for wall in (WALL, WALL + HOUR, WALL - HOUR):
        clock.look(NOW, wall)
        assert clock.ahead_ms == wall - NOW
    clock = confirmed()
    for drift in range(0, 5_000, 100):
        clock.look(NOW + drift, WALL + 2 * drift)
    assert clock.ahead_ms == WALL - NOW + 4_900


def test_pauses_are_of_the_clock_that_nobody_sets() -> None:
    machine = MarkersPartition(0, KmqConfig(queue="q", use_now_after_ms=0), 0)
    machine.ahead_ms = WALL - NOW
    machine.step(NOW, MarkersRead([0], [WALL], [pack_key(0, 7)], [start(32)]))
    machine.step(NOW, EndReached(1))
    due = machine.deadline()
    assert due is not None
    assert NOW + 32 + UNDERWAY_MS <= due < NOW + HOUR
    assert machine.step(due - 1, Tick()) == []
    assert machine.step(due, Tick()) == [ReadRecord(7)]
    machine.step(due, Failed(7))
    machine.ahead_ms += HOUR  # set meanwhile
    assert machine.step(due + RETRY_MS - 1, Tick()) == []
    assert machine.step(due + RETRY_MS, Tick()) == [ReadRecord(7)]


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_tracker_whose_clock_is_set_gives_messages_again_when_they_are_due(
    stage: QueueStage, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    taken_at: list[float] = []
    with stage.tracker() as running, stage.client() as client:
        until(lambda: any(not each.replaying for each in running.partitions), "the tracker follows the markers")
        stage.send(b"first")
        (first,) = take(client, 1)
        until(lambda: running._clock.confirmed, "a marker has confirmed the clock")
        client.processed(first)
        monkeypatch.setattr(tracker, "now_ms", lambda: time.time_ns() // 1_000_000 + step)
        stage.send(b"second")
        take(client, 2, lambda message: taken_at.append(time.monotonic()))
    before, after = taken_at
    assert after - before >= 0.5, "at once, not after its time-out of a second"
