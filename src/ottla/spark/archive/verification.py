"""Proves that an archive has every offset once: compares its files with its own commits, and with the log.

Each partition has three sets of offsets: those in the files, those the commits covered (with counts), those the log
still holds. Executors turn rows into runs of consecutive offsets, so the driver compares runs, not rows. The files are
read as any reader would read them.

`problems` describes what is wrong. Offsets that the log itself lacks (compaction, control batches, aborted
transactions) are `holes`. The counts of the commits distinguish them from losses, even when the log has dropped them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ottla.client import TopicPartition
from ottla.spark.archive.log import Bounds, log_bounds, log_frame
from ottla.spark.archive.names import topic_of
from ottla.spark.archive.ranges import EMPTY, Covered, Runs, once_and_twice, run, runs_of, union
from ottla.spark.archive.reading import frame_of
from ottla.spark.archive.table import Table
from ottla.spark.archive.writing import places
from ottla.spark.platform.workers import WorkerFunction
from ottla.spark.running.run import RunOptions
from ottla.spark.running.topic_ids import ids_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS_SCHEMA = "topic string, partition int, first long, until long, count long"


@dataclass(frozen=True, slots=True)
class Checked:
    """One partition: archived are the offsets [first, until), the log holds [log_first, log_until), None without it."""

    topic: str
    partition: int
    first: int
    until: int
    rows: int
    duplicates: int
    missing: int
    holes: int
    lost: int
    gone: int
    log_first: int | None
    log_until: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a verification. `problems` are sentences; it is empty if the archive is complete."""

    partitions: tuple[Checked, ...]
    problems: tuple[str, ...]
    compared: int
    contents: int | None = None

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    def __str__(self) -> str:
        count = f"{self.rows:,} rows in {len(self.partitions)} partitions"
        contents = "" if self.contents is None else f", contents of {self.contents:,} compared"
        if self.problems:
            return f"The archive is NOT whole: {len(self.problems)} problems in {count}."
        beyond = self.rows - self.compared
        alone = f"; {beyond:,} that the log no longer holds by the counts of their commits" if beyond else ""
        return f"Verified {count}: each offset once, {self.compared:,} of them against the log{contents}{alone}."


@dataclass(slots=True)
class Seen:
    """The offsets read from one partition, of the table or of the log."""

    runs: Runs = field(default=EMPTY)
    twice: Runs = field(default=EMPTY)
    rows: int = 0


NOTHING = Seen()


def verify(
    session: SparkSession,
    options: RunOptions,
    table: Table,
    *,
    topics: Collection[str] | None = None,
    content: bool = False,
) -> Verdict:
    """Prove the archive of these topics, or of all. The broker must answer; topics that are gone from it are proven by
    their commits alone. Raises PipelineFailedError."""
    table.refresh()
    covered = [each for each in table.covered() if topics is None or topic_of(each.topic) in topics]
    table.refresh()  # ranges were folded meanwhile, perhaps: the files must not be older than they are
    wanted = {each.topic for each in covered} | set(topics or ())
    paths, problems = sound_files(table, wanted)
    archived = seen_in(frame_of(session, table.path, paths))
    by_place: dict[TopicPartition, list[Covered]] = {}
    for each in covered:
        by_place.setdefault(each.place, []).append(each)
    problems += [
        f"{shown(place)}: files hold it, but no commit covers it." for place in archived if place not in by_place
    ]
    options = replace(options, kafka=table.settings.properties(options.kafka))
    log = Log.of(options, table, {topic_of(topic) for topic, _ in by_place})
    problems += log.problems
    windows = log_windows(by_place, log.bounds)
    logged = seen_in(log.frame(session, windows)) if windows else {}
    checked: list[Checked] = []
    for place, ranges in sorted(by_place.items()):
        one = Comparison(
            place, ranges, archived.get(place, NOTHING), logged.get(place, NOTHING), run(*windows.get(place, (0, 0)))
        )
        checked.append(one.checked(log.bounds.get(place)))
        problems += one.problems
    compared = sum((archived.get(place, NOTHING).runs & run(*window)).total for place, window in windows.items())
    verdict = Verdict(tuple(checked), tuple(problems), compared)
    return verdict if not content else with_contents(session, log, table, paths, windows, verdict)


