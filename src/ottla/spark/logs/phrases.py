"""Counts which components have most lines in a table, and which messages are most frequent: `top_phrases`.

Values that change from line to line are masked: addresses, ids, numbers. Each reader counts the lines of its part of
the table, and the counts are added up. This process reads a table of up to `LOCAL_ROWS_MAX` lines, Spark a larger one.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.spark.logs.formats import ERRORS
from ottla.spark.platform.workers import WorkerFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP = 20
LOCAL_ROWS_MAX = 1 << 17
COUNTED_MAX = 1 << 17
"""Number of distinct phrases that a task counts before it passes them on."""
MESSAGE_MAX = 300
COLUMNS = ["service", "component", "level", "message", "raw"]
COUNTS = "of string, service string, phrase string, rows bigint"
COMPONENTS, MESSAGES = "components", "messages"
OF_ERRORS = " of errors"

MASKS = (
    (".", re.compile(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?::[0-9]+)?\b"), "<ip>"),
    ("-", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    ("0x", re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    ("", re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b"), "<hex>"),
    ("", re.compile(r"[0-9]+"), "#"),
)
"""(text that must be present, pattern to mask, replacement)"""


class Phrase(NamedTuple):
    """A component or a message of a service. `of`: COMPONENTS or MESSAGES, perhaps with OF_ERRORS."""

    of: str
    service: str
    phrase: str


def masked(text: str) -> str:
    """Mask the parts of a message that change from line to line. Only its first line is kept."""
    text = text.partition("\n")[0][:MESSAGE_MAX]
    for holds, pattern, sign in MASKS:
        if holds in text:
            text = pattern.sub(sign, text)
    return text.strip(" ")


def top_phrases(session: SparkSession, files: Sequence[str], rows: int) -> dict[str, list[tuple[int, str, str]]]:
    """Return the TOP most frequent phrases of each kind, as (lines, service, phrase). `rows`: number of lines in the
    files."""
    if rows <= LOCAL_ROWS_MAX:
        found = counted(files)
    else:
        parts = session.createDataFrame(pa.table({"file": list(files)})).mapInArrow(WorkerFunction(count_files), COUNTS)
        found = {Phrase(row.of, row.service, row.phrase): row.rows for row in greatest(parts).collect()}
    best: dict[str, list[tuple[int, str, str]]] = {}
    for phrase, lines in sorted(found.items(), key=lambda each: (-each[1], each[0].phrase, each[0].service)):
        of_kind = best.setdefault(phrase.of, [])
        if len(of_kind) < TOP:
            of_kind.append((lines, phrase.service, phrase.phrase))
    return best


def greatest(parts: DataFrame) -> DataFrame:
    """Select the TOP phrases of each kind with the most rows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    summed = parts.groupBy("of", "service", "phrase").agg(F.sum("rows").alias("rows"))
    order = Window.partitionBy("of").orderBy(F.desc("rows"), "phrase", "service")
    return summed.withColumn("place", F.row_number().over(order)).where(F.col("place") <= TOP)


def counted(files: Iterable[str]) -> Counter[Phrase]:
    found = Counter[Phrase]()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=COLUMNS):
            add(found, batch)
    return found


def count_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the lines of files: for `mapInArrow` over names of files; yields COUNTS, the same phrase perhaps more than
    once."""
    found = Counter[Phrase]()
    for file in (name for batch in batches for name in batch["file"].to_pylist()):
        for batch in pq.ParquetFile(file).iter_batches(columns=COLUMNS):
            add(found, batch)
            if len(found) > COUNTED_MAX:
                yield as_batch(found)
                found.clear()
    yield as_batch(found)


def add(found: Counter[Phrase], lines: pa.RecordBatch) -> None:
    """Count lines; equal lines are masked once."""
    said = pc.coalesce(lines["message"], lines["raw"])
    table = pa.table({**{name: lines[name] for name in COLUMNS[:3]}, "said": said})
    for row in table.group_by(["service", "component", "level", "said"]).aggregate([([], "count_all")]).to_pylist():
        service, rows = row["service"], row["count_all"]
        kinds = ("", OF_ERRORS) if row["level"] in ERRORS else ("",)
        phrase = masked(row["said"])
        for kind in kinds:
            found[Phrase(MESSAGES + kind, service, phrase)] += rows
            if row["component"] is not None:
                found[Phrase(COMPONENTS + kind, service, f"{service} · {row['component']}")] += rows


def as_batch(found: Counter[Phrase]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    arrays = [*(pa.array(each, pa.string()) for each in columns), pa.array(found.values(), pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=["of", "service", "phrase", "rows"])
