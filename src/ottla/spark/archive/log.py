"""Finds out which offsets the log of some topics still holds, and reads exactly these as a DataFrame."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ottla.client import TopicPartition
from ottla.spark.platform.session import require_workers
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import stream_options
from ottla.spark.running.run import RunOptions, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Bounds: TypeAlias = tuple[int, int]
"""Offsets [first, until)."""


def log_bounds(options: RunOptions, topics: Collection[str]) -> dict[TopicPartition, Bounds]:
    """Return the first and end offset of each partition's log now. Missing topics are left out."""
    pattern = "|".join(re.escape(topic) for topic in sorted(topics))
    more = {"subscribePattern": pattern or "-", "kafka.exclude.internal.topics": "false"}
    cluster = Cluster(stream_options(source_options(options, **more)))
    try:
        ends = cluster.latest()
        begins = cluster.earliest(ends)
    finally:
        cluster.close()
    return {place: (begins[place], end) for place, end in ends.items() if place in begins}


def log_frame(
    session: SparkSession,
    options: RunOptions,
    part: Mapping[TopicPartition, Bounds],
    called: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records of exactly these offsets, with headers; `called`: other names for their topics. The query
    fails if the log drops records while it runs."""
    require_workers(session)
    assigned: dict[str, list[int]] = {}
    begin: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for (topic, partition), (first, until) in sorted(part.items()):
        assigned.setdefault(topic, []).append(partition)
        begin.setdefault(topic, {})[str(partition)] = first
        end.setdefault(topic, {})[str(partition)] = until
    offsets = {"assign": assigned, "startingOffsets": begin, "endingOffsets": end}
    given = source_options(options, includeHeaders="true", failOnDataLoss="true")
    given |= {name: json.dumps(value) for name, value in offsets.items()}
    return renamed(session.read.format("ottla").options(**given).load(), called or {})


def renamed(frame: DataFrame, called: Mapping[str, str]) -> DataFrame:
    """Rename some of the records' topics."""
    from pyspark.sql import functions as F

    column = F.col("topic")
    for topic, name in called.items():
        if topic != name:
            column = F.when(F.col("topic") == topic, name).otherwise(column)
    return frame.withColumn("topic", column) if any(a != b for a, b in called.items()) else frame
