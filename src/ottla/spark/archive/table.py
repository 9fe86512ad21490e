"""Declares what an archive needs of its table, in either format: `delta.DeltaLake` or `plain.PlainFolder`.

Invariants of both formats: a batch is published as a whole or not at all, and once. A partition's next offset only
rises. If two archives publish the same partition at the same time, one fails (`TableChangedError`).

Tables are on a file system that driver and executors share: a local disk for `local[*]`, a mounted one for a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.client import TopicPartition
from ottla.spark.archive.layout import TOPICS, ArchiveBatch, TableFile
from ottla.spark.archive.names import Names
from ottla.spark.archive.ranges import Covered, next_offsets
from ottla.spark.platform.failures import PipelineFailedError


class TableChangedError(PipelineFailedError):
    """Raised if another archive has published the same partitions; nothing of this batch was added."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Settings of an archive; the same for everything that is ever added to it."""

    format: str
    read_committed: bool

    def properties(self, kafka: Mapping[str, str]) -> dict[str, str]:
        """Client properties with the archive's isolation level, so that log and archive are of the same records."""
        return {**kafka, "isolation.level": "read_committed" if self.read_committed else "read_uncommitted"}


class Table(ABC):
    """A lake table of records. Everything is as of the last `refresh`."""

    def __init__(self, path: Path, settings: ArchiveSettings) -> None:
        self.path = path
        self.settings = settings
        self.names = Names(path / TOPICS)

    @property
    @abstractmethod
    def writes_to(self) -> Path:
        """Directory below which executors write their files."""

    @abstractmethod
    def refresh(self) -> None:
        """Read what other processes have published."""

    @abstractmethod
    def committed(self, query: str) -> int | None:
        """The number of the last batch of this query that was published."""

    @abstractmethod
    def next_offset(self, place: TopicPartition) -> int | None:
        """Return the offset at which the archive of a partition continues; None if it has nothing of the partition."""

    @abstractmethod
    def publish(self, batch: ArchiveBatch) -> None:
        """Make the batch's files part of the table, durably. Raises TableChangedError."""

    @abstractmethod
    def covered(self) -> list[Covered]:
        """Every range that was ever published, neighbours perhaps joined."""

    @abstractmethod
    def files(self) -> list[TableFile]:
        """The files that are part of the table, as its own log says."""

    @abstractmethod
    def seen(self) -> list[str]:
        """The files that readers of this format see, relative to the table."""

    @abstractmethod
    def compact(self, target_bytes: int) -> tuple[int, int]:
        """Merge small files; return (files removed, files made). Raises PipelineFailedError if the format does not
        allow it."""

    @abstractmethod
    def vacuum(self, retention_hours: float, *, dry_run: bool) -> list[str]:
        """Remove files that are not part of the table and older than this many hours; return their names."""

    def archived_to(self, place: TopicPartition) -> int | None:
        """Return the next offset for a partition of the log, whatever its topic's name in the archive."""
        return self.next_offset(self.names.place(place))

    def places(self, topics: Collection[str] | None = None) -> list[TopicPartition]:
        """The partitions archived, in order."""
        found = next_offsets(self.covered())
        return sorted(place for place in found if topics is None or place[0] in topics)
