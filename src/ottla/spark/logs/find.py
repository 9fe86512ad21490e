"""Finds text in the table of lines, without Spark.

Delta's file statistics show which files have no line of the requested time or services; these are never opened. Other
files are read a batch at a time, and only matching lines are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ottla.spark.lake.file_actions import aware
from ottla.spark.logs.formats import LEVELS
from ottla.spark.logs.line import NAMED_LEVELS
from ottla.spark.platform.failures import OptionsRefusedError, PipelineFailedError

SHOWN = ("time", "timestamp", "service", "host", "file", "level", "component", "message", "raw", "format", "topic",
         "partition", "offset")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchCriteria:
    """Search criteria. `text` is searched in a line's raw text, ignoring case, unless `regex` (RE2, as written).

    A line without a time has the time of its record. `levels` may have any level names that logs use.
    """

    text: str
    regex: bool = False
    case: bool = False
    since: datetime | None = None
    until: datetime | None = None
    services: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    limit: int = 1_000


def level_of(name: str) -> str:
    """Return the level for any of its names: WARNING is WARN, `emerg` is FATAL. Raises PipelineFailedError."""
    level = NAMED_LEVELS.get(name.lower())
    if level is None:
        raise OptionsRefusedError(f"{name!r} is no level: there are {', '.join(LEVELS)}.")
    return level


@dataclass(frozen=True, slots=True)
class Hits:
    """Lines as dictionaries of SHOWN, by time. `found`: the number of all, also beyond the limit. `files`: number of
    opened and of all files. `services`: those in the table, if no line of the requested ones was found."""

    lines: Sequence[dict[str, Any]]
    found: int
    read: int
    files: tuple[int, int]
    services: Sequence[str] | None = None


def find(table: str, wanted: SearchCriteria) -> Hits:
    """Search the lines of a pipeline's table. Raises PipelineFailedError if there is none, or for an invalid regex."""
    root = Path(table).absolute() / "lines"
    wanted = replace(wanted, levels=tuple(map(level_of, wanted.levels)))
    try:
        delta = DeltaTable(str(root))
    except DeltaError:
        raise PipelineFailedError(
            f"There is no table of log lines in {table}: `ottla pipeline logs` makes it."
        ) from None
    names = list(pruned(pa.table(delta.get_add_actions(flatten=True)), wanted))
    total = len(pa.table(delta.get_add_actions()))
    found, read, kept = 0, 0, []
    for batch, rows in scanned([str(root / name) for name in names], wanted):
        read += rows
        found += len(batch)
        if found:
            kept.append(batch)
        if sum(map(len, kept)) > 4 * wanted.limit:
            kept = [earliest(kept, wanted.limit)]
    lines = earliest(kept, wanted.limit).to_pylist() if kept else []
    services = services_of(delta.file_uris()) if wanted.services and not found else None
    return Hits(lines, found, read, (len(names), total), services)


def pruned(actions: pa.Table, wanted: SearchCriteria) -> Iterator[str]:
    """Select the files that may have matching lines, by their statistics; a missing statistic may be any value."""
    for row in actions.to_pylist():
        low, high = row.get("min.service"), row.get("max.service")
        if wanted.services and low is not None and not any(low <= each <= high for each in wanted.services):
            continue
        if outside(row, "time", wanted) and outside(row, "timestamp", wanted, unless="time"):
            continue
        yield row["path"]


def outside(row: dict[str, Any], name: str, wanted: SearchCriteria, unless: str | None = None) -> bool:
    """Whether no line of a file has this time within what is wanted; with `unless`, or the file has no line whose time
    it would be."""
    if unless is not None and row.get(f"null_count.{unless}") == 0:
        return True
    low, high = row.get(f"min.{name}"), row.get(f"max.{name}")
    if low is None or high is None:
        return row.get(f"null_count.{name}") == row.get("num_records") and row.get("num_records") is not None
    before = wanted.since is not None and aware(high) < wanted.since.replace(microsecond=0)
    return before or (wanted.until is not None and aware(low) >= wanted.until)


def scanned(files: Sequence[str], wanted: SearchCriteria) -> Iterator[tuple[pa.Table, int]]:
    """(what is wanted, rows read) of the files, batch by batch."""
    if not files:
        return
    functions: Any = pc
    moment = functions.coalesce(pc.field("time"), pc.field("timestamp"))
    condition: Any = None
    for each in (
        None if wanted.since is None else moment >= pa.scalar(wanted.since, pa.timestamp("us", "UTC")),
        None if wanted.until is None else moment < pa.scalar(wanted.until, pa.timestamp("us", "UTC")),
        pc.field("service").isin(list(wanted.services)) if wanted.services else None,
        pc.field("level").isin(list(wanted.levels)) if wanted.levels else None,
    ):
        if each is not None:
            condition = each if condition is None else condition & each
    dataset: Any = ds.dataset(list(files), format="parquet")
    for batch in dataset.to_batches(columns=list(SHOWN), filter=condition, batch_size=65_536):
        yield pa.Table.from_batches([batch.filter(matching(batch.column("raw"), wanted))]), len(batch)


def services_of(files: Sequence[str]) -> list[str]:
    """The services whose lines are in the files."""
    functions: Any = pc
    found: set[str] = set()
    if files:
        dataset: Any = ds.dataset(list(files), format="parquet")
        for batch in dataset.to_batches(columns=["service"]):
            found.update(functions.unique(batch.column("service")).to_pylist())
    return sorted(found)


def matching(raw: Any, wanted: SearchCriteria) -> Any:
    functions: Any = pc
    test = functions.match_substring_regex if wanted.regex else functions.match_substring
    try:
        return test(raw, wanted.text, ignore_case=not wanted.case)
    except pa.ArrowInvalid as error:
        reason = re.sub(r"^.*?: ", "", str(error))
        raise OptionsRefusedError(f"{wanted.text!r} is no regular expression: {reason}.") from None


def earliest(kept: Sequence[pa.Table], limit: int) -> pa.Table:
    """The first lines by time."""
    joined = pa.concat_tables(kept)
    functions: Any = pc
    moments = functions.coalesce(joined.column("time"), joined.column("timestamp"))
    by = joined.append_column("_at", moments).sort_by(
        [("_at", "ascending"), ("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )
    return by.slice(0, limit).drop_columns(["_at"])
