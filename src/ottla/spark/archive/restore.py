"""Writes an archive, or any of its records, back into a topic: same partitions, and the same order in each partition.

The sink's exactly-once writes do the work. A plan on disk extends them across kills: a restore that was killed and is
started again continues its own plan. It writes the same records under the same id, so no record is written twice.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.client import TopicPartition
from ottla.spark.archive.layout import HEADERS_LISTED, OWN
from ottla.spark.archive.log import Bounds, log_bounds
from ottla.spark.archive.reading import chosen, frame_of
from ottla.spark.archive.table import Table
from ottla.spark.platform.durable import write_json
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.run import RunOptions, require_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESTORES = f"{OWN}/restores"
CONNECTION = ("client.id", "request.timeout.ms", "security.protocol")
READING = ("isolation.level", "exclude.internal.topics", "check.crcs")


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore: records by the topic's own offsets, and whether it finished an earlier, killed attempt."""

    topic: str
    rows: int
    partitions: int
    resumed: bool

    def __str__(self) -> str:
        resumed = " An earlier attempt was finished." if self.resumed else ""
        return (
            f"Restored {self.rows:,} records into {self.partitions} partitions of {self.topic}, counted there.{resumed}"
        )


def restore(
    session: SparkSession,
    options: RunOptions,
    table: Table,
    to_topic: str,
    *,
    topic: str | None = None,
    offset_header: str | None = None,
) -> Restored:
    """Write an archived topic into `to_topic`, each record once, also across kills; then compare the counts.

    `topic`: which one, if the archive has several. `offset_header`: a header for each record's archived offset. No
    other program may write to `to_topic` meanwhile. Raises PipelineFailedError.
    """
    table.refresh()
    source = only_topic(table, topic)
    ends = {place: table.next_offset(place) or 0 for place in table.places([source])}
    require_topics(options, [to_topic])
    path = table.path / RESTORES / f"{source}-to-{to_topic}.json"
    plan, resumed = planned(path, ends, bounds_of(options, to_topic))
    frame = frame_of(session, table.path, (each.path for each in chosen(table.files(), [source])))
    require_partitions(ends, plan["before"], to_topic)
    frame = only_before(session, frame, plan["ends"])
    counts = {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}
    staging = str(table.path / RESTORES / plan["id"])
    write_topic(frame, options, to_topic, staging=staging, write_id=plan["id"], offset_header=offset_header)
    rows = counted(options, to_topic, plan["before"], counts)
    path.unlink()
    shutil.rmtree(staging, ignore_errors=True)
    return Restored(to_topic, rows, len(counts), resumed)


def only_topic(table: Table, topic: str | None) -> str:
    there = sorted({name for name, _ in table.places()})
    if topic is None and len(there) == 1:
        return there[0]
    if topic in there:
        return str(topic)
    held = ", ".join(there) or "nothing"
    raise PipelineFailedError(f"Say which topic to restore with --topic: the archive {table.path} holds {held}.")


def planned(
    path: Path, ends: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> tuple[dict[str, Any], bool]:
    """(the plan: what is restored and what the topic had before; whether an earlier attempt began it). The plan is on
    disk before the first write, so a second attempt continues the first one."""
    if path.exists():
        found = json.loads(path.read_text())
        return {**found, **{name: {int(k): v for k, v in found[name].items()} for name in ("ends", "before")}}, True
    plan = {
        "id": f"restore-{uuid.uuid4().hex}",
        "ends": {partition: end for (_, partition), end in ends.items()},
        "before": {partition: end for (_, partition), (_, end) in bounds.items()},
    }
    write_json(path, plan)
    return plan, False


def only_before(session: SparkSession, frame: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """The records before an offset of each partition."""
    from pyspark.sql import functions as F

    ended = session.createDataFrame(list(ends.items()), "partition int, end long")
    return frame.join(F.broadcast(ended), "partition").where(F.col("offset") < F.col("end")).drop("end")


def require_partitions(ends: Mapping[TopicPartition, int], before: Mapping[int, int], to_topic: str) -> None:
    needed = max((partition for _, partition in ends), default=-1) + 1
    if len(before) < needed:
        raise PipelineFailedError(
            f"The archive has {needed} partitions, {to_topic} only {len(before)}: records keep their partitions. "
            f"`ottla topics create NAME --partitions {needed}` makes a topic that will do."
        )


def bounds_of(options: RunOptions, topic: str) -> dict[TopicPartition, Bounds]:
    kafka = {
        name: value for name, value in options.kafka.items() if name in CONNECTION or name.startswith(("ssl.", "sasl."))
    }
    return log_bounds(replace(options, kafka=kafka), [topic])


def counted(options: RunOptions, topic: str, before: Mapping[int, int], counts: Mapping[int, int]) -> int:
    """Count the records added to the topic. Raises PipelineFailedError if the number differs from the records
    written."""
    for (_, partition), (_, end) in sorted(bounds_of(options, topic).items()):
        added, wanted = end - before.get(partition, 0), counts.get(partition, 0)
        if added != wanted:
            raise PipelineFailedError(
                f"{topic}-{partition} has {added:,} records more than before, but {wanted:,} were restored: did "
                "another producer write to it?"
            )
    return sum(counts.values())


def write_topic(
    frame: DataFrame,
    options: RunOptions,
    topic: str,
    *,
    staging: str,
    write_id: str | None = None,
    offset_header: str | None = None,
) -> None:
    """Write records with the source's columns into a topic: same partitions, each in the order of its offsets."""
    given = {"kafka.bootstrap.servers": options.bootstrap, "topic": topic, "exactlyOnce": "true"}
    given |= {f"kafka.{name}": value for name, value in options.kafka.items() if name not in READING}
    given |= {"stagingLocation": staging} | ({} if write_id is None else {"writeId": write_id})
    ordered = frame.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    sent(ordered, offset_header).write.format("ottla").options(**given).mode("append").save()


def sent(frame: DataFrame, offset_header: str | None = None) -> DataFrame:
    """The sink's columns of records, with a header for the offset where one is named."""
    from pyspark.sql import functions as F

    listed = frame.selectExpr("key", "value", HEADERS_LISTED, "partition", "timestamp", "offset")
    if offset_header is not None:
        one = F.struct(F.lit(offset_header).alias("key"), F.col("offset").cast("string").cast("binary").alias("value"))
        listed = listed.withColumn("headers", F.concat("headers", F.array(one)))
    return listed.drop("offset")
