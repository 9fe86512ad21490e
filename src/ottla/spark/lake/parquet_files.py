"""Keeps Parquet files below a directory until they are in a table: writes, describes (by their footers), moves and
removes them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.spark.lake.file_actions import Statistics, aware, statistics
from ottla.spark.platform.durable import sync_file, sync_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that no table has yet, each with its statistics."""

    files: tuple[Path, ...]
    statistics: tuple[Statistics, ...]
    rows: int

    def greatest(self, column: str) -> datetime | None:
        """The latest time in a bounded column."""
        ends = [each["maxValues"].get(column) for each in self.statistics]
        return max((aware(end) for end in ends if end is not None), default=None)


NO_FILES = WrittenFiles((), (), 0)


def described(files: Sequence[Path], bounded: Sequence[str] = ()) -> WrittenFiles:
    """Files with what their footers say; `bounded`: columns whose least and greatest value is wanted."""
    found = tuple(statistics(file, bounded) for file in files)
    return WrittenFiles(tuple(files), found, sum(each["numRecords"] for each in found))


def files_in(folder: Path, bounded: Sequence[str] = ()) -> WrittenFiles:
    """The Parquet files of one folder; no files where it is none."""
    return described(sorted(folder.glob("*.parquet")), bounded)


def write_frame(frame: DataFrame, folder: Path, bounded: Sequence[str]) -> WrittenFiles:
    """Write the rows on the executors to files below `folder`, which must not exist."""
    frame.write.option("compression", "zstd").parquet(uri(folder))
    return files_in(folder, bounded)


def write_rows(rows: pa.Table, folder: Path, schema: pa.Schema, bounded: Sequence[str]) -> WrittenFiles:
    """Write rows that are in memory to a file below `folder`, with the schema's columns in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid.uuid4().hex}.parquet"
    write_file(rows.select(schema.names).cast(schema), file)
    return described([file], bounded)


def write_file(rows: pa.Table, file: Path) -> None:
    pq.write_table(rows, file, compression="zstd", row_group_size=1 << 18)


def uri(path: Path | str) -> str:
    """Return a local path as a URI that Spark accepts whatever its default file system is."""
    return f"file://{path}"


def put_in_place(folder: Path, place: Path) -> None:
    """Move a folder of Spark's files to its place, durably; an existing folder there is replaced."""
    for file in folder.glob("*.parquet"):
        sync_file(file)
    remove_folder(place)
    place.parent.mkdir(exist_ok=True)
    folder.replace(place)
    sync_folder(place)
    sync_folder(place.parent)


def remove_files(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
