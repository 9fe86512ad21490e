"""Defines the tables of the pipeline: their columns, and the ledger that records their progress.

    TABLE/events  late  malformed            the records, each in exactly one of these tables
    TABLE/windows  pages                     per window, from `events`
    TABLE/sessions  conversions              visits, and per window of their last event
    TABLE/_activity/settings.json            settings of the windows and sessions
    TABLE/_activity/ledger.json              the progress: the last batch that is completely in the tables
    TABLE/_activity/open/BATCH/              sessions that may still grow, after that batch
    TABLE/_checkpoint/                       Spark's checkpoint, unless another directory was given

Rows of the last four tables have the column `final`. It is false for windows and sessions that were still open when a
run ended. The next run removes these rows when it begins and writes them again, updated, at its end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ottla.spark.activity.parse import EVENTS, LATE, MALFORMED
from ottla.spark.lake.timed_table import TimedTable
from ottla.spark.platform.durable import write_json
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.paths import table_path

SCHEMAS: dict[str, tuple[str, str | None]] = {
    "events": (EVENTS, "time"),
    "late": (LATE, "time"),
    "malformed": (MALFORMED, None),
    "windows": (
        "start timestamp, end timestamp, events bigint, views bigint, searches bigint, clicks bigint, bots bigint,"
        " visitors bigint, bytes bigint, bytes_p50 double, bytes_p95 double, errors bigint,"
        " statuses map<string,bigint>, kinds map<string,bigint>, final boolean",
        "start",
    ),
    "pages": (
        "start timestamp, end timestamp, rank int, page string, asset boolean, events bigint, visitors bigint,"
        " bytes bigint, errors bigint, final boolean",
        "start",
    ),
    "sessions": (
        "visitor string, start timestamp, end timestamp, seconds double, events bigint, views bigint, searches bigint,"
        " clicks bigint, errors bigint, bytes bigint, entry string, exit string, referrer string, bot boolean,"
        " conversions bigint, converted boolean, final boolean",
        "end",
    ),
    "conversions": (
        "start timestamp, end timestamp, sessions bigint, converted bigint, bounces bigint, views bigint,"
        " seconds_p50 double, final boolean",
        "start",
    ),
}
"""The columns of each table, and the one by which its files are found."""
RECORD_TABLES = ("events", "late", "malformed")
"""Each record is in one of them."""
RESULT_TABLES = ("windows", "pages", "sessions", "conversions")
"""Tables computed from the events."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Settings of windows and sessions, in seconds; the same for everything in one table directory."""

    window_s: int = 300
    gap_s: float = 1800.0
    top: int = 100
    conversion: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The progress of the tables. Times in microseconds since 1970, UTC; None: not known yet. `latest`: the latest
    event that was not late. `windows_until_us`: windows that end by then are in the tables; `conversions_until_us`
    likewise for conversions. Counts are of all batches from the first."""

    query: str = ""
    batch: int = -1
    latest_us: int | None = None
    watermark_us: int | None = None
    windows_until_us: int | None = None
    conversions_until_us: int | None = None
    events: int = 0
    late: int = 0
    malformed: int = 0
    sessions: int = 0

    @property
    def read(self) -> int:
        return self.events + self.late + self.malformed


@dataclass(slots=True)
class Tables:
    """The tables at `root`, and the ledger. Raises PipelineFailedError if the directory has other contents, or was made
    with other settings."""

    root: Path
    settings: WindowSettings
    by_name: dict[str, TimedTable] = field(default_factory=dict)

    @classmethod
    def make(cls, table: str, settings: WindowSettings) -> Tables:
        root = table_path(table)
        own = root / "_activity" / "settings.json"
        wanted: dict[str, Any] = asdict(settings)
        if own.exists():
            found = json.loads(own.read_text())
            differ = [name for name in wanted if found.get(name) != wanted[name]]
            if differ:
                told = ", ".join(
                    f"{option(name, found.get(name))}, not {option(name, wanted[name])}" for name in differ
                )
                raise PipelineFailedError(f"The tables in {root} were made {told}. Give the same, or another --table.")
        elif root.is_dir() and any(each.name not in ("_checkpoint", "_activity") for each in root.iterdir()):
            raise PipelineFailedError(
                f"{root} is not empty and has no tables of this pipeline: choose another directory."
            )
        else:
            write_json(own, wanted)
        return cls(root, settings, {name: TimedTable(root / name, *schema) for name, schema in SCHEMAS.items()})

    @classmethod
    def open(cls, table: str) -> Tables:
        """Open tables that exist. Raises PipelineFailedError."""
        own = table_path(table) / "_activity" / "settings.json"
        if not own.exists():
            raise PipelineFailedError(f"{table} has no tables of this pipeline. `ottla pipeline activity` makes them.")
        return cls.make(table, WindowSettings(**json.loads(own.read_text())))

    def refresh(self) -> None:
        """Read what other processes have committed."""
        for table in self.by_name.values():
            table.refresh()

    def entry(self) -> Entry:
        path = self.root / "_activity" / "ledger.json"
        return Entry(**json.loads(path.read_text())) if path.exists() else Entry()

    def keep(self, entry: Entry) -> None:
        """Store the tables' progress; the open sessions of earlier batches are not needed any more."""
        write_json(self.root / "_activity" / "ledger.json", asdict(entry))

    def open_sessions(self, batch: int) -> Path:
        return self.root / "_activity" / "open" / str(batch)

    def staging(self) -> Path:
        return self.root / "_activity" / "staging"


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)


def micros(when: datetime) -> int:
    return round(when.timestamp() * 1e6)


def option(name: str, value: object) -> str:
    """A setting as it is given on the command line."""
    flag = f"--{name.removesuffix('_s')}"
    return f"without {flag}" if value is None else f"with {flag} {value}{' s' if name.endswith('_s') else ''}"


__all__ = [
    "RECORD_TABLES",
    "RESULT_TABLES",
    "SCHEMAS",
    "Entry",
    "Tables",
    "WindowSettings",
    "micros",
    "moment",
    "replace",
]
