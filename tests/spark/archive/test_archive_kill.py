"""The command line, killed at work: what it left is finished by the next start, each record once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from ottla.spark.archive import open_table, read, restore, run, verify
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import SPARKS_PATIENCE_S, soon
from tests.spark.archive.test_archive import consumed, kept, options_of, produce, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def command(broker: EmbeddedBroker, topic: str, lake: Path) -> list[str]:
    settings = ("--master", "local[1]", "--conf", "spark.driver.memory=512m", "--trigger", "0.1", "--batch-rows", "100")
    where = ("-b", broker.bootstrap_servers, "--topic", topic, "--table", str(lake))
    return [sys.executable, "-m", "ottla", "pipeline", "archive", *where, *settings]


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_a_killed_archive_is_finished_by_the_next(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic, lake = kept(broker), tmp_path / "lake"
    produce(broker, topic, range(1000))
    log = (tmp_path / "log").open("w+")
    started = subprocess.Popen(command(broker, topic, lake), start_new_session=True, stdout=log, stderr=log)
    try:
        second = lake / "_delta_log" / f"{2:020}.json"
        soon(lambda: second.exists() or started.poll() is not None, patience_s=SPARKS_PATIENCE_S)
        assert second.exists(), (tmp_path / "log").read_text()
        os.kill(started.pid, signal.SIGKILL)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    before = sum(file.rows for file in open_table(lake).files())
    assert before > 0
    produce(broker, topic, range(1000, 1200))
    done = run(options_of(broker), [topic], str(lake), session=spark)
    assert (done.rows, done.table_rows) == (1200 - before, 1200)
    verdict = verify(spark, options_of(broker), open_table(lake), content=True)
    assert (verdict.problems, verdict.compared) == ((), 1200)
    assert rows_of(read(spark, str(lake))) == consumed(broker, topic)


RESTORING = """
import sys, time
from ottla.spark.archive import open_table, restore as attempt
from ottla.spark.running.run import RunOptions
from ottla.spark.platform.session import pipeline_session
module = sys.modules["ottla.spark.archive.restore"]
def waited(*_):  # the plan stays: this attempt does not end by itself
    print("sent", flush=True)
    time.sleep(600)
module.counted = waited
bootstrap, lake, target = sys.argv[1:]
session = pipeline_session("restore", master="local[1]", conf={"spark.driver.memory": "512m"})
attempt(session, RunOptions(bootstrap, None), open_table(lake), target)
"""


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_restored_records_are_as_they_were")
def test_a_killed_restore_is_finished_by_the_next(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """SIGKILL as soon as the plan of what is to be sent is seen on disk, before or while it is sent; or after that: the
    plan is on disk for milliseconds."""
    topic, target, lake = kept(broker), kept(broker), tmp_path / "lake"
    produce(broker, topic, range(1000))
    run(options_of(broker), [topic], str(lake), session=spark)
    said = tmp_path / "log"
    log = said.open("w+")
    begun = [sys.executable, "-c", RESTORING, broker.bootstrap_servers, str(lake), target]
    started = subprocess.Popen(begun, start_new_session=True, stdout=log, stderr=log)
    try:
        manifests = "_ottla/restores/restore-*/**/manifests/*.json"
        begun_to_send = lambda: any(lake.glob(manifests)) or "sent\n" in said.read_text()  # noqa: E731
        soon(lambda: begun_to_send() or started.poll() is not None, said.read_text, patience_s=SPARKS_PATIENCE_S)
        assert begun_to_send(), said.read_text()
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    done = restore(spark, options_of(broker), open_table(lake), target)
    assert (done.rows, done.partitions, done.resumed) == (1000, 2, True)
    assert consumed(broker, target) == consumed(broker, topic)
