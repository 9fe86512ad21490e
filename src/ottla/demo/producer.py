"""Produces the stream of events, in a thread, at a steady rate, and keeps the tally of what was acknowledged."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator
from typing import Any

from ottla.demo.events import Event
from ottla.demo.tally import Tally, digest

SLICE_S = 0.02
FLUSH_TIMEOUT_S = 30.0


class Stream:
    """Produces events until stopped. `tally` counts acknowledged records, `failure` is the first error's message."""

    def __init__(self, bootstrap: str, events: Iterator[Event], rate: float) -> None:
        from confluent_kafka import Producer

        self.tally = Tally()
        self.failure: str | None = None
        self._events = events
        self._rate = rate
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "web-shop",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether there are no more events."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Send what is queued and wait until every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        if self._producer.flush(FLUSH_TIMEOUT_S) and self.failure is None:
            self.failure = "Some records were not acknowledged in time."

    def _run(self) -> None:
        """Produce a slice of events, then pause until the next one is due."""
        began = time.monotonic()
        for sent, (topic, key, value) in enumerate(self._events, 1):
            while True:
                try:
                    self._producer.produce(topic, value, key, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(SLICE_S)
            if sent % max(1, int(self._rate * SLICE_S)) == 0:
                self._producer.poll(0)
                ahead = sent / self._rate - (time.monotonic() - began)
                if ahead > 0:
                    self._stopping.wait(ahead)
                if self._stopping.is_set():
                    return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failure = self.failure or f"A record was not accepted: {error.str()}."
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        found = digest(topic, partition, offset, message.key(), message.value())
        self.tally.add((topic, partition), offset, array("Q", (found,)))
