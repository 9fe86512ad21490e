"""Writes records to a new table, Delta or plain Parquet, which readers see as a whole or not at all.

It uses the archive's writer of files. Unlike an archive, the table is written once, by one job, and has no offset
ranges.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.archive.layout import COLUMNS, PARTITIONED_BY, TableFile
from ottla.spark.archive.writing import WriteFiles, write_files
from ottla.spark.platform.durable import sync_folder
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.paths import table_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def export(frame: DataFrame, table: str, format: str = "delta", compression: str = "zstd") -> int:
    """Write records with the source's columns (with headers) into a new table; return their number. Raises
    PipelineFailedError."""
    where = require_new(table)
    part = where.with_name(f".{where.name}.{uuid.uuid4().hex[:8]}.part")
    part.mkdir(parents=True)
    try:
        plan = WriteFiles(str(part), "replay", compression, rising=False)
        files = [TableFile.from_json(each) for report in write_files(frame, plan) for each in report["files"]]
        if format == "delta":
            log_files(part, files)
        if where.exists():
            where.rmdir()
        part.rename(where)
        sync_folder(where.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sum(file.rows for file in files)


def require_new(table: str) -> Path:
    """Return the path of a new table. Raises PipelineFailedError if something exists there."""
    where = table_path(table)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise PipelineFailedError(f"{where} exists already; records are written to a new table.")
    return where


def log_files(root: Path, files: list[TableFile]) -> None:
    """Make a Delta table of the files: its log has relative paths, so that the folder may be renamed."""
    from deltalake import Schema
    from deltalake.transaction import create_table_with_add_actions

    from ottla.spark.archive.delta import added

    create_table_with_add_actions(
        str(root), Schema.from_arrow(COLUMNS), [added(file) for file in files], partition_by=PARTITIONED_BY
    )
