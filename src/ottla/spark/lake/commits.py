"""Commits finished Parquet files to Delta tables, by `deltalake` alone: no JVM jars.

The files are on the table's file system; their footers give the statistics. deltalake does not wait for the disk, but
this module does: Spark must not forget a batch before its commit is on disk.

Source: Delta's PROTOCOL.md, "Add File and Remove File", "Per-file Statistics".
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from ottla.spark.platform.durable import sync_file, sync_folder

CONFIGURATION = {"delta.checkpointInterval": "50"}
Statistics: TypeAlias = Mapping[str, Any]
"""Of one file, under Delta's names: numRecords, minValues, maxValues, nullCount."""

TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


def arrow_schema(ddl: str) -> pa.Schema:
    """Return a table's columns, given as Spark's DDL, in Arrow's types. Spark's own parser of DDL needs a session."""
    columns = [each.split() for each in ddl.split(", ")]
    return pa.schema([(name, TYPES[kind]) for name, kind in columns])


def append(
    table: DeltaTable,
    path: Path,
    files: Sequence[AddAction],
    schema: pa.Schema,
    properties: CommitProperties,
    partition_by: list[str] | None = None,
) -> None:
    """Commit files to the table, durably. Raises CommitFailedError where another commit named one of the properties'
    transactions at the same time."""
    table.create_write_transaction([*files], "append", schema, partition_by, commit_properties=properties)
    table.update_incremental()
    sync_log(table, path)


def sync_log(table: DeltaTable, path: Path) -> None:
    """Make the table's last commit durable."""
    log = path / "_delta_log"
    sync_file(log / f"{table.version():020}.json")
    sync_folder(log)


def move_in(files: Iterable[tuple[Path, Statistics]], table: Path, prefix: str) -> list[AddAction]:
    """Give files, each with its statistics, new names in the table's folder, durably: what a commit says of them."""
    added: list[AddAction] = []
    for file, found in files:
        place = table / f"{prefix}-{uuid.uuid4().hex}.parquet"
        sync_file(file)
        file.replace(place)
        added.append(add_action(place.name, place.stat().st_size, {}, found))
    sync_folder(table)
    return added


def add_action(path: str, size: int, partition_values: Mapping[str, str | None], found: Statistics) -> AddAction:
    """A file as Delta's log has it; `path` is relative to the table, `found` its statistics."""
    now_ms = int(time.time() * 1000)
    return AddAction(path, size, partition_values, now_ms, True, json.dumps(found, default=text))


def statistics(file: Path, columns: Sequence[str]) -> Statistics:
    """Delta's statistics of a Parquet file, by its footer, with minValues, maxValues and nullCount of these columns."""
    footer = pq.read_metadata(file)
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in columns:
        place = footer.schema.names.index(name)
        found = [footer.row_group(each).column(place).statistics for each in range(footer.num_row_groups)]
        if not found or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        # a file of nulls alone has no least value, which says that it holds none that is asked for
        mins, maxs = ([getattr(each, end) for each in found if each.has_min_max] for end in ("min", "max"))
        if mins:
            low[name], high[name] = min(mins), max(maxs)
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def text(moment: datetime) -> str:
    """Format a value as in Delta's statistics."""
    return aware(moment).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
