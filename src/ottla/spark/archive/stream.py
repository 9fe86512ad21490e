"""Runs the archive's query: micro-batches of offset ranges to files, and each batch to one commit of the table.

This order of steps makes it exactly-once:

1. Spark writes a batch's end offsets into its checkpoint.
2. Executors fetch the planned ranges, write files and fsync them.
3. The driver commits them with the batch's id and each partition's next offset.
4. Spark records that the batch is done.

After a kill before step 3, the files are orphans, and Spark repeats the batch over the same offsets. After a later
kill, the table has the batch, so the repeated batch is skipped. Spark counts ranges here; `Publisher.counts` has the
numbers of records.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ottla.client import TopicPartition
from ottla.spark.archive.fetching import fetch_files
from ottla.spark.archive.layout import ArchiveBatch, TableFile
from ottla.spark.archive.opening import make_table
from ottla.spark.archive.ranges import Covered
from ottla.spark.archive.start import decide
from ottla.spark.archive.table import ArchiveSettings, Table
from ottla.spark.archive.writing import WriteFiles
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import SourceOptions
from ottla.spark.running.checkpoints import Checkpoint
from ottla.spark.running.micro_batches import MicroBatchPipeline
from ottla.spark.running.progress import BatchRows
from ottla.spark.running.run import Finished, RunOptions, require_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "archive"
BATCH_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class Archived:
    """Result of a run, counted by its commits; `again`: batches that the table already had."""

    rows: int
    bytes: int
    files: int
    batches: int
    again: int
    holes: int
    table_rows: int
    seconds: float
    stopped: bool

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.seconds and self.rows else ""
        again = f" {self.again} batches were in the table already." if self.again else ""
        holes = f" The log has no record at {self.holes:,} of the offsets." if self.holes else ""
        return (
            f"Archived {self.rows:,} rows ({self.bytes:,} bytes) in {self.files} files and {self.batches} commits in "
            f"{self.seconds:.1f} s{rate}; the table has {self.table_rows:,}.{again}{holes}"
        )


@dataclass(slots=True)
class Publisher:
    """Publishes each micro-batch in the table: what `foreachBatch` calls, on the driver."""

    table: Table
    checkpoint: Checkpoint
    compression: str
    reading: SourceOptions
    """How tasks read their ranges."""
    log: Cluster
    """Asked which topics these are, and where a partition begins when records may be lost."""
    allow_loss: bool = False
    rows: int = 0
    bytes: int = 0
    files: int = 0
    batches: int = 0
    again: int = 0
    holes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    """Records by batch, for batches whose count has not been requested yet."""
    _query: str = field(default="")

    def __call__(self, frame: DataFrame, number: int) -> None:
        self._query = self._query or self.checkpoint.query()
        ends = self.checkpoint.ends(number)
        if ends is None:
            raise PipelineFailedError(f"The checkpoint {self.checkpoint.path} does not say where batch {number} ends.")
        starts = self.checkpoint.ends(number - 1) or {}
        self.table.refresh()
        if self.there_already(number, starts, ends):
            self.again += 1
            return
        files, spans = self.write(frame, number, {topic for topic, _ in ends})
        covered = tuple(self.named(self.checked(starts, ends, spans)))
        batch = ArchiveBatch(self._query, number, covered, tuple(files))
        if sum(file.rows for file in files) != batch.rows:
            raise PipelineFailedError(
                f"Batch {number}: {batch.rows} records were read, but the files hold another number."
            )
        self.table.publish(batch)
        self.rows += batch.rows
        self.counts[number] = batch.rows
        self.bytes += sum(file.size for file in files)
        self.files += len(files)
        self.batches += 1
        self.holes += sum(each.until - each.first - each.count for each in covered)

    def counted(self, number: int) -> BatchRows:
        return BatchRows(self.counts.pop(number, 0))

    def there_already(
        self, number: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether the table has the batch. Raises PipelineFailedError if the table is neither at the batch's beginning
        nor at its end: another archive wrote to it, or the checkpoint is an old copy."""
        moved = {place: until for place, until in ends.items() if until > starts.get(place, 0)}
        found = {place: self.table.archived_to(place) for place in moved}
        last = self.table.committed(self._query)
        if last is not None and last >= number and found == moved:
            return True
        for (topic, partition), archived in sorted(found.items()):
            first = starts.get((topic, partition), 0)
            if archived is not None and archived != first:
                raise PipelineFailedError(
                    f"Batch {number} begins at offset {first} of {topic}-{partition}, but the table {self.table.path} "
                    f"ends at {archived}: another archive writes to it, or the checkpoint is an old copy. Stop the "
                    "other, or give another --checkpoint: the archive then continues from the end of the table."
                )
        return False

    def write(
        self, frame: DataFrame, number: int, topics: Collection[str]
    ) -> tuple[list[TableFile], dict[TopicPartition, list[tuple[int, int, int]]]]:
        """Write the batch's files on the executors; return (first, last, count) of each partition."""
        called = {topic: self.table.names.called(topic) for topic in topics}
        prefix = f"{self._query[:8]}-{number:06}"
        plan = WriteFiles(str(self.table.writes_to), prefix, self.compression, called=called)
        reports = fetch_files(frame, plan, self.reading)
        spans: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for topic, partition, first, last, count in (span for report in reports for span in report["spans"]):
            spans.setdefault((topic, partition), []).append((first, last, count))
        return [TableFile.from_json(file) for report in reports for file in report["files"]], spans

    def checked(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        spans: Mapping[TopicPartition, list[tuple[int, int, int]]],
    ) -> list[Covered]:
        """The ranges of the batch with their counts, once they are what was planned: nothing outside, nothing twice.
        Raises PipelineFailedError."""
        made: list[Covered] = []
        if odd := spans.keys() - ends.keys():
            raise PipelineFailedError(f"Records came of what was not planned: {sorted(odd)}.")
        for place, until in sorted(ends.items()):
            first = starts.get(place, 0)
            if until <= first:
                continue
            seen = sorted(spans.get(place, ()))
            apart = all(a[1] < b[0] for a, b in itertools.pairwise(seen))
            count = sum(each[2] for each in seen)
            if seen and (not apart or seen[0][0] < first or seen[-1][1] >= until or count > until - first):
                raise PipelineFailedError(
                    f"{place[0]}-{place[1]}: offsets {first} to {until - 1} were planned, but records came of {seen}."
                )
            lost = self.lost(place, first, seen[0][0] if seen else until)
            made.append(Covered(place[0], place[1], first, until, count, lost))
        return made

    def named(self, covered: Sequence[Covered]) -> list[Covered]:
        """Return the ranges with the topics' names in the table. Raises MadeAgainError if the id of a topic has
        changed."""
        for topic, topic_id in self.log.topic_ids(sorted({each.topic for each in covered})).items():
            self.table.names.learn(topic, topic_id)
        return [replace(each, topic=self.table.names.called(each.topic)) for each in covered]

    def lost(self, place: TopicPartition, first: int, came: int) -> int:
        """Count the offsets at the front of a range that were lost before they could be read; 0 unless loss is
        allowed."""
        if not self.allow_loss or came == first:
            return 0
        return max(min(self.log.earliest([place]).get(place, came), came) - first, 0)