@dataclass(frozen=True, slots=True)
class Log:
    """The log's current offsets of the archive's topics, by their names in the table. Recreated topics are left out."""

    options: RunOptions
    called: Mapping[str, str]
    bounds: Mapping[TopicPartition, Bounds]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, options: RunOptions, table: Table, topics: set[str]) -> Log:
        others = {topic for topic, id in ids_at(options, sorted(topics)).items() if table.names.is_another(topic, id)}
        called = {topic: table.names.called(topic) for topic in sorted(topics - others)}
        bounds = {(called[topic], number): each for (topic, number), each in log_bounds(options, called).items()}
        problems = [
            f"{topic} was deleted and created again since it was archived: the log is of another topic."
            for topic in sorted(others)
        ]
        return cls(options, called, bounds, tuple(problems))

    def frame(self, session: SparkSession, windows: Mapping[TopicPartition, Bounds]) -> DataFrame:
        """The records of these offsets."""
        topics = {name: topic for topic, name in self.called.items()}
        part = {(topics[name], number): window for (name, number), window in windows.items()}
        return log_frame(session, self.options, part, self.called)


def shown(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"


def sound_files(table: Table, topics: Collection[str]) -> tuple[list[str], list[str]]:
    """(the files that can be read, what is wrong with the others)."""
    problems: list[str] = []
    found: list[str] = []
    known = {file.path: file for file in table.files() if file.topic in topics}
    seen = [path for path in table.seen() if path.split("/")[0].removeprefix("topic=") in topics]
    for path in sorted({*known, *seen}):
        try:
            size = (table.path / path).stat().st_size
        except FileNotFoundError:
            problems.append(f"The file {path} ({known[path].rows:,} rows) is missing.")
            continue
        found.append(path)
        if path not in known:
            problems.append(f"The file {path} was never published, but readers see it.")
        elif size != known[path].size:
            problems.append(f"The file {path} has {size:,} bytes, not the {known[path].size:,} it was published with.")
    return found, problems


# ---- offsets in files and in the log -------------------------------------------------------------------------------


def to_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over (topic, partition, offset): rows (topic, partition, first, until, count)."""
    for batch in batches:
        if not batch.num_rows:
            continue
        topics = batch.column("topic").dictionary_encode()
        names, ids = topics.dictionary.to_pylist(), topics.indices.to_numpy()
        offsets = batch.column("offset").to_numpy()
        for topic_id, partition, rows in places(ids, batch.column("partition").to_numpy()):
            first, until = runs_of(offsets[rows])
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": pa.repeat(names[topic_id], len(first)),
                    "partition": pa.array(np.full(len(first), partition, np.int32)),
                    "first": pa.array(first),
                    "until": pa.array(until),
                    "count": pa.array(until - first),
                }
            )


def seen_in(frame: DataFrame) -> dict[TopicPartition, Seen]:
    """The offsets in a DataFrame with the source's columns, per partition."""
    frame.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "131072")
    found = frame.select("topic", "partition", "offset").mapInArrow(WorkerFunction(to_runs), RUNS_SCHEMA).toArrow()
    if not found.num_rows:
        return {}
    topics = found.column("topic").combine_chunks().dictionary_encode()
    names, ids = topics.dictionary.to_pylist(), topics.indices.to_numpy()
    partitions, first, until, count = (
        found.column(name).to_numpy() for name in ("partition", "first", "until", "count")
    )
    seen: dict[TopicPartition, Seen] = {}
    for topic_id, partition, rows in places(ids, partitions):
        once, twice = once_and_twice(first[rows], until[rows])
        seen[names[topic_id], partition] = Seen(once, twice, int(count[rows].sum()))
    return seen


def log_windows(
    covered: Mapping[TopicPartition, Sequence[Covered]], bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, Bounds]:
    """Return the part of each partition's archived range that the log still holds, if it is not empty."""
    windows: dict[TopicPartition, Bounds] = {}
    for place in covered.keys() & bounds.keys():
        begin, end = bounds[place]
        first, until = min(each.first for each in covered[place]), max(each.until for each in covered[place])
        if max(first, begin) < min(until, end):
            windows[place] = max(first, begin), min(until, end)
    return windows


