"""Keeps an archive as a plain directory of Parquet files that any reader may open, with each batch exactly once.

Executors write below `_ottla/staging`, which readers skip. A commit is one file of the log, `_ottla/log/N.json`. It is
hard-linked under its number, which fails if another archive has used the number. Then the files of the batch are
renamed into their places. The next process that opens the archive finishes the renames that a killed process left.

Invariants: a file that readers see belongs to a committed batch, and no file is ever visible twice. While a batch is
being published, readers may see a part of it, and the rest a moment later. A reader that must not see a part reads the
log.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.client import TopicPartition
from ottla.spark.archive.layout import OWN, STAGING, ArchiveBatch, TableFile
from ottla.spark.archive.ranges import Covered, joined, next_offsets
from ottla.spark.archive.table import ArchiveSettings, Table, TableChangedError
from ottla.spark.platform.durable import sync_folder, write_json
from ottla.spark.platform.failures import PipelineFailedError

LOG = f"{OWN}/log"
FOLDED = f"{OWN}/log/folded.json"
FOLD_AT = 500


class PlainFolder(Table):
    """A folder of Parquet files at `path`."""

    def __init__(self, path: Path, settings: ArchiveSettings) -> None:
        super().__init__(path, settings)
        (path / LOG).mkdir(parents=True, exist_ok=True)
        self._next = 0
        self._unfolded = 0
        self._queries: dict[str, int] = {}
        self._covered: list[Covered] = []
        self._files: dict[str, TableFile] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.refresh()

    @property
    def writes_to(self) -> Path:
        return self.path / STAGING

    def refresh(self) -> None:
        while (content := self._read(self._next)) is not None:
            self._take(content)
        self._move()

    def _read(self, number: int) -> dict[str, Any] | None:
        """Read entry `number` of the log; the folded file replaces all of its entries."""
        try:
            return json.loads((self.path / LOG / f"{number:020}.json").read_bytes())
        except FileNotFoundError:
            pass
        try:
            folded = json.loads((self.path / FOLDED).read_bytes())
        except FileNotFoundError:
            return None
        return folded if folded["next"] > number else None

    def _take(self, content: dict[str, Any]) -> None:
        if "next" in content:
            self._next, self._unfolded = content["next"], 0
            self._queries, self._covered, self._files = {}, [], {}
        else:
            self._next, self._unfolded = self._next + 1, self._unfolded + 1
        self._queries |= content["queries"]
        self._covered = joined([*self._covered, *(Covered(**each) for each in content["ranges"])])
        self._files |= {each["path"]: TableFile.from_json(each) for each in content["files"]}
        self._ends = next_offsets(self._covered)

    def _move(self) -> None:
        """Rename published files that are still in staging, because their process was killed."""
        staging = self.path / STAGING
        self._show([str(each.relative_to(staging)) for each in staging.glob("topic=*/date=*/*.parquet")])

    def _show(self, paths: list[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            if path not in self._files:
                continue
            whole = self.path / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            try:
                (self.path / STAGING / path).rename(whole)
            except FileNotFoundError:
                continue  # another process did it
            folders |= {whole.parent, whole.parent.parent, self.path}
        for folder in folders:
            sync_folder(folder)

    def committed(self, query: str) -> int | None:
        return self._queries.get(query)

    def next_offset(self, place: TopicPartition) -> int | None:
        return self._ends.get(place)

    def publish(self, batch: ArchiveBatch) -> None:
        content = {
            "queries": {batch.query: batch.number},
            "ranges": [asdict(each) for each in batch.covered],
            "files": [each.as_json() for each in batch.files],
        }
        part = self.path / LOG / f".{batch.query}.{batch.number}.part"
        write_json(part, content)
        try:
            self._link(part, batch)
        finally:
            part.unlink()
        sync_folder(part.parent)
        self._take(content)
        self._show([each.path for each in batch.files])
        if self._unfolded >= FOLD_AT:
            self._fold()

    def _link(self, part: Path, batch: ArchiveBatch) -> None:
        """Use the next number of the log. If another archive used it first, continue only if its entry is of other
        partitions."""
        before = {each.place: self._ends.get(each.place) for each in batch.covered}
        while True:
            try:
                os.link(part, self.path / LOG / f"{self._next:020}.json")
            except FileExistsError:
                self.refresh()
            else:
                return
            if before != {place: self._ends.get(place) for place in before}:
                raise TableChangedError(
                    f"Batch {batch.number} can't be added to {self.path}: another archive writes the same topics."
                )

    def _fold(self) -> None:
        """Fold all entries but the last into one file; the last stays for archives that look for its number."""
        content = {
            "next": self._next,
            "queries": self._queries,
            "ranges": [asdict(each) for each in self._covered],
            "files": [each.as_json() for each in self._files.values()],
        }
        write_json(self.path / FOLDED, content)
        self._unfolded = 0
        for each in sorted((self.path / LOG).glob("0*.json")):
            if int(each.stem) < self._next - 1:
                each.unlink()

    def covered(self) -> list[Covered]:
        return list(self._covered)

    def files(self) -> list[TableFile]:
        return list(self._files.values())

    def seen(self) -> list[str]:
        return sorted(str(each.relative_to(self.path)) for each in self.path.glob("topic=*/date=*/*.parquet"))

    def compact(self, target_bytes: int) -> tuple[int, int]:
        raise PipelineFailedError(
            f"{self.path} is plain Parquet: programs that read the directory while files are merged would see records"
            " twice or not at all. Use `--format delta` for an archive that you want to compact."
        )

    def vacuum(self, retention_hours: float, *, dry_run: bool) -> list[str]:
        """Remove old files in staging: they belong to batches whose process was killed."""
        self.refresh()
        before_s = time.time() - retention_hours * 3600
        old = [each for each in (self.path / STAGING).rglob("*.parquet") if each.stat().st_mtime < before_s]
        if not dry_run:
            for each in old:
                each.unlink(missing_ok=True)
        return sorted(str(each.relative_to(self.path)) for each in old)
