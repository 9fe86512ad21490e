"""Sends records to the cluster and reports on them: how many were acknowledged, the first failure, and why nothing
moves.

librdkafka retries silently for `message.timeout.ms` (five minutes), so a full disk or a missing broker would look like
a command that hangs. Therefore this module follows its delivery reports, its errors, and the lines of its log that
explain a retry.

A thread serves the reports, so that even a command that waits for input reports within seconds that nothing moves.

Invariant: when `finish` without a limit returns, every record that was given to `send` is counted once, as acknowledged
or as failed.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.cli.connection import sentence, trouble
from ottla.cli.output import CommandError, say

if TYPE_CHECKING:
    from confluent_kafka import Producer

POLL_S = 0.1
SILENT_S = 3.0
"""After this long without an acknowledgement the command reports that it waits."""
AGAIN_S = 30.0
"""It reports again after this long, or when the reason changes."""

REFUSED = re.compile(r"encountered error: (?:Broker: |Local: )?(.*?) \(actions .*Retry")
"""librdkafka's log line about a batch that it will retry."""


class Deliveries:
    """Sends records with a producer of its own and counts the results."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException, Producer

        self.sent = self.acknowledged = self.failed = 0
        self.failure: tuple[int, Any] | None = None
        """The line number of the first record that failed, and the KafkaError."""
        self._moved_at = time.monotonic()
        self._told: tuple[float, str] | None = None
        self._why = ""
        self._timeout_s = int(settings.get("message.timeout.ms", 300_000)) / 1000
        heard = {} if "debug" in settings else {"debug": "msg", "log_level": 7, "logger": self._log()}
        try:
            self._producer: Producer = Producer({**settings, "error_cb": self._error, **heard})
        except (KafkaException, ValueError) as error:
            told = error.args[0]
            raise CommandError(str(told) if isinstance(error, ValueError) else sentence(told)) from None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deliveries", daemon=True)
        self._thread.start()

    def send(self, topic: str, line: int, **record: Any) -> None:
        """Queue one record; wait while the queue is full. Raises CommandError if librdkafka itself rejects it."""
        from confluent_kafka import KafkaException

        if self.sent == self.acknowledged + self.failed:
            self._moved_at = time.monotonic()
        while True:
            try:
                self._producer.produce(topic, on_delivery=partial(self._delivered, line), **record)
                self.sent += 1
                return
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                raise CommandError(f"Line {line}: {sentence(error.args[0])}") from None
            except OverflowError as error:
                raise CommandError(f"Line {line}: {error}.") from None

    def finish(self, within_s: float | None = None) -> None:
        """Wait until every record has a result, or for at most `within_s`."""
        until = None if within_s is None else time.monotonic() + within_s
        while len(self._producer) and (until is None or time.monotonic() < until):
            self._producer.flush(POLL_S)
        self._ended.set()
        self._thread.join()

    @property
    def reason(self) -> str:
        """Why the first failed record failed, as a sentence."""
        from confluent_kafka import KafkaError

        assert self.failure is not None
        error = self.failure[1]
        told = sentence(error)
        return f"{told.rstrip('.')}: {self._why}" if error.code() == KafkaError._MSG_TIMED_OUT and self._why else told

    def _delivered(self, line: int, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
            self._why = ""
        else:
            self.failed += 1
            if self.failure is None or line < self.failure[0]:
                self.failure = line, error
        self._moved_at = time.monotonic()

    # ---- progress reports ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(POLL_S)
            self._look()

    def _look(self) -> None:
        """Report that nothing moves, or that records move again."""
        now, waiting = time.monotonic(), self.sent - self.acknowledged - self.failed
        still_s = now - self._moved_at
        if not waiting or still_s < SILENT_S:
            if self._told is not None and not self.failed:
                say(f"ottla: continuing at {clock(0)}.", err=True)
                self._told = None
            return
        why = self._why or "no answer comes."
        if self._told is None or self._told[1] != why or now - self._told[0] >= AGAIN_S:
            self._told = now, why
            what = f"waiting since {clock(-still_s)} for {waiting} of {self.sent} records to be acknowledged"
            end = f"Giving up at {clock(self._timeout_s - still_s)} (message.timeout.ms)."
            say(f"ottla: {what}: {why} {end}", err=True)

    def _error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._why:
            self._why = trouble(error)

    def _log(self) -> logging.Logger:
        """The logger for librdkafka: it prints nothing, but keeps the reasons for retries."""
        logger = logging.Logger("librdkafka")
        logger.addHandler(Refusals(self))
        return logger

    def refused(self, why: str) -> None:
        self._why = f"{why}; the broker's log says more."


class Refusals(logging.Handler):
    """Collects the reasons for retries from librdkafka's log."""

    def __init__(self, deliveries: Deliveries) -> None:
        super().__init__()
        self._deliveries = deliveries

    def emit(self, record: logging.LogRecord) -> None:
        found = REFUSED.search(record.getMessage())
        if found is not None:
            self._deliveries.refused(found[1])


def clock(seconds: float) -> str:
    """The time of day that many seconds from now."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