# ---- comparing -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Comparison:
    """One partition: what was covered, archived, and what the log holds within `window`."""

    place: TopicPartition
    ranges: Sequence[Covered]
    archived: Seen
    logged: Seen
    window: Runs
    problems: list[str] = field(default_factory=list)

    def checked(self, bounds: tuple[int, int] | None) -> Checked:
        """The figures; what is wrong is then in `problems`."""
        pieces = [(each.first, each.until) for each in self.ranges]
        covered = union(pieces)
        first, until = int(covered.first[0]), int(covered.until[-1])
        self._ranges(np.array(pieces, np.int64), covered, first, until)
        there = self.archived.runs
        self.say(self.archived.twice, "twice or more in the table")
        self.say(there - covered, "in the table, but of no commit")
        missing = (self.logged.runs & covered) - there
        self.say(missing, "in the log, but not in the table")
        self._counts(missing)
        if bounds is not None and bounds[1] < until:
            self.problems.append(
                f"{shown(self.place)}: the log ends at {bounds[1]}, before the archive's end {until}: the topic was "
                "created again or truncated."
            )
        short = missing.total + sum(max(each, 0) for each in self.short(missing))
        lost = sum(each.lost for each in self.ranges)
        return Checked(
            *self.place,
            first=first,
            until=until,
            rows=self.archived.rows,
            duplicates=self.archived.rows - there.total,
            missing=short,
            holes=max((covered - there).total - short - lost, 0),
            lost=lost,
            gone=((there & self.window) - self.logged.runs).total,
            log_first=None if bounds is None else bounds[0],
            log_until=None if bounds is None else bounds[1],
        )

    def say(self, wrong: Runs, what: str) -> None:
        if wrong:
            noun = "offset is" if wrong.total == 1 else "offsets are"
            self.problems.append(f"{shown(self.place)}: {wrong.total:,} {noun} {what}: {wrong.shown()}.")

    def _ranges(self, pieces: np.ndarray, covered: Runs, first: int, until: int) -> None:
        _, twice = once_and_twice(pieces[:, 0], pieces[:, 1])
        self.say(twice, "covered by two commits")
        self.say(run(first, until) - covered, "between two commits and covered by none")

    def short(self, missing: Runs) -> list[int]:
        """How many records each commit counted that are in the table no more, beyond those known to be missing."""
        first = np.array([each.first for each in self.ranges], np.int64)
        until = np.array([each.until for each in self.ranges], np.int64)
        counts = np.array([each.count for each in self.ranges], np.int64)
        there = below(self.archived.runs, until) - below(self.archived.runs, first)
        known = below(missing, until) - below(missing, first)
        return (counts - there - known).tolist()

    def _counts(self, missing: Runs) -> None:
        for each, short in zip(self.ranges, self.short(missing), strict=True):
            if short:
                there = each.count - short
                self.problems.append(
                    f"{shown(self.place)}: {each.count:,} records were archived of the offsets {each.first} to "
                    f"{each.until - 1}, but the table and the log have {there:,}."
                )


def below(runs: Runs, offsets: np.ndarray) -> np.ndarray:
    """For each offset how many of the runs' offsets are less."""
    if not runs:
        return np.zeros(len(offsets), np.int64)
    totals = np.concatenate(([0], np.cumsum(runs.until - runs.first)))
    at = np.searchsorted(runs.first, offsets, side="left")
    before = totals[at]
    inside = np.where(at > 0, runs.until[np.maximum(at - 1, 0)] - offsets, 0)
    return before - np.maximum(inside, 0)


# ---- contents ------------------------------------------------------------------------------------------------------


def with_contents(
    session: SparkSession,
    log: Log,
    table: Table,
    paths: Sequence[str],
    windows: Mapping[TopicPartition, Bounds],
    verdict: Verdict,
) -> Verdict:
    """The verdict after keys, values, headers and timestamps were compared as well, where table and log have both."""
    if not windows:
        return replace(verdict, contents=0)
    from pyspark.sql import functions as F

    ours = hashed(frame_of(session, table.path, paths)).withColumnRenamed("hash", "ours")
    theirs = hashed(log.frame(session, windows)).withColumnRenamed("hash", "theirs")
    both = ours.join(theirs, ["topic", "partition", "offset"])
    differs = F.col("ours") != F.col("theirs")
    (figures,) = both.agg(F.count("*").alias("all"), F.count(F.when(differs, True)).alias("wrong")).collect()
    problems = list(verdict.problems)
    if figures["wrong"]:
        rows = both.where(differs).select("topic", "partition", "offset").orderBy("topic", "partition", "offset")
        some = ", ".join(f"{row.topic}-{row.partition}@{row.offset}" for row in rows.limit(3).collect())
        problems.append(f"{figures['wrong']:,} records differ from the log's: {some}.")
    return replace(verdict, problems=tuple(problems), contents=figures["all"])


def hashed(frame: DataFrame) -> DataFrame:
    """(topic, partition, offset, hash): 64 bits over everything else a record has."""
    from pyspark.sql import functions as F

    parts = ["timestamp", "timestampType", "key", "value", "headers"]
    nulls = [F.isnull(name) for name in ("key", "value")]
    return frame.select("topic", "partition", "offset", F.xxhash64(*nulls, *parts).alias("hash"))
