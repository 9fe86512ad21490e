"""The figures of the tables, checked by counting again: plain batches over the tables as they are.

Knows: the tables and the ledger. Does not know: how they were made; the ledger's counts are only compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.spark.activity.sessions import merge, pieces
from ottla.spark.activity.tables import COME, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    """Count everything again, in three passes."""
    from pyspark.sql import functions as F

    frames = {name: table.frame(session) for name, table in tables.lakes.items()}
    came = came_to(frames)
    again = merge(pieces(frames["events"]), gap_s=tables.settings.gap_s).agg(
        F.count(F.lit(1)).alias("sessions"),
        F.coalesce(F.sum("events"), F.lit(0)).alias("events"),
        F.count_distinct("visitor").alias("visitors"),
    )
    visits = again.collect()[0]
    made = added(frames, {"windows": "events", "pages": "events", "sessions": "events", "conversions": "sessions"})
    return Totals(
        read=tables.entry().read,
        events=came["events"],
        late=came["late"],
        malformed=came["malformed"],
        records=came["records"],
        in_windows=made["windows"][0],
        in_pages=made["pages"][0],
        in_sessions=made["sessions"][0],
        nameless=came["events"] - visits["events"],
        sessions=made["sessions"][1],
        sessions_again=visits["sessions"],
        in_conversions=made["conversions"][0],
        visitors=visits["visitors"],
        windows=made["windows"][1],
    )


def came_to(frames: dict[str, DataFrame]) -> Any:
    """Rows of each table of COME, and how many different records they are."""
    from pyspark.sql import functions as F

    places = [frames[name].select(F.lit(name).alias("name"), "topic", "partition", "offset") for name in COME]
    each = places[0].unionByName(places[1]).unionByName(places[2]).groupBy("topic", "partition", "offset")
    counts = each.agg(*(F.count_if(F.col("name") == name).alias(name) for name in COME))
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COME]
    return counts.agg(F.count(F.lit(1)).alias("records"), *sums).collect()[0]


def added(frames: dict[str, DataFrame], what: dict[str, str]) -> dict[str, tuple[int, int]]:
    """The sum of one column of each table, and its rows."""
    from pyspark.sql import functions as F

    parts = [
        frames[name]
        .agg(F.coalesce(F.sum(column), F.lit(0)).alias("sum"), F.count(F.lit(1)).alias("rows"))
        .select(F.lit(name).alias("name"), "sum", "rows")
        for name, column in what.items()
    ]
    together = parts[0]
    for part in parts[1:]:
        together = together.unionByName(part)
    return {row["name"]: (row["sum"], row["rows"]) for row in together.collect()}
