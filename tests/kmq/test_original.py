"""Side by side with softwaremill/kmq itself: its client with our tracker, our client with its tracker.

Runs where OTTLA_KMQ_ORIGINAL is a Java class path with its 0.3.2, kafka-clients 3.4 and what they need (Java 17 or
newer). Its bytes stand in test_markers.py as golden ones, taken from the same classes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.kmq import headers
from ottla.kmq.events import Reason
from ottla.kmq.markers import END, Kind, pack_key, start

from .conftest import PATIENCE_S, QueueStage, until
from .test_tracker import count_of, settled

CLASSES = os.environ.get("OTTLA_KMQ_ORIGINAL", "")
SOURCE = Path(__file__).with_name("Original.java")

pytestmark = pytest.mark.skipif(
    not CLASSES or shutil.which("java") is None, reason="OTTLA_KMQ_ORIGINAL is no class path, or there is no Java"
)


def command(*arguments: str) -> list[str]:
    return ["java", "-Xmx256m", "-cp", CLASSES, str(SOURCE), *arguments]


@contextlib.contextmanager
def original(what: str, stage: QueueStage) -> Iterator[subprocess.Popen[str]]:
    arguments = (what, stage.bootstrap, stage.config.queue, str(stage.config.timeout_ms))
    process = subprocess.Popen(
        command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.communicate("\n", PATIENCE_S)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (start(1_000, Kind.EXTEND), "StartMarker{redeliverAfter=1000}"),
        (start(70, Kind.FAILED, "boom"), "StartMarker{redeliverAfter=70}"),
        (start(0, Kind.REJECTED, "no use"), "StartMarker{redeliverAfter=0}"),
        (END, "EndMarker{}"),
    ],
)
def test_it_writes_these_bytes_and_reads_ours(value: bytes, read: str) -> None:
    ended = subprocess.run(command("bytes", "7", "123456789012", "90000", value.hex()), capture_output=True, text=True)
    assert ended.stdout.splitlines() == [pack_key(7, 123456789012).hex(), start(90_000).hex(), END.hex(), read]


def test_its_client_and_our_tracker(stage: QueueStage) -> None:
    stage = stage.with_(max_redeliveries=2, timeout_ms=1_500)
    stage.send(b"a", b"drop", b"b")
    with stage.tracker() as tracker, original("client", stage) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(5)]
        until(lambda: sum(tracker.figures.dead_lettered.values()) == 1, "what it drops is a dead letter")
    assert sorted(seen) == ["a", "b", "drop", "drop", "drop"]
    assert tracker.figures.redelivered == 2
    assert headers.provenance(stage.dead_letters()[0].headers() or []).reason == Reason.TIMED_OUT
    assert settled(stage)


def test_our_client_and_its_tracker(stage: QueueStage) -> None:
    """What docs/kmq.md says: failed at its delay, rejected until the count is full, extended at the first time-out."""
    stage = stage.with_(timeout_ms=4_000)
    stage.send(b"done", b"failed", b"rejected", b"extended")
    seen: dict[bytes, list[tuple[int, float]]] = {}
    with original("tracker", stage) as process, stage.client() as client:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_S and not (stage.dead_letters() and len(seen[b"extended"]) == 2):
            for message in client.next_batch(0.1):
                value, count = message.value() or b"", count_of(stage, message)
                seen.setdefault(value, []).append((count, time.monotonic()))
                if value == b"rejected":
                    client.reject(message)
                elif count or value == b"done":
                    client.processed(message)
                elif value == b"failed":
                    client.failed(message, delay_ms=300)
                else:
                    client.extend(message, 60_000)
    assert [count for count, _ in seen[b"done"]] == [0]
    assert [count for count, _ in seen[b"failed"]] == [0, 1]
    assert [count for count, _ in seen[b"rejected"]] == [0, 1, 2, 3]
    assert [count for count, _ in seen[b"extended"]] == [0, 1]
    assert seen[b"failed"][1][1] - seen[b"failed"][0][1] < 4 <= seen[b"extended"][1][1] - seen[b"extended"][0][1] + 0.2
