"""Reads the reports of pipelines from a topic: what each of them is, what it does, and how it ended.

A report is a record. Its key is the name of the pipeline, its value is JSON (docs/pipelines/reports.md has the fields).
A pipeline writes one every few seconds while it runs, and a last one when it ends. One that is killed becomes silent.

`Reports` holds the newest report of each pipeline and the figures of its recent ones, within bounds. Anyone who may
write to the topic can write anything, so every field is checked. Nothing here joins a group.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.client import EARLIEST, LATEST, Client
from ottla.client.errors import BadResponseError
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.compression import READER_BYTES_MAX
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record, decode_records

TOPIC: Final = "ottla.reports"
VERSION: Final = 1
RUNNING, STOPPED, FAILED, SILENT = "running", "stopped", "failed", "silent"
"""States of a pipeline. No report says SILENT: it is the state of a pipeline whose reports no longer arrive."""
STATES: Final = (RUNNING, STOPPED, FAILED)
SILENT_AFTER: Final = 4
"""Reports that are missing before a running pipeline counts as silent."""
CHARTED: Final = ("in_rate", "processed_rate", "lag", "batch_ms", "late_rows")
"""The figures that are kept of recent reports."""

PIPELINES_MAX: Final = 500
POINTS_MAX: Final = 180
"""Recent reports of a pipeline whose figures are kept: a quarter of an hour at one report every five seconds."""
VALUE_MAX: Final = 64 << 10
KEY_MAX: Final = 1024
NAME_MAX: Final = 300
TEXT_MAX: Final = 2_000
NAMES_MAX: Final = 20
FIGURES_MAX: Final = 100
FIGURE_MAX: Final = 1 << 62
OFFSETS_MAX: Final = 1_000
"""Partitions of which a report has offsets."""
BYTES_MAX: Final = 48 << 20
SECONDS_MAX: Final = 4.0
FETCH_BYTES: Final = 1 << 20


class InvalidReportError(ValueError):
    """A record that is no report, or one of a later version of the format."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report. `at_ms` is the record's timestamp. The next report is due after `every_ms`. `figures` count since
    `started_ms`; rates are per second. `summary` is the last line of a pipeline that stopped, `error` says why it
    failed. `command` started it. `offsets` are the next ones to read, by topic and partition."""

    name: str
    kind: str
    state: str
    at_ms: int
    started_ms: int
    every_ms: int
    host: str = ""
    pid: int = 0
    ottla: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    summary: str = ""
    error: str = ""
    command: str = ""
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    def encoded(self) -> bytes:
        """The value of its record."""
        found: dict[str, Any] = {"version": VERSION}
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in ("name", "at_ms") and value not in ("", (), {}, 0):
                found[name] = value
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")

    def standing(self, now_ms: int) -> str:
        """The state of its pipeline now, if this is its newest report."""
        is_late = now_ms - self.at_ms > SILENT_AFTER * self.every_ms
        return SILENT if self.state == RUNNING and is_late else self.state

    def figures_at(self, now_ms: int) -> dict[str, float]:
        """The figures; without rates if its pipeline does not run now."""
        if self.standing(now_ms) == RUNNING:
            return dict(self.figures)
        return {name: value for name, value in self.figures.items() if not name.endswith("_rate")}


def report_of(key: bytes | None, value: bytes, at_ms: int) -> Report:
    """The report in a record. Raises InvalidReportError."""
    if key is None or not key or len(key) > KEY_MAX or len(value) > VALUE_MAX:
        raise InvalidReportError("its key or value is missing or too long")
    try:
        found = json.loads(value, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise InvalidReportError("it is not JSON") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InvalidReportError("it has another version")
    state, kind = _text(found, "state", NAME_MAX), _text(found, "kind", NAME_MAX)
    if state not in STATES or not kind:
        raise InvalidReportError("its kind or state is missing")
    return Report(
        name=key.decode("utf-8", "replace"),
        kind=kind,
        state=state,
        at_ms=at_ms,
        started_ms=_count(found, "started_ms"),
        every_ms=_count(found, "every_ms"),
        host=_text(found, "host", NAME_MAX),
        pid=_count(found, "pid"),
        ottla=_text(found, "ottla", NAME_MAX),
        reads=_texts(found, "reads"),
        writes=_texts(found, "writes"),
        figures=_figures(found),
        summary=_text(found, "summary", TEXT_MAX),
        error=_text(found, "error", TEXT_MAX),
        command=_text(found, "command", TEXT_MAX),
        offsets=_offsets(found),
    )


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _text(found: Mapping[str, Any], name: str, most: int) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise InvalidReportError(f"{name} is no text")
    return _printable(value[:most])


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = found.get(name, [])
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InvalidReportError(f"{name} is no list of texts")
    return tuple(_printable(each[:NAME_MAX]) for each in values[:NAMES_MAX])


def _printable(text: str) -> str:
    """The text without halves of characters, which JSON can hold and nothing can print."""
    return text.encode("utf-8", "replace").decode()


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= FIGURE_MAX


def _count(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if not _number(value) or value < 0:
        raise InvalidReportError(f"{name} is no number")
    return int(value)


def _figures(found: Mapping[str, Any]) -> dict[str, float]:
    values = found.get("figures", {})
    if not isinstance(values, dict) or not all(map(_number, values.values())):
        raise InvalidReportError("its figures are not numbers by name")
    return {_printable(name[:NAME_MAX]): value for name, value in list(values.items())[:FIGURES_MAX]}


def _offsets(found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    topics = found.get("offsets", {})
    if not isinstance(topics, dict) or not all(isinstance(each, dict) for each in topics.values()):
        raise InvalidReportError("its offsets are not partitions by topic")
    kept: dict[str, dict[str, int]] = {}
    left = OFFSETS_MAX
    for topic, partitions in topics.items():
        for partition, offset in list(partitions.items())[:left]:
            if not partition.isdecimal() or len(partition) > 9 or not _number(offset) or offset < 0:
                raise InvalidReportError("its offsets are not numbers by partition")
            kept.setdefault(_printable(topic[:NAME_MAX]), {})[partition] = int(offset)
            left -= 1
    return kept


# ---- many ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of CHARTED in a report; None for one that it lacks."""

    at_ms: int
    values: tuple[float | None, ...]


