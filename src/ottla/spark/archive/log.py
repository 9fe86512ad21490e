"""What the log of some topics still holds, and exactly these offsets of it as a DataFrame.

Knows: the source's options. Does not know: archives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ottla.spark.archive.ranges import Place
from ottla.spark.offsets import Cluster
from ottla.spark.options import stream_options
from ottla.spark.run import RunOptions, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Bounds: TypeAlias = tuple[int, int]
"""Offsets [first, until)."""


def log_bounds(options: RunOptions, topics: Collection[str]) -> dict[Place, Bounds]:
    """Where the log of each partition begins and ends now. Topics that are not there are left out."""
    pattern = "|".join(re.escape(topic) for topic in sorted(topics))
    more = {"subscribePattern": pattern or "-", "kafka.exclude.internal.topics": "false"}
    cluster = Cluster(stream_options(source_options(options, **more)))
    try:
        ends = cluster.latest()
        begins = cluster.earliest(ends)
    finally:
        cluster.close()
    return {place: (begins[place], end) for place, end in ends.items() if place in begins}


def log_frame(session: SparkSession, options: RunOptions, part: Mapping[Place, Bounds]) -> DataFrame:
    """The records of exactly these offsets, with headers. The query fails where they go while it runs."""
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
    return session.read.format("ottla").options(**given).load()
