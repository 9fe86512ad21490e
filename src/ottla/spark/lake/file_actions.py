"""Describes finished Parquet files to Delta: statistics from their footers, and the add actions of a commit.

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

import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ottla.spark.platform.durable import sync_file, sync_folder

Statistics: TypeAlias = Mapping[str, Any]
"""Of one file, under Delta's names: numRecords, minValues, maxValues, nullCount."""


def move_in(files: Iterable[tuple[Path, Statistics]], table: Path, prefix: str) -> list[AddAction]:
    """Move files, each with its statistics, into the table's folder under new names, durably. Return the actions that
    add them."""
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
