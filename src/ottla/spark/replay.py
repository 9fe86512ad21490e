"""Reads a range of topics again, from the log, an archive, or both as one table: each offset once.

The archive supplies the offsets that it has; the log supplies those before and after them.

Invariant: the parts of a plan are disjoint, and together they are the whole requested range. Otherwise
`PipelineFailedError` says which offsets neither source has.

Times are those of the records, whose order in a topic is arbitrary. A time range is therefore read from the first
record that is late enough to the end of the log. Only if the broker sets the times (LogAppendTime) does reading stop at
the end of the time range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ottla.client import Client, TopicPartition
from ottla.client.errors import check
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.spark.archive.layout import SPARK_SCHEMA
from ottla.spark.archive.log import Bounds, log_bounds, log_frame, renamed
from ottla.spark.archive.opening import open_table
from ottla.spark.archive.ranges import next_offsets
from ottla.spark.archive.reading import between, chosen, frame_of
from ottla.spark.archive.table import Table
from ottla.spark.platform.failures import OptionsRefusedError, PipelineFailedError
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import stream_options
from ottla.spark.running.run import RunOptions, source_options
from ottla.spark.running.topic_ids import ids_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The requested range: record times in [since_ms, until_ms), offsets in [first, until); None: no bound."""

    since_ms: int | None = None
    until_ms: int | None = None
    first: Mapping[TopicPartition, int] = field(default_factory=dict)
    until: Mapping[TopicPartition, int] = field(default_factory=dict)

    def clip(self, place: TopicPartition, bounds: Bounds) -> Bounds:
        return max(bounds[0], self.first.get(place, bounds[0])), min(bounds[1], self.until.get(place, bounds[1]))


@dataclass(slots=True)
class Plan:
    """Source of each offset. `gaps`: requested, but in neither source."""

    before: dict[TopicPartition, Bounds] = field(default_factory=dict)
    archive: dict[TopicPartition, Bounds] = field(default_factory=dict)
    after: dict[TopicPartition, Bounds] = field(default_factory=dict)
    gaps: dict[TopicPartition, Bounds] = field(default_factory=dict)


def plan(
    wanted: ReplayRange, archived: Mapping[TopicPartition, Bounds], logged: Mapping[TopicPartition, Bounds]
) -> Plan:
    """Plan each offset that archive or log has, once. `archived`, `logged`: each source's offsets per partition."""
    made = Plan()
    for place in sorted(archived.keys() | logged.keys()):
        begin, end = logged.get(place, (0, 0))
        first, until = archived.get(place, (begin, begin))
        parts = ((made.before, (begin, min(first, end))), (made.archive, (first, until)))
        for where, bounds in (*parts, (made.after, (max(begin, until), end))):
            clipped = wanted.clip(place, bounds)
            if clipped[0] < clipped[1]:
                where[place] = clipped
        lowest = min(first, begin) if place in logged else first
        asked = wanted.clip(place, (0, lowest)) if place in wanted.first else (0, 0)
        between_them = wanted.clip(place, (until, begin)) if until < begin else (0, 0)
        for gap in (asked, between_them):
            if gap[0] < gap[1]:
                made.gaps[place] = gap
    return made


def replay(
    session: SparkSession,
    bootstrap: str | None,
    topics: Sequence[str],
    *,
    archive: str | Table | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    first: Mapping[TopicPartition, int] | None = None,
    end: Mapping[TopicPartition, int] | None = None,
    kafka: Mapping[str, str] | None = None,
    allow_gaps: bool = False,
) -> DataFrame:
    """The records of `topics` with times in [since, until) (ms, or datetimes) and offsets in [first, end) per (topic,
    partition), in the source's columns with headers; each offset once.

    `bootstrap` None: of the archive alone. `archive` None: of the log alone. The log's end is that of the call.
    Raises PipelineFailedError for a topic that neither has, and for offsets that neither holds, unless `allow_gaps`.
    """
    wanted = ReplayRange(millis(since), millis(until), first or {}, end or {})
    table = open_table(archive) if isinstance(archive, str) else archive
    if table is None and bootstrap is None:
        raise OptionsRefusedError("Nothing to replay from: neither a broker nor an archive was given.")
    kafka = dict(kafka or {}) if table is None else table.settings.properties(kafka or {})
    options = None if bootstrap is None else RunOptions(bootstrap, None, kafka=kafka)
    called = {topic: topic for topic in topics} if table is None else names_of(table, options, topics)
    archived = held_by(table, called)
    logged = {} if options is None else log_bounds(options, topics)
    require_all(topics, archived, logged)
    made = plan(wanted, archived, logged)
    if made.gaps and not allow_gaps:
        some = ", ".join(f"{topic}-{part} {a} to {b - 1}" for (topic, part), (a, b) in list(made.gaps.items())[:4])
        raise PipelineFailedError(
            f"Neither the log nor the archive holds these offsets any more: {some}. Replay without them?"
        )
    frames = (
        [from_archive(session, table, made.archive, archived, wanted, called)]
        if table is not None and made.archive
        else []
    )
    if options is not None:
        for part in (made.before, made.after):
            narrowed = narrow(options, part, wanted)
            if narrowed:
                frames.append(log_frame(session, options, narrowed).select(*COLUMNS))
    if not frames:
        return session.createDataFrame([], SPARK_SCHEMA).select(*COLUMNS)
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return between(whole, wanted.since_ms, wanted.until_ms)


