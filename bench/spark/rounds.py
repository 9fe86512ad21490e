"""Rounds of a pipeline, each in a process of its own, beside a loop over the same records: `activity` and `logs`.

The JVM's start is not counted, all else is, from the first question to the broker to the report page. With `--stages`
Spark's own account of what ran for how long (its event log) is kept, a directory a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import program
from bench.brokers import BenchFailedError, Broker, Nodes, users_environment
from bench.figures import Figures, Rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = tuple[str, bytes | str, bytes, list[tuple[str, str | bytes | None]]]
"""(topic, key, value, headers)"""


@dataclass(frozen=True, slots=True)
class Scale:
    """`records` in all; `seconds` is not asked: a round lasts as long as they take."""

    records: int
    rounds: int
    warmup: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """`prepare` fills a fresh broker and returns what measures one round, given a directory for Spark's event log."""

    name: str
    says: str
    prepare: Callable[[Broker, int], Callable[[Path], Figures]]


def parser(name: str, text: str | None, full: Scale, records: str) -> argparse.ArgumentParser:
    """The options; `records` are called so here."""
    made = program.parser(name, text, full, seconds="not asked: a round lasts as long as its records")
    made.add_argument(f"--{records}", dest="records", type=int, help=f"so many ({full.records:,})")
    made.add_argument("--stages", metavar="DIR", help="a directory to keep Spark's event logs in")
    made.add_argument("--run", metavar="HOST:PORT", help=argparse.SUPPRESS)
    return made


def measure(options: argparse.Namespace, every: Sequence[Measurement], full: Scale) -> int:
    """Do what the options ask for; the exit code."""
    base = Scale(full.records // 10, 1) if options.quick else full
    scale = program.scaled(base, options)

    def measuring(nodes: Nodes) -> AbstractContextManager[Callable[[Measurement], Rounds]]:
        stages = Path(options.stages) if options.stages else nodes.base / "stages"

        def rounds_of(measurement: Measurement) -> Rounds:
            with nodes.running() as broker:
                one_round = measurement.prepare(broker, scale.records)
                turns = range(scale.warmup + scale.rounds)
                figures = [one_round(stages / measurement.name / str(turn)) for turn in turns]
            return {"ottla": figures[scale.warmup :]}

        return nullcontext(rounds_of)

    heading = f"{scale.records:,} records; {scale.rounds} rounds after {scale.warmup} that do not count"
    return program.main(options, every, measuring, heading)


def fill(broker: Broker, topics: dict[str, int], records: Iterable[Record]) -> None:
    """These topics, of so many partitions, with these records in them."""
    admin = AdminClient(broker.properties)
    for future in admin.create_topics([NewTopic(name, partitions) for name, partitions in topics.items()]).values():
        future.result(30)
    producer = Producer({**broker.properties, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number, (topic, key, value, headers) in enumerate(records):
        producer.produce(topic, value, key, headers=headers)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise BenchFailedError("records were not delivered")


# ---- the process of a round ----------------------------------------------------------------------------------------


def in_a_process(module: str, broker: Broker, stages: Path | None, *more: str) -> dict[str, Any]:
    """What `--run` of this module printed."""
    command = [sys.executable, "-m", module, "--run", broker.address, *more]
    command += ["--stages", str(stages)] if stages is not None else []
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=users_environment(), check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def session(stages: str | None) -> SparkSession:
    """A session; it writes its event log to this directory."""
    from ottla.spark.platform.session import pipeline_session

    conf = {"spark.driver.memory": "1g"}
    if stages:
        Path(stages).mkdir(parents=True, exist_ok=True)
        conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{stages}"}
        conf |= {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
    return pipeline_session("bench", master="local[2]", conf=conf)


@contextmanager
def spent(told: dict[str, Any], what: str) -> Iterator[None]:
    """Tells the seconds of a block and the CPU time of this process and its children, as `WHAT s` and `WHAT cpu s`."""
    me = Broker("me", "127.0.0.1:0", os.getpid())
    before, began = me.cpu_s(), time.perf_counter()
    yield
    after = me.cpu_s()
    assert before is not None
    assert after is not None
    told |= {f"{what} s": time.perf_counter() - began, f"{what} cpu s": after[0] - before[0]}
