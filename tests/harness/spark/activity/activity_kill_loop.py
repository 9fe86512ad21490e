"""kill -9 at random moments: `python -m tests.harness.spark.activity.activity_kill_loop [KILLS] [LINES]`.

A node, lines of an access log produced all the time, and `ottla pipeline activity` as a process that is killed and
started again. At the end one run with --once, and everything that was acknowledged must be in the tables once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable

from ottla.testing import EmbeddedBroker

FIRST = datetime(2024, 3, 1, tzinfo=UTC)


def lines(count: int) -> list[bytes]:
    """Lines that move on through the hours, some of them late, some malformed."""
    draw = random.Random(1)
    made = []
    for number in range(count):
        back = draw.choice((0, 0, 0, draw.randrange(60), draw.randrange(3600)))
        moment = FIRST + timedelta(seconds=number * 2 - back)
        page = draw.choice(("/", "/a", "/b.css", f"/p/{draw.randrange(50)}"))
        text = f'10.0.0.{draw.randrange(30)} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "GET {page} HTTP/1.1" 200 {number}'
        made.append(text.encode() if draw.random() > 0.01 else b"broken " + str(number).encode())
    return made


def produce(bootstrap: str, made: list[bytes], seconds: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number, line in enumerate(made):
        producer.produce("views", line)
        if number % 100 == 0:
            producer.poll(0)
            time.sleep(seconds * 100 / len(made))
    assert producer.flush(60) == 0


def start(bootstrap: str, table: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ottla", "pipeline", "activity", "-b", bootstrap, "-t", "views", "--table", table]
    conf = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--trigger", "1", "--batch-rows", "1500"]
    return subprocess.Popen([*command, *conf, "--quiet", *more], start_new_session=True)


def until_a_batch_is_done(process: subprocess.Popen[bytes], ledger: str, count: int) -> float | None:
    """Wait until the ledger is another one; how long that took. None where it has everything."""
    before, began = stamp(ledger), time.monotonic()
    while stamp(ledger) == before:
        assert process.poll() is None, "the pipeline ended by itself"
        if before and lines_in(ledger) == count:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


def lines_in(ledger: str) -> int:
    found = json.loads(Path(ledger).read_text())
    return found["events"] + found["late"] + found["malformed"]


def stamp(path: str) -> int:
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def main(kills: int, count: int) -> None:
    made = lines(count)
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="ottla-activity-") as folder:
        broker.create_topic("views", partitions=2)
        table = f"{folder}/site"
        feeding = threading.Thread(target=produce, args=(broker.bootstrap_servers, made, kills * 30.0), daemon=True)
        feeding.start()
        for number in range(kills):
            process = start(broker.bootstrap_servers, table)
            took_s = until_a_batch_is_done(process, f"{table}/_activity/ledger.json", count)
            if took_s is None:
                print(f"nothing is left after {number} kills", flush=True)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            more_s = random.uniform(0, took_s / 2)
            time.sleep(more_s)
            assert process.poll() is None, "the pipeline ended by itself"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"kill {number + 1}: {took_s:.1f} s to a batch, {more_s:.1f} s more", flush=True)
        feeding.join()
        assert start(broker.bootstrap_servers, table, "--once").wait() == 0
        kept = [raw for name in ("events", "late", "malformed") for raw in raw_of(f"{table}/{name}")]
        assert sorted(kept) == sorted(made), f"{len(kept)} rows for {len(made)} lines"
        print(f"{count:,} lines, {kills} kills: every line once.")


def raw_of(path: str) -> list[bytes]:
    return [raw.encode() for raw in DeltaTable(path).to_pyarrow_table(columns=["raw"]).column("raw").to_pylist()]


if __name__ == "__main__":
    main(*(int(each) for each in [*sys.argv[1:], "6", "20000"][:2]))