def millis(time: datetime | int | None) -> int | None:
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time


# ---- available offsets ---------------------------------------------------------------------------------------------


def names_of(table: Table, options: RunOptions | None, topics: Sequence[str]) -> dict[str, str]:
    """Return the topics' names in an archive. Raises PipelineFailedError if the log's topic of that name is a different
    one."""
    ids = {} if options is None else ids_at(options, topics)
    if others := [topic for topic in sorted(ids) if table.names.is_another(topic, ids[topic])]:
        raise PipelineFailedError(
            f"{', '.join(others)} was deleted and created again since it was archived: {table.path} and the log are of "
            "two topics. Replay from one of them: --archive-only, or without --table."
        )
    return {topic: table.names.called(topic) if topic in ids else topic for topic in topics}


def held_by(table: Table | None, called: Mapping[str, str]) -> dict[TopicPartition, Bounds]:
    """Return the archive's offset ranges of these topics."""
    if table is None:
        return {}
    topics = {name: topic for topic, name in called.items()}
    covered = [replace(each, topic=topics[each.topic]) for each in table.covered() if each.topic in topics]
    ends = next_offsets(covered)
    return {place: (min(each.first for each in covered if each.place == place), end) for place, end in ends.items()}


def require_all(
    topics: Sequence[str], archived: Mapping[TopicPartition, Bounds], logged: Mapping[TopicPartition, Bounds]
) -> None:
    there = {topic for topic, _ in archived.keys() | logged.keys()}
    if missing := [topic for topic in topics if topic not in there]:
        raise PipelineFailedError(f"There is no topic {', '.join(missing)}, neither at the broker nor in the archive.")


def broker_times(options: RunOptions, topics: Sequence[str]) -> set[str]:
    """Return the topics whose records have the broker's time, which never goes back."""
    given = source_options(options, topics)
    wanted = [DescribeConfigsResource(ConfigResourceType.TOPIC, topic, ["message.timestamp.type"]) for topic in topics]
    client: Client = stream_options(given).client.connect()
    with client:
        answer = client.send(DescribeConfigsRequest(resources=wanted))
    found: set[str] = set()
    for each in answer.results:
        check(each.error_code, f"the configuration of {each.resource_name}", each.error_message)
        if any(config.value == "LogAppendTime" for config in each.configs):
            found.add(each.resource_name)
    return found


def narrow(
    options: RunOptions, part: Mapping[TopicPartition, Bounds], wanted: ReplayRange
) -> dict[TopicPartition, Bounds]:
    """Return the part of the log's ranges that can hold records of the requested time."""
    found = dict(part)
    if not found or (wanted.since_ms is None and wanted.until_ms is None):
        return found
    cluster = Cluster(stream_options(source_options(options, sorted({topic for topic, _ in part}))))
    try:
        if wanted.since_ms is not None:
            for place, offset in cluster.offsets(dict.fromkeys(part, wanted.since_ms)).items():
                first, until = found[place]
                found[place] = (max(first, until if offset < 0 else offset), until)
        if wanted.until_ms is not None:
            ordered = broker_times(options, sorted({topic for topic, _ in part}))
            timed = {place: wanted.until_ms for place in part if place[0] in ordered}
            for place, offset in cluster.offsets(timed).items():
                first, until = found[place]
                found[place] = (first, until if offset < 0 else min(until, offset))
    finally:
        cluster.close()
    return {place: bounds for place, bounds in found.items() if bounds[0] < bounds[1]}


# ---- records -------------------------------------------------------------------------------------------------------


def from_archive(
    session: SparkSession,
    table: Table,
    part: Mapping[TopicPartition, Bounds],
    archived: Mapping[TopicPartition, Bounds],
    wanted: ReplayRange,
    called: Mapping[str, str],
) -> DataFrame:
    """Return the records that come from the archive, where the topics may have other names."""
    named = [(called[topic], number) for topic, number in part]
    places = named if wanted.first or wanted.until else None
    files = chosen(table.files(), {name for name, _ in named}, wanted.since_ms, wanted.until_ms, places)
    if wanted.first or wanted.until:
        low, high = min(first for first, _ in part.values()), max(until for _, until in part.values())
        files = [each for each in files if each.offsets[0] < high and each.offsets[1] >= low]
    frame = frame_of(session, table.path, (each.path for each in files)).select(*COLUMNS)
    frame = renamed(frame, {name: topic for topic, name in called.items()})
    if all(part.get(place) == bounds for place, bounds in archived.items()):
        return frame
    from pyspark.sql import functions as F

    rows = [(topic, number, first, until) for (topic, number), (first, until) in part.items()]
    bounds = session.createDataFrame(rows, "topic string, partition int, first long, until long")
    inside = (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("until"))
    return frame.join(F.broadcast(bounds), ["topic", "partition"]).where(inside).select(*COLUMNS)