def run(
    options: RunOptions,
    topics: Sequence[str] | re.Pattern[str],
    table: str,
    *,
    format: str = "delta",
    starting: str = "earliest",
    read_committed: bool = False,
    batch_rows: int = BATCH_ROWS,
    compression: str = "zstd",
    allow_loss: bool = False,
    session: SparkSession | None = None,
) -> Archived:
    """Archive topics into the lake table at `table`, each record once, until stopped or (`options.once`) done.

    `starting`: earliest or latest, for what the table does not have yet. Raises PipelineFailedError.
    """
    require_topics(options, topics)
    kafka = {"isolation.level": "read_committed", **options.kafka} if read_committed else dict(options.kafka)
    committed = kafka.get("isolation.level", "read_uncommitted") == "read_committed"
    lake = make_table(table, ArchiveSettings(format, committed))
    options = replace(options, kafka=kafka)
    pipeline = MicroBatchPipeline.into(lake.path, QUERY, options, topics, allow_loss=allow_loss, includeHeaders="true")
    began = time.monotonic()
    with pipeline.session(session) as spark, closing(Cluster(pipeline.reading)) as log:
        publisher = Publisher(lake, pipeline.checkpoint(spark), compression, pipeline.reading, log, allow_loss)
        begun = begin(pipeline.options, topics, starting, publisher)
        finished = pipeline.run(spark, publisher, batch_rows=batch_rows, starting=begun)
    lake.refresh()
    return figures(publisher, lake, finished, time.monotonic() - began)


def begin(options: RunOptions, topics: Sequence[str] | re.Pattern[str], starting: str, publisher: Publisher) -> str:
    """Return the archive's start for the source; report it if it differs from the request."""
    table, checkpoint = publisher.table, publisher.checkpoint
    start = decide(options, topics, starting, table, checkpoint, allow_loss=publisher.allow_loss)
    if start.said:
        print(start.said, file=sys.stderr, flush=True)
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(start.offsets.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(offsets)


def figures(publisher: Publisher, lake: Table, finished: Finished, seconds: float) -> Archived:
    return Archived(
        rows=publisher.rows,
        bytes=publisher.bytes,
        files=publisher.files,
        batches=publisher.batches,
        again=publisher.again,
        holes=publisher.holes,
        table_rows=sum(file.rows for file in lake.files()),
        seconds=finished.seconds or seconds,
        stopped=finished.stopped,
    )
