"""The drivers that `crash_pipelines.py` kills: both copy topic `in` to topic `out` until SIGTERM, each record once.

Keys say where a record comes from: "partition-offset".
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ottla.client import Client, ClientError
from ottla.protocol.records import Record, build_batch, decode_records, iter_batches

PARTITIONS = 3


def drive(bootstrap: str, checkpoint: str, option: str = "exactlyOnce") -> None:
    """Copy `in` to `out` until SIGTERM; a query that fails is started again from its checkpoint. `option`: how the sink
    writes exactly once."""
    from ottla.spark.platform.session import pipeline_session

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"  # a JVM that never lives long
    session = pipeline_session("crash", master="local[2,4]", conf=conf)
    while True:
        source = session.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", "in").option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", 20_000).load()
        rows = rows.selectExpr("concat(partition, '-', offset) AS key", "value").repartition(2)
        sink = rows.writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        sink = sink.option("topic", "out").option(option, "true").option("kafka.batch.size", 8192)
        query = sink.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        try:
            query.awaitTermination()
        except Exception as error:
            print(f"the query failed, and starts again: {str(error)[:2000]}", flush=True)
        time.sleep(0.5)


def drive_commit(bootstrap: str, directory: str, *, transactional: bool = False) -> None:
    """What Spark and the sink do, in one process: plan a micro-batch durably, stage it, commit it, write that down."""
    from ottla.spark.platform.durable import write_json
    from ottla.spark.writer.publishing import Publisher
    from ottla.spark.writer.staging import Staging, read_json
    from ottla.spark.writer.transaction import Transactions

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    plan_path, staging = Path(directory, "plan.json"), Staging(os.path.join(directory, "staging"))
    os.makedirs(directory, exist_ok=True)
    while True:
        plan = read_json(plan_path) or {"batch": -1, "to": [0] * PARTITIONS, "committed": True}
        if plan["committed"]:
            last = ends_when_there(bootstrap)
            to = [min(plan["to"][index] + 300, last[index]) for index in range(PARTITIONS)]
            if to == plan["to"]:
                time.sleep(0.05)
                continue
            plan = {"batch": plan["batch"] + 1, "from": plan["to"], "to": to, "committed": False}
            write_json(plan_path, plan)
        try:
            with Client(bootstrap) as client:
                rows = [row for index in range(PARTITIONS) for row in rows_of(client, index, plan)]
            publisher = Publisher(lambda: Client(bootstrap))
            staged = staging.stage(plan["batch"], 0, shuffled_batches(rows))
            transactions = Transactions(publisher, "crash", 60_000) if transactional else None
            staging.commit(plan["batch"], "crash", [staged] if staged else [], publisher, transactions)
            publisher.close()
            write_json(plan_path, {**plan, "committed": True})
        except ClientError as failure:
            print(f"the micro-batch failed, and is run again: {failure}", flush=True)
            time.sleep(0.1)


def ends_when_there(bootstrap: str) -> dict[int, int]:
    while True:
        try:
            with Client(bootstrap) as client:
                return client.list_offsets("in", range(PARTITIONS))
        except ClientError:
            time.sleep(0.1)


def rows_of(client: Client, partition: int, plan: dict[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of what the plan takes from a partition."""
    at, end = plan["from"][partition], plan["to"][partition]
    while at < end:
        content = client.fetch_raw("in", partition, at).records
        for header, position in iter_batches(content):
            for record in decode_records(content, position):
                if at <= record.offset < end:
                    yield b"%d-%d" % (partition, record.offset), record.value or b""
            at = max(at, header.next_offset)


def shuffled_batches(rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[str, int, int, Any]]:
    """In another order each time. Some are of 1970: a broker that starts again forgets who wrote such records."""
    random.shuffle(rows)
    for start in range(0, len(rows), 10):
        times = random.choice((1, int(time.time() * 1000)))
        some = [Record(timestamp_ms=times, key=key, value=value) for key, value in rows[start : start + 10]]
        yield "out", random.randrange(PARTITIONS), len(some), build_batch(some)


DRIVERS = {
    "sink": drive,
    "transactions": partial(drive, option="transactional"),
    "commit": drive_commit,
    "commit-transactions": partial(drive_commit, transactional=True),
}
