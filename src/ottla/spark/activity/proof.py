"""The figures of the tables, checked by counting again: plain batches over the tables as they are.

Knows: the tables and the ledger. Does not know: how they were made; the ledger's counts are only compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.spark.activity.sessions import sessionise
from ottla.spark.activity.tables import COME, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Totals:
    """What the tables hold. `records`: different (topic, partition, offset) in the first three tables; `in_windows`,
    `in_pages`, `in_sessions`: events, added up over the rows of those tables; `nameless`: events without a visitor."""

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
        """What does not add up, as sentences."""
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


def totals(session: SparkSession, tables: Tables) -> Totals:
    """Count everything again."""
    from pyspark.sql import functions as F

    frames = {name: table.frame(session) for name, table in tables.lakes.items()}
    places = [frames[name].select(F.lit(name).alias("name"), "topic", "partition", "offset") for name in COME]
    came = places[0].unionByName(places[1]).unionByName(places[2])
    counts = {row["name"]: row["many"] for row in came.groupBy("name").agg(F.count(F.lit(1)).alias("many")).collect()}
    records = came.select("topic", "partition", "offset").distinct().count()
    events = frames["events"]
    people = events.agg(
        F.count_distinct("visitor").alias("visitors"), F.count_if(F.col("visitor").isNull()).alias("nameless")
    ).collect()[0]

    def added(name: str, what: str) -> int:
        return frames[name].agg(F.sum(what)).collect()[0][0] or 0

    return Totals(
        read=tables.entry().read,
        events=counts.get("events", 0),
        late=counts.get("late", 0),
        malformed=counts.get("malformed", 0),
        records=records,
        in_windows=added("windows", "events"),
        in_pages=added("pages", "events"),
        in_sessions=added("sessions", "events"),
        nameless=people["nameless"],
        sessions=frames["sessions"].count(),
        sessions_again=sessionise(events, gap_s=tables.settings.gap_s).count(),
        in_conversions=added("conversions", "sessions"),
        visitors=people["visitors"],
        windows=frames["windows"].count(),
    )
