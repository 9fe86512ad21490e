"""A Spark session that reads on demand: one JSON command per line on stdin, one JSON answer per line on stdout.

    python bench/spark/reader.py FORMAT CONF

Runs in whatever environment Spark is in, so beyond pyspark it imports ours only where it is asked for. FORMAT is
`ottla` or `kafka`, CONF a JSON object of settings. A command: {"what": "batch" | "sum" | "stream" | ..., ...}; see the
functions of `Reader`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    name, conf = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer
    session = started(name, conf)
    session.sparkContext.setLogLevel("ERROR")
    reader = Reader(session, name)
    print(json.dumps({"pyspark": session.version}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(reader, command.pop("what"))(**command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2_000]}
        print(json.dumps(answer), file=answers, flush=True)
    session.stop()


def started(name: str, conf: dict[str, str]) -> SparkSession:
    """Ours as pipelines start it, the connector's by Spark's builder; the settings are the same."""
    if name == "ottla":
        from ottla.spark.platform.session import pipeline_session

        return pipeline_session("bench-ottla", conf=conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"bench-{name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Reader:
    def __init__(self, session: SparkSession, name: str) -> None:
        self.session = session
        self.name = name

    def batch(self, broker: str, topic: str) -> dict[str, Any]:
        """The whole topic into `noop`."""
        rows = self._rows(self.session.read, broker, topic)
        began = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - began}

    def sum(self, broker: str, topic: str) -> dict[str, Any]:
        """sum(length(value)) over the whole topic."""
        rows = self._rows(self.session.read, broker, topic).selectExpr("sum(length(value))")
        began = time.perf_counter()
        (found,) = rows.collect()
        return {"seconds": time.perf_counter() - began, "bytes": found[0]}

    def stream(self, broker: str, topic: str, per_trigger: int) -> dict[str, Any]:
        """AvailableNow over the whole topic into `noop`, from `start` to its end."""
        more = {"maxOffsetsPerTrigger": str(per_trigger), "startingOffsets": "earliest"}
        rows = self._rows(self.session.readStream, broker, topic, **more)
        with tempfile.TemporaryDirectory() as checkpoint:
            began = time.perf_counter()
            query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = query.trigger(availableNow=True).start()
            query.awaitTermination()
            seconds = time.perf_counter() - began
            progress = [json.loads(each.json) for each in query.recentProgress]
        return {
            "seconds": seconds,
            "rows": sum(each["numInputRows"] for each in progress),
            "batches": sum(each["numInputRows"] > 0 for each in progress),
        }

    def trickle(self, broker: str, topic: str, seconds: float) -> dict[str, Any]:
        """The milliseconds of each micro-batch that had rows, while somebody writes a little all the time."""
        rows = self._rows(self.session.readStream, broker, topic, startingOffsets="latest")
        with tempfile.TemporaryDirectory() as checkpoint:
            query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = query.queryName(f"trickle-{uuid.uuid4().hex[:8]}").start()
            before = self._batches(query)
            deadline = time.monotonic() + 60
            while len(before) < 10 and time.monotonic() < deadline:  # the first batches are the start's
                time.sleep(0.1)
                before = self._batches(query)
            time.sleep(seconds)
            progress = self._batches(query)
            query.stop()
        counted = [each for number, each in progress.items() if number not in before]
        return {
            "rows": sum(each["numInputRows"] for each in counted),
            "milliseconds": [each["durationMs"]["triggerExecution"] for each in counted],
        }

    def archive(self, broker: str, topic: str, folder: str) -> dict[str, Any]:
        """The whole topic into a table, from the start of the query to the last commit. Needs our own environment."""
        from ottla.spark.archive.stream import run
        from ottla.spark.running.run import RunOptions

        with tempfile.TemporaryDirectory(dir=folder) as table:
            began = time.perf_counter()
            done = run(RunOptions(broker, None, once=True, quiet=True), [topic], f"{table}/t", session=self.session)
            return {"seconds": time.perf_counter() - began, "rows": done.rows}

    def parquet(self, broker: str, topic: str, folder: str) -> dict[str, Any]:
        """The same rows out of Spark's memory into Parquet files, by Spark's own writer."""
        rows = self._rows(self.session.read, broker, topic, includeHeaders="true").persist()
        count = rows.count()
        with tempfile.TemporaryDirectory(dir=folder) as table:
            began = time.perf_counter()
            rows.write.option("compression", "zstd").parquet(f"{table}/t")
            seconds = time.perf_counter() - began
        rows.unpersist(blocking=True)
        return {"seconds": seconds, "rows": count}

    def _batches(self, query: Any) -> dict[int, dict[str, Any]]:
        if query.exception() is not None:
            raise query.exception()
        progress = [json.loads(each.json) for each in query.recentProgress]
        return {each["batchId"]: each for each in progress if each["numInputRows"]}

    def _rows(self, reader: Any, broker: str, topic: str, **more: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": broker, "subscribe": topic, **more}
        return reader.format(self.name).options(**options).load()


if __name__ == "__main__":
    main()
