"""Checks the figures of the tables by counting again, reading each column once.

The ledger's counts serve only for comparison. Offsets are kept as runs while they are counted, so memory depends on the
number of gaps, not of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ottla.client import TopicPartition
from ottla.spark.activity.batches import LOCAL_ROWS_MAX
from ottla.spark.activity.groups import codes_of, grouped, longs
from ottla.spark.activity.local_sessions import sessions_of
from ottla.spark.activity.sessions import merge, pieces
from ottla.spark.activity.tables import RECORD_TABLES, RESULT_TABLES, Tables
from ottla.spark.lake.timed_table import TimedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Totals:
    """Contents of the tables. `records`: distinct (topic, partition, offset) in the first three tables. `in_windows`,
    `in_pages`, `in_sessions`: sums of events over the rows of those tables. `nameless`: events without a visitor."""

    read: int
    events: int
    late: int
    malformed: int
    records: int
    in_windows: int
    in_pages: int
    in_sessions: int
    nameless: int
    sessions: int
    sessions_again: int
    in_conversions: int
    visitors: int
    windows: int

    @property
    def problems(self) -> list[str]:
        """Describe each inconsistency in a sentence."""
        parsed = self.events + self.late
        sums = (
            (self.read, parsed + self.malformed, "records were read, but the tables have"),
            (self.records, parsed + self.malformed, "different records are in the tables, in rows:"),
            (self.events, self.in_windows, "events came in time, but the windows have"),
            (self.events, self.in_pages, "events came in time, but the pages of all windows have"),
            (self.events - self.nameless, self.in_sessions, "events have a visitor, but the sessions have"),
            (self.sessions_again, self.sessions, "sessions were counted in one go, but the table has"),
            (self.sessions, self.in_conversions, "sessions are in their table, but the conversions have"),
        )
        return [f"{wanted:,} {told} {found:,}." for wanted, found, told in sums if wanted != found]

    def __str__(self) -> str:
        parsed = self.events + self.late
        nameless = f" ({self.nameless:,} events have no visitor)" if self.nameless else ""
        checked = "Checked by counting again." if not self.problems else "This does not add up."
        return (
            f"Read {self.read:,} = {parsed:,} parsed + {self.malformed:,} malformed; "
            f"{parsed:,} events = {self.in_windows:,} in {self.windows:,} windows + {self.late:,} late; "
            f"{self.sessions:,} sessions of {self.visitors:,} visitors{nameless}. {checked}"
        )


def totals(session: SparkSession, tables: Tables, local_rows_max: int = LOCAL_ROWS_MAX) -> Totals:
    """Count everything again. `local_rows_max`: up to this number of events, this process makes the sessions; above it,
    Spark."""
    by_name = tables.by_name
    rows, records = came_to([by_name[name] for name in RECORD_TABLES])
    again = visits_locally(tables) if rows[0] <= local_rows_max else visits_by_spark(session, tables)
    made = {name: added(by_name[name], "sessions" if name == "conversions" else "events") for name in RESULT_TABLES}
    return Totals(
        read=tables.entry().read,
        events=rows[0],
        late=rows[1],
        malformed=rows[2],
        records=records,
        in_windows=made["windows"][0],
        in_pages=made["pages"][0],
        in_sessions=made["sessions"][0],
        nameless=rows[0] - again.events,
        sessions=made["sessions"][1],
        sessions_again=again.sessions,
        in_conversions=made["conversions"][0],
        visitors=again.visitors,
        windows=made["windows"][1],
    )


def came_to(by_name: Sequence[TimedTable]) -> tuple[list[int], int]:
    """Count the rows of each table, and the distinct records (topic, partition, offset) of all."""
    rows, runs = [0] * len(by_name), dict[TopicPartition, list[np.ndarray]]()
    for number, table in enumerate(by_name):
        for batch in table.batches(("topic", "partition", "offset")):
            rows[number] += len(batch)
            for place, offsets in by_partition(batch):
                runs.setdefault(place, []).append(runs_of(offsets))
    return rows, sum(covered(np.concatenate(each)) for each in runs.values())


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, np.ndarray]]:
    """The offsets of each partition in a batch."""
    codes, names = codes_of(batch["topic"])
    partitions = longs(batch["partition"])
    found, groups = grouped(codes << 32 | partitions)
    offsets = longs(batch["offset"])
    for number, key in enumerate(found.tolist()):
        yield (names[key >> 32].as_py(), key & 0xFFFFFFFF), offsets[groups.numbers == number]


def runs_of(offsets: np.ndarray) -> np.ndarray:
    """Turn offsets into the smallest number of rows (first, until)."""
    found = np.unique(offsets)
    breaks = np.flatnonzero(np.diff(found) != 1)
    firsts, lasts = found[np.append(0, breaks + 1)], found[np.append(breaks, len(found) - 1)]
    return np.stack([firsts, lasts + 1], axis=1)


def covered(runs: np.ndarray) -> int:
    """Count the offsets that are in at least one of the runs."""
    firsts, untils = runs[np.argsort(runs[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(np.append(-1, untils))[:-1]
    return int(np.maximum(untils - np.maximum(firsts, reached), 0).sum())


def added(table: TimedTable, column: str) -> tuple[int, int]:
    """The sum of a column, and the rows."""
    total = rows = 0
    for batch in table.batches((column,)):
        total += int(longs(batch[column]).sum())
        rows += len(batch)
    return total, rows


@dataclass(frozen=True, slots=True)
class Visits:
    """Sessions made from all events at once; `events`: the number of events in sessions."""

    sessions: int
    events: int
    visitors: int


def visits_locally(tables: Tables) -> Visits:
    events = tables.by_name["events"].rows(("visitor", "time"))
    codes, names = codes_of(events["visitor"])
    there, times = codes >= 0, longs(events["time"])
    numbers = sessions_of(codes[there], times[there], times[there], round(tables.settings.gap_s * 1e6))
    return Visits(int(numbers.max(initial=-1)) + 1, int(there.sum()), len(names))


def visits_by_spark(session: SparkSession, tables: Tables) -> Visits:
    from pyspark.sql import functions as F

    merged = merge(pieces(tables.by_name["events"].frame(session)), gap_s=tables.settings.gap_s)
    sums = (F.count(F.lit(1)), F.coalesce(F.sum("events"), F.lit(0)), F.count_distinct("visitor"))
    return Visits(*merged.agg(*sums).collect()[0])
