"""What Spark's own Kafka connector does in test_spark_connector.py, in an environment of its own: no import of ours.

    PYTHON spark_connector_job.py JARS BOOTSTRAP SOURCE TARGET CHECKPOINT

Copies what is new in SOURCE to TARGET with a streaming query that goes on from its checkpoint, then prints as JSON what
a batch query finds in SOURCE, and appends one row to TARGET with a batch write.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit


def main() -> None:
    jars, bootstrap, source, target, checkpoint = sys.argv[1:]
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": jars,
    }
    builder = SparkSession.builder.appName("connector")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    place = {"kafka.bootstrap.servers": bootstrap}

    new = session.readStream.format("kafka").options(**place, subscribe=source, includeHeaders="true")
    new = new.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    columns = new.select("key", "value", "headers", "partition")
    out = columns.writeStream.format("kafka").options(**place, topic=target, checkpointLocation=checkpoint)
    query = out.trigger(availableNow=True).start()
    query.awaitTermination()

    found = session.read.format("kafka").options(**place, subscribe=source, includeHeaders="true").load()
    last = session.range(1).select(lit("batch").cast("binary").alias("key"), lit(b"written").alias("value"))
    last.write.format("kafka").options(**place, topic=target).save()
    print("\nFOUND " + json.dumps(rows_of(found)))
    session.stop()


def rows_of(frame: DataFrame) -> list[list[object]]:
    shown = frame.select(
        *(col(name) for name in ("key", "value", "headers", "partition", "offset", "timestampType")),
        col("timestamp").cast("double").alias("seconds"),
    )
    return [
        [
            text(row.key),
            text(row.value),
            row.headers and [[header.key, text(header.value)] for header in row.headers],
            row.partition,
            row.offset,
            row.timestampType,
            round(row.seconds * 1000),
        ]
        for row in shown.orderBy("partition", "offset").collect()
    ]


def text(block: bytearray | None) -> str | None:
    return None if block is None else bytes(block).decode()


if __name__ == "__main__":
    main()
