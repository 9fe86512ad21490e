"""Opens or creates the table of an archive, in the format that its settings file names."""

from __future__ import annotations

import json
from pathlib import Path

from ottla.spark.archive.layout import SETTINGS
from ottla.spark.archive.table import ArchiveSettings, Table
from ottla.spark.platform.durable import write_json
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.paths import table_path


def open_table(path: str | Path) -> Table:
    """An archive that exists. Raises PipelineFailedError."""
    where = table_path(path)
    try:
        found = json.loads((where / SETTINGS).read_text())
        settings = ArchiveSettings(found["format"], found["read_committed"])
    except FileNotFoundError:
        raise PipelineFailedError(
            f"{where} is no archive. `ottla pipeline archive --topic NAME --table {where}` makes one."
        ) from None
    except (ValueError, KeyError, OSError) as error:
        raise PipelineFailedError(f"{where / SETTINGS} can't be read: {error}.") from None
    return _opened(where, settings)


def make_table(path: str | Path, settings: ArchiveSettings) -> Table:
    """Open or create the archive at `path`. Raises PipelineFailedError if it was made with other settings, or if the
    directory has other contents."""
    where = table_path(path)
    if not (where / SETTINGS).exists():
        if where.is_dir() and any(each.name != "_checkpoint" for each in where.iterdir() if each.name[0] != "."):
            raise PipelineFailedError(f"{where} is not empty and no archive: choose another directory for the table.")
        content = {"version": 1, "format": settings.format, "read_committed": settings.read_committed}
        write_json(where / SETTINGS, content)
    table = open_table(where)
    if table.settings.format != settings.format:
        raise PipelineFailedError(
            f"The archive {where} is of format {table.settings.format}; it can't be continued as {settings.format}."
        )
    if table.settings.read_committed != settings.read_committed:
        was = "committed records alone" if table.settings.read_committed else "uncommitted records too"
        raise PipelineFailedError(
            f"The archive {where} holds {was}; continue with the same isolation level, or use another archive."
        )
    return table


def _opened(where: Path, settings: ArchiveSettings) -> Table:
    if settings.format == "delta":
        from ottla.spark.archive.delta import DeltaLake

        return DeltaLake(where, settings)
    if settings.format == "parquet":
        from ottla.spark.archive.plain import PlainFolder

        return PlainFolder(where, settings)
    raise PipelineFailedError(f"The archive {where} has the unknown format {settings.format!r}.")
