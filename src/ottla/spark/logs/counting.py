"""Counts lines per service, window and level in Arrow tables, by the rules of `windows.py`: late lines, error rates.

The input is batches of `parse.SCHEMA`, the output rows of `windows.SCHEMA`. `summed` adds up counts of parts of a
batch: each task counts its own lines, and the driver adds up the few resulting rows.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.lake.schemas import arrow_schema
from ottla.spark.logs import windows
from ottla.spark.logs.formats import ERRORS
from ottla.spark.logs.times import DAY_US, SECOND_US

KEYS = ("service", "start", "level", "format", "late")
TIMESTAMP = pa.timestamp("us", tz="UTC")
COUNTED = arrow_schema(windows.SCHEMA)


def marked(lines: pa.RecordBatch, watermarks: Mapping[str, int], window_s: int) -> tuple[pa.Table, pa.Table]:
    """The lines with `late`, and rows of COUNTED for them. `watermarks`: per service, microseconds since 1970."""
    times = lines["time"].cast(pa.int64())
    timeless = pc.is_null(times).to_numpy(zero_copy_only=False)
    time_us = pc.fill_null(times, 0).to_numpy()
    start_us = time_us // (window_s * SECOND_US) * (window_s * SECOND_US)
    late = is_late(lines["service"], start_us + window_s * SECOND_US, watermarks) & ~timeless
    recorded = lines["timestamp"].cast(pa.int64())
    still = timeless | pc.is_null(recorded).to_numpy(zero_copy_only=False)
    still |= time_us > pc.fill_null(recorded, 0).to_numpy() + DAY_US
    counted = pa.table(
        {
            "service": lines["service"],
            "start": pa.array(start_us, mask=timeless),
            "level": lines["level"],
            "format": lines["format"],
            "late": late,
            "rows": np.ones(len(lines), np.int64),
            "latest": pa.array(time_us, mask=still),
        }
    )
    return pa.Table.from_batches([lines]).append_column("late", pa.array(late)), summed([counted], window_s)


def is_late(service: pa.Array, end_us: Any, watermarks: Mapping[str, int]) -> Any:
    """Whether the window that ends then is closed, of each line."""
    if not watermarks:
        return np.zeros(len(service), bool)
    encoded = service.dictionary_encode()
    least = np.iinfo(np.int64).min
    marks = np.array([watermarks.get(each, least) for each in encoded.dictionary.to_pylist()], np.int64)
    return end_us <= marks[encoded.indices.to_numpy()]


def summed(parts: Iterable[pa.Table], window_s: int) -> pa.Table:
    """Rows of COUNTED, one for each of KEYS. Of `parts` the columns KEYS, rows and latest."""
    columns = [*KEYS, "rows", "latest"]
    schema = pa.schema([COUNTED.field(each) for each in columns])
    given = [part.select(columns).cast(schema) for part in parts]
    if not given:
        return COUNTED.empty_table()
    found = pa.concat_tables(given).group_by([*KEYS]).aggregate([("rows", "sum"), ("latest", "max")])
    end = pc.add(found["start"].cast(pa.int64()), window_s * SECOND_US).cast(TIMESTAMP)
    renamed = {**{name: found[name] for name in KEYS}, "end": end}
    renamed |= {"rows": found["rows_sum"], "latest": found["latest_max"]}
    return pa.table([renamed[name] for name in COUNTED.names], COUNTED)


def latest_of(counted: pa.Table) -> dict[str, int]:
    """Per service the latest time that moves its watermark, in microseconds."""
    found = counted.group_by("service").aggregate([("latest", "max")])
    times = found["latest_max"].cast(pa.int64()).to_pylist()
    return {
        service: time for service, time in zip(found["service"].to_pylist(), times, strict=True) if time is not None
    }


def rates(counted: pa.Table) -> list[dict[str, Any]]:
    """Per service and window: rows, errors, error_rate, late, levels. Late lines are in all of them."""
    found: dict[tuple[str, datetime], dict[str, Any]] = {}
    for row in counted.filter(pc.is_valid(counted["start"])).to_pylist():
        window = found.setdefault(
            (row["service"], row["start"]),
            {"service": row["service"], "start": row["start"], "end": row["end"], "rows": 0, "errors": 0,
             "error_rate": 0.0, "late": 0, "levels": {}},
        )  # fmt: skip
        level = row["level"] or "NONE"
        window["rows"] += row["rows"]
        window["errors"] += row["rows"] if level in ERRORS else 0
        window["late"] += row["rows"] if row["late"] else 0
        window["levels"][level] = window["levels"].get(level, 0) + row["rows"]
        window["error_rate"] = window["errors"] / window["rows"]
    return [found[key] for key in sorted(found)]
