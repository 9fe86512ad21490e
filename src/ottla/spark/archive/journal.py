"""Keeps the offset ranges of a Delta archive's commits: one small file each, folded into one now and then.

The files are `QUERY.BATCH.json`, and `QUERY.BATCH.folded.json`, which replaces the files that it names. Only the query
itself folds its files.

Invariants: the file of a batch is durable before the batch is committed, and counts only once the table has the batch.
Writing it again for a replayed batch replaces it. Ranges and data therefore never disagree, whenever a process dies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.spark.archive.layout import ArchiveBatch
from ottla.spark.archive.ranges import Covered, joined
from ottla.spark.platform.durable import write_json

FOLD_AT = 500


class Journal:
    """The ranges below one folder. `committed`: returns a query's last published batch, None if there is none."""

    def __init__(self, folder: Path, committed: Callable[[str], int | None]) -> None:
        self._folder = folder
        self._committed = committed
        self._written = 0

    def write(self, batch: ArchiveBatch) -> None:
        content = {
            "query": batch.query,
            "batch": batch.number,
            "ranges": [asdict(each) for each in batch.covered],
        }
        write_json(self._folder / f"{batch.query}.{batch.number:012}.json", content)
        self._written += 1

    def covered(self) -> list[Covered]:
        return [each for _, ranges in self._counted() for each in ranges]

    def _counted(self) -> Iterator[tuple[str, list[Covered]]]:
        """Yield (file name, ranges) of every file that counts. If a file disappears meanwhile, a folded file has
        replaced it."""
        for _ in range(3):
            found = self._read()
            names = self._names()
            if not [name for name in names if name not in found]:
                break
        else:
            raise OSError(f"{self._folder} changes all the time")
        replaced = {name for content in found.values() for name in content.get("replaces", ())}
        for name, content in found.items():
            if name not in replaced and self._counts(content):
                yield name, [Covered(**each) for each in content["ranges"]]

    def _counts(self, content: dict[str, Any]) -> bool:
        if "replaces" in content:
            return True
        last = self._committed(content["query"])
        return last is not None and content["batch"] <= last

    def _names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir() if each.suffix == ".json" and each.name[0] != ".")

    def _read(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name in self._names():
            try:
                found[name] = json.loads((self._folder / name).read_bytes())
            except FileNotFoundError:
                continue
        return found

    def fold(self, query: str, at: int = FOLD_AT) -> None:
        """Fold the ranges of a query's commits into one file once there are `at` of them; neighbouring ranges are
        joined."""
        if self._written < at:
            return
        self._written = 0
        counted = [(name, ranges) for name, ranges in self._counted() if name.startswith(f"{query}.")]
        if len(counted) < 2:
            return
        names = [name for name, _ in counted]
        ranges = joined(each for _, found in counted for each in found)
        content = {"query": query, "replaces": names, "ranges": [asdict(each) for each in ranges]}
        last = max(name.split(".")[1] for name in names)
        write_json(self._folder / f"{query}.{last}.folded.json", content)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
