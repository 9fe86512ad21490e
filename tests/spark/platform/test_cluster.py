"""A standalone cluster from the pip package, as docs/spark.md starts it: programs that wait for executors and share
them, a signal to a program that waits, a worker that is killed."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.spark.platform.java import find_java
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import SPARKS_PATIENCE_S, soon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute on a machine with few cores: compile little, collect with one thread."""
RECORDS = 24_000
BATCH_ROWS = 4_000
NO_EXECUTORS = "Initial job has not accepted any resources"
Program = tuple[subprocess.Popen[bytes], Callable[[], str]]
"""A process, and a function that returns what it has printed."""


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    soon(condition, what, patience_s=SPARKS_PATIENCE_S)


def end_with_the_tests() -> None:
    """Linux: SIGKILL for this process when the tests' own is gone (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Cluster:
    """One master and its workers, on loopback, on ports that the system chose."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self.directory = directory
        self._spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
            "SPARK_LAUNCHER_OPTS": SMALL_JVM,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start_master(self) -> None:
        self._start("master", "master.Master")
        self.master = self._said("master", r"Starting Spark master at (spark://\S+)")

    def start_workers(self, *names: str, cores: int) -> None:
        """Start workers with so many cores each, and room for an executor on each core."""
        for name in names:
            room = ("--cores", str(cores), "--memory", f"{600 * cores}m", "--work-dir", str(self.directory / name))
            self._start(name, "worker.Worker", *room, self.master)
        for name in names:
            self._said(name, r"(Successfully registered with master)")

    def _start(self, name: str, role: str, *arguments: str) -> None:
        command = [str(self._spark_class), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1", "--port", "0"]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *arguments],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a worker and its executors are one group, and die as one
                    preexec_fn=end_with_the_tests,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, (self.directory / f"{name}.log").read_text(errors="replace"))

        until(found, lambda: (self.directory / f"{name}.log").read_text(errors="replace"))
        match = found()
        assert match is not None
        return match[1]

    def kill_a_worker(self) -> None:
        """kill -9 of the last worker and of its executor."""
        process = self._processes.pop()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start_master()
        yield cluster
    finally:
        cluster.stop()


def fill(broker: EmbeddedBroker, topic: str, records: int) -> None:
    """Make the topic with four partitions and so many records in it."""
    broker.create_topic(topic, partitions=4)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(records):
        producer.produce(topic, f"{number:060}", partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_signal_does_not_wait_for_executors_that_never_come")
def test_two_programs_wait_for_executors_and_share_them(
    cluster: Cluster, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """A pipeline and a command wait on a cluster without workers. A worker with two cores comes: the command reads on
    one of them beside the pipeline, which a signal ends."""
    fill(broker, topic, 400)
    with programs(cluster, broker, topic) as start:
        archive, archived = start("archive", "--table", str(tmp_path / "table"), "--trigger", "0.5")
        replay, counted = start("replay", "--count")
        until(lambda: "archive: 0 rows" in archived() and "waits for executors" in archived(), archived)
        until(lambda: NO_EXECUTORS in counted(), counted)
        cluster.start_workers("worker", cores=2)
        until(lambda: "archive: 400 rows" in archived(), archived)
        assert replay.wait(300) == 0, counted()
        assert "400 records in 4 partitions, each offset once." in counted()
        archive.send_signal(signal.SIGTERM)
        assert archive.wait(300) == 0, archived()
        assert "Stopped: 400 rows" in archived()


@pytest.mark.long
def test_a_signal_ends_a_command_that_waits_for_executors(cluster: Cluster, broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, 4)
    with programs(cluster, broker, topic) as start:
        replay, counted = start("replay", "--count")
        until(lambda: NO_EXECUTORS in counted(), counted)
        replay.send_signal(signal.SIGTERM)
        assert replay.wait(300) == 130, counted()


@contextmanager
def programs(cluster: Cluster, broker: EmbeddedBroker, topic: str) -> Iterator[Callable[..., Program]]:
    """Starts pipelines over the topic, each on one core of the cluster; ends those that still run."""
    where = ["--topic", topic, "-b", broker.bootstrap_servers, "--master", cluster.master]
    for conf in ("cores.max=1", "executor.memory=512m", "driver.memory=512m", "starvation.timeout=1s"):
        where += ["--conf", f"spark.{conf}"]
    for role in ("driver", "executor"):
        where += ["--conf", f"spark.{role}.extraJavaOptions={SMALL_JVM}"]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Program:
        log = cluster.directory / f"{name}.log"
        command = [sys.executable, "-m", "ottla", "pipeline", name, *where, *arguments]
        with log.open("w") as said:
            process = subprocess.Popen(
                command, env=cluster.environment, cwd=cluster.directory, stdout=said, stderr=said
            )
        started.append(process)
        return process, log.read_text

    try:
        yield start
    finally:
        for each in started:
            each.kill()
            each.wait()


@pytest.mark.long
def test_the_archive_outlives_a_worker(
    cluster: Cluster, spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    from ottla.spark.archive import open_table
    from ottla.spark.archive.verification import verify
    from ottla.spark.running.run import RunOptions

    cluster.start_workers("worker1", "worker2", cores=1)
    fill(broker, topic, RECORDS)
    table, checkpoint, log = tmp_path / "table", tmp_path / "checkpoint", tmp_path / "driver.log"
    command = [sys.executable, "-m", "ottla", "pipeline", "archive", "--topic", topic, "--table", str(table), "--once"]
    command += ["-b", broker.bootstrap_servers, "--checkpoint", str(checkpoint), "--batch-rows", str(BATCH_ROWS)]
    command += [
        "--master",
        cluster.master,
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.driver.memory=512m",
    ]

    def commits() -> int:
        return len([each for each in checkpoint.glob("*/commits/*") if each.name.isdigit()])

    with log.open("w") as said:
        archive = subprocess.Popen(command, env=cluster.environment, cwd=tmp_path, stdout=said, stderr=said)
    try:
        until(lambda: commits() >= 2 or archive.poll() is not None, log.read_text)
        assert (tmp_path / "worker1").is_dir()
        assert (tmp_path / "worker2").is_dir(), "both workers had an executor"
        before = commits()
        cluster.kill_a_worker()
        assert archive.wait() == 0, log.read_text()
    finally:
        archive.kill()
        archive.wait()
    assert commits() > before + 1, f"the worker was killed at the end only: {log.read_text()}"
    options = RunOptions(broker.bootstrap_servers, None)
    verdict = verify(spark, options, open_table(str(table)), topics=None, content=True)
    assert verdict.problems == ()
    assert (verdict.rows, verdict.compared, verdict.contents) == (RECORDS, RECORDS, RECORDS)
