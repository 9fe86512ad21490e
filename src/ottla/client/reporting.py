"""Writes the reports of one pipeline to a topic, from a thread of its own.

`reports.py` has the format and reads it. The first report creates the topic if it is missing. A report that cannot be
written is dropped: the pipeline neither fails nor waits for it, and its user gets one sentence.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ottla import __version__
from ottla.client.client import Client, TopicPartition
from ottla.client.errors import BrokerError, check
from ottla.client.reports import FAILED, NAMES_MAX, OFFSETS_MAX, RUNNING, STOPPED, TEXT_MAX, Report
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.records.record import Record, build_batch

EVERY_S: Final = 5.0
PAUSE_MAX_S: Final = 60.0
"""The longest pause after reports that could not be written; it doubles with each of them."""
END_S: Final = 2.0
"""How long the end of a pipeline may wait for its last report."""
CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 86_400_000),
    "segment.ms": str(900_000),
    "min.compaction.lag.ms": str(900_000),
    "message.timestamp.type": "LogAppendTime",
}
"""The newest report of each pipeline is kept for a week, all reports for at least a quarter of an hour. The broker
stamps them: of the clocks, only its own and the reader's matter."""
NAME_MAX: Final = 256
"""Characters of a name; a longer one loses its beginning."""
Figures = Mapping[str, float]


class Reporter:
    """Reports about a pipeline, from `with` until its end: a summary if it is set, an error if one was raised.

    `measures` are functions that return figures, `positions` functions that return the next offsets to read; the thread
    calls them. `connect` makes a client, `say` shows a sentence to the user. Without a topic, nothing is written.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        topic: str | None,
        about: Report,
        *,
        say: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self.measures: list[Callable[[], Figures]] = []
        self.positions: list[Callable[[], Mapping[TopicPartition, int]]] = []
        self.summary = ""
        self._connect, self._topic, self._say, self._every_s = connect, topic, say, every_s
        self._about = replace(about, every_ms=int(every_s * 1000))
        self._ended = threading.Event()
        self._client: Client | None = None
        self._failures = 0
        self._has_said = False
        self._rows: tuple[float, float] | None = None
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> Reporter:
        if self._topic:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        is_stopped = error is None or isinstance(error, KeyboardInterrupt)
        if is_stopped:
            self._about = replace(self._about, state=STOPPED, summary=self.summary[:TEXT_MAX])
        else:
            self._about = replace(self._about, state=FAILED, error=(str(error) or repr(error))[:TEXT_MAX])
        self._ended.set()
        if self._topic:
            self._thread.join(END_S)

    def _run(self) -> None:
        while True:
            is_last = self._ended.is_set()
            if not (is_last and self._failures):
                self._report()
            if is_last:
                break
            self._ended.wait(min(self._every_s * 2**self._failures, max(PAUSE_MAX_S, self._every_s)))
        self._close()

    def _report(self) -> None:
        """Write one report, or say once why that failed."""
        try:
            report = replace(self._about, figures=self._measured(time.monotonic()), offsets=self._offsets())
            record = Record(0, time.time_ns() // 1_000_000, report.name.encode("utf-8", "replace"), report.encoded())
            self._write(bytes(build_batch([record])))
            self._failures = 0
        except Exception as failure:  # whatever is wrong with a report, the pipeline continues
            self._close()
            self._failures = min(self._failures + 1, 30)
            if not self._has_said:
                self._has_said = True
                self._say(f"Reports cannot be written to the topic {self._topic}: {failure}")

    def _measured(self, now_s: float) -> dict[str, float]:
        """The figures, and the rate of their rows if they name none."""
        found: dict[str, float] = {}
        for measure in self.measures:
            found.update(measure())
        before, rows = self._rows, found.get("rows")
        if rows is not None:
            self._rows = now_s, rows
            if before is not None and now_s > before[0]:
                found.setdefault("in_rate", round((rows - before[1]) / (now_s - before[0]), 1))
        return found

    def _offsets(self) -> dict[str, dict[str, int]]:
        """The next offsets to read, of so many partitions as a report may have."""
        found: dict[str, dict[str, int]] = {}
        every = sorted(pair for each in self.positions for pair in each().items())
        for (topic, partition), offset in every[:OFFSETS_MAX]:
            found.setdefault(topic, {})[str(partition)] = offset
        return found

    def _write(self, batch: bytes) -> None:
        assert self._topic
        if self._client is None:
            self._client = self._connect()
            create_if_missing(self._client, self._topic)
        try:
            self._client.produce_raw(self._topic, 0, batch)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            create_if_missing(self._client, self._topic)
            self._client.produce_raw(self._topic, 0, batch)

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()


def create_if_missing(client: Client, topic: str) -> None:
    """Create the topic of reports unless there is one. Raises ClientError."""
    answer = client.metadata([topic])
    if answer.topics[0].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return
    configs = [CreatableTopicConfig(name, value) for name, value in CONFIGS.items()]
    asked = CreateTopicsRequest([CreatableTopic(topic, 1, -1, configs=configs)], timeout_ms=10_000)
    (made,) = client.broker(answer.controller_id).send(asked).topics
    if made.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        check(made.error_code, f"topic {topic}", made.error_message)


def shortened(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(each[:NAME_MAX] for each in names[:NAMES_MAX])


def about(
    kind: str,
    subject: str,
    *,
    name: str | None = None,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    command: str = "",
) -> Report:
    """Make the first report of this process. The default name is the same after a restart."""
    host, now_ms = socket.gethostname(), time.time_ns() // 1_000_000
    return Report(
        name=(name or f"{kind}:{subject}@{host}")[-NAME_MAX:],
        kind=kind,
        state=RUNNING,
        at_ms=now_ms,
        started_ms=now_ms,
        every_ms=0,
        host=host,
        pid=os.getpid(),
        ottla=__version__,
        reads=shortened(reads),
        writes=shortened(writes),
        command=command if len(command) <= TEXT_MAX else "",
    )