class Reports:
    """The newest report of each pipeline, and the figures of its recent ones. `invalid` counts records that are no
    reports of this version. Of more than PIPELINES_MAX pipelines, those that reported last are held."""

    def __init__(self) -> None:
        self.newest: dict[str, Report] = {}
        self.recent: dict[str, deque[Point]] = {}
        self.invalid = 0

    def take(self, record: Record) -> None:
        """Add a record. One without a value removes its pipeline."""
        if record.value is None:
            name = (record.key or b"").decode("utf-8", "replace")
            self.newest.pop(name, None)
            self.recent.pop(name, None)
            return
        try:
            report = report_of(record.key, record.value, record.timestamp_ms)
        except InvalidReportError:
            self.invalid += 1
            return
        if report.name not in self.newest and len(self.newest) >= PIPELINES_MAX:
            oldest = min(self.newest.values(), key=lambda each: each.at_ms).name
            del self.newest[oldest], self.recent[oldest]
        self.newest[report.name] = report
        point = Point(report.at_ms, tuple(report.figures.get(each) for each in CHARTED))
        self.recent.setdefault(report.name, deque(maxlen=POINTS_MAX)).append(point)


class ReportsReader:
    """Reads a topic of reports, each record once, however often it is asked. Threads may share it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._reports = Reports()
        self._lock = threading.Lock()
        self._topic_id = b""
        self._positions: dict[int, int] = {}

    @property
    def invalid(self) -> int:
        """Records that are no reports of this version."""
        return self._reports.invalid

    @property
    def is_full(self) -> bool:
        """Whether there may be more pipelines than are held."""
        return len(self._reports.newest) >= PIPELINES_MAX

    def newest(self) -> dict[str, Report]:
        """The newest report of each pipeline, by name."""
        with self._lock:
            return dict(self._reports.newest)

    def recent(self, name: str) -> tuple[Point, ...]:
        """The figures of a pipeline's recent reports, oldest first."""
        with self._lock:
            return tuple(self._reports.recent.get(name, ()))

    def read(self, client: Client, *, seconds_max: float = SECONDS_MAX, bytes_max: int = BYTES_MAX) -> bool:
        """Read what was not read yet; returns False if time or bytes ran out before the end.

        It asks for records even if there are no new ones or no time is left, because the answer decides whether the
        user may read now.
        Raises BrokerError if there is no such topic or the user may not read it, or another ClientError.
        """
        until = time.monotonic() + seconds_max
        with self._lock:
            ends = self._ends(client)
            if ends and all(self._positions[partition] >= end for partition, end in ends.items()):
                self._fetch(client, *next(iter(ends.items())))
            for partition, end in ends.items():
                while self._positions[partition] < end:
                    bytes_max -= self._fetch(client, partition, end)
                    if bytes_max <= 0 or time.monotonic() >= until:
                        return all(self._positions[each] >= its_end for each, its_end in ends.items())
        return True

    def _ends(self, client: Client) -> dict[int, int]:
        """The end of each partition. Starts again if these are not the partitions that were read before."""
        known = client.topic(self.topic)
        indexes = range(len(known.leaders))
        starts = client.list_offsets(self.topic, indexes, EARLIEST)
        ends = client.list_offsets(self.topic, indexes, LATEST)
        if known.topic_id != self._topic_id or any(at > ends.get(each, 0) for each, at in self._positions.items()):
            self._reports, self._positions, self._topic_id = Reports(), {}, known.topic_id
        self._positions = {each: max(starts[each], self._positions.get(each, 0)) for each in indexes}
        return ends

    def _fetch(self, client: Client, partition: int, end: int) -> int:
        """Read the next batches of a partition; returns their size in bytes."""
        at = self._positions[partition]
        fetched = client.fetch_raw(self.topic, partition, at, max_bytes=FETCH_BYTES, max_wait_ms=0)
        after = at
        try:
            for header, position in iter_batches(fetched.records):
                if not header.is_control:
                    for record in decode_records(fetched.records, position, max_bytes=READER_BYTES_MAX):
                        if record.offset >= at:
                            self._reports.take(record)
                after = header.next_offset
        except CorruptRecordsError as damage:
            raise BadResponseError(f"{self.topic}-{partition} cannot be read at offset {after}: {damage}.") from None
        self._positions[partition] = after if after > at else end
        return len(fetched.records)
