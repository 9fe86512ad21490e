"""`ottla pipeline logs --once` over a finished log, beside a plain loop in Python over the same lines.

    python bench/spark_logs.py --logs FOLDER [--lines 300000] [--few 30] [--rounds 3] [--quick] [--stages FOLDER]

FOLDER has logs of services (`hadoop.log`, `linux.log` ...); their lines come again and again, of four hosts each, so
that there are four times as many services. Without it: made-up lines of two formats. Each round is a fresh process: the
JVM's start is not counted, all else is, from the first question to the broker to the report page; then come so `few`
micro-batches of 100 lines. The loop reads the same lines from memory, on one core, takes each apart with its service's
one expression and counts services, windows and levels.

`--stages` keeps Spark's own account (its event log) of every round; the jobs counted here come out of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from calendar import month_abbr
from collections import Counter
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

from brokers import Broker, Nodes, users_environment
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from figures import Figures, spread
from machine import machine_line

TOPIC, FEW = "logs", "few"
WINDOW_S, HOSTS, SMALL = 300, 4, 100
MONTHS = {name: number for number, name in enumerate(month_abbr)}
ISO = r"(?P<year>\d+)-(?P<month>\d+)-(?P<day>\d+) (?P<clock>[\d:]+)"
SYSLOG = re.compile(r"(?P<month>\w{3}) +(?P<day>\d+) (?P<clock>[\d:]+) \S+ (?P<component>[^:]+): (?P<message>.*)", re.S)
HEADS = {
    "apache": re.compile(r"\[\w+ (?P<month>\w+) (?P<day>\d+) (?P<clock>[\d:]+) (?P<year>\d+)\] \[(?P<level>\w+)\] "),
    "hadoop": re.compile(rf"{ISO},\d+ (?P<level>\w+) \[.*?\] (?P<component>[^:]+): (?P<message>.*)", re.S),
    "hdfs": re.compile(r"(?P<year>\d\d)(?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d+) \d+ (?P<level>\w+) "),
    "linux": SYSLOG,
    "openssh": SYSLOG,
    "spark": re.compile(r"(?P<year>\d\d)/(?P<month>\d\d)/(?P<day>\d\d) (?P<clock>[\d:]+) (?P<level>\w+) "),
    "zookeeper": re.compile(rf"{ISO},\d+ - (?P<level>\w+) +\[.*?\] - (?P<message>.*)", re.S),
}

Line = tuple[str, bytes]
"""(service, what it wrote)"""


def sample(folder: str | None, count: int) -> list[Line]:
    """So many lines, of all services in turn."""
    if folder is None:
        logs = {
            "hadoop": [f"2015-10-18 18:01:{each:02},978 INFO [main] a.B: c {each}".encode() for each in range(60)],
            "linux": [f"Jun 14 15:16:{each:02} combo sshd(pam_unix)[1]: d {each}".encode() for each in range(60)],
        }
    else:
        logs = {each.stem: each.read_bytes().replace(b"\r", b"").splitlines() for each in Path(folder).glob("*.log")}
    every = [
        ((service if host == 0 else f"{service}-{host}"), line)
        for host in range(HOSTS)
        for number in range(max(map(len, logs.values())))
        for service, line in ((service, of_it[number % len(of_it)]) for service, of_it in logs.items())
    ]
    return list(islice(cycle(every), count))


def write(broker: Broker, lines: list[Line], few: int) -> None:
    properties = {"bootstrap.servers": broker.address, "log_level": 0}
    admin = AdminClient(properties)
    for future in admin.create_topics([NewTopic(TOPIC, 3), NewTopic(FEW, 1)]).values():
        future.result(30)
    producer = Producer({**properties, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for topic, chosen in ((TOPIC, lines), (FEW, lines[: few * SMALL])):
        for number, (service, value) in enumerate(chosen):
            producer.produce(topic, value, service, headers=[("service", service.encode()), ("file", b"/var/log/x")])
            if number % 1000 == 0:
                producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("records were not delivered")


def by_hand(lines: list[Line]) -> float:
    """Seconds to take apart and count in one loop of plain Python."""
    began = time.perf_counter()
    found = Counter[tuple[str, int, str | None]]()
    for service, value in lines:
        text = value.decode("utf-8", "replace")
        head = HEADS[service.split("-")[0]].match(text)
        if head is None:
            found[service, -1, None] += 1
            continue
        told = head.groupdict()
        clock = told["clock"].replace(":", "")
        month = MONTHS.get(told["month"]) or int(told["month"])
        year = int(told.get("year") or 2026)
        moment = datetime(
            year if year > 99 else 2000 + year,
            month,
            int(told["day"]),
            int(clock[:2]),
            int(clock[2:4]),
            int(clock[4:]),
            tzinfo=UTC,
        )
        found[service, int(moment.timestamp()) // WINDOW_S, told.get("level")] += 1
    assert found.total() == len(lines)
    return time.perf_counter() - began


def one_run(bootstrap: str, few: int, stages: str) -> None:
    """In a process of its own: run both, print what they took."""
    from ottla.spark.logs.run import run
    from ottla.spark.platform.session import pipeline_session
    from ottla.spark.running.run import RunOptions

    Path(stages).mkdir(parents=True, exist_ok=True)
    conf = {"spark.driver.memory": "1g", "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{stages}"}
    conf |= {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
    session = pipeline_session("bench", master="local[2]", conf=conf)
    me = Broker("me", "127.0.0.1:0", os.getpid())
    told: dict[str, float] = {}
    once = RunOptions(bootstrap, None, once=True, quiet=True)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        for topic, rows in ((TOPIC, None), (FEW, SMALL)) if few else ((TOPIC, None),):
            before, began = me.cpu_s(), time.perf_counter()
            outcome = run(
                once, [topic], f"{folder}/{topic}", report=f"{folder}/page.html", batch_rows=rows, session=session
            )
            after = me.cpu_s()
            assert before is not None
            assert after is not None
            told |= {f"{topic} query s": outcome.seconds, f"{topic} s": time.perf_counter() - began}
            told |= {f"{topic} cpu s": after[0] - before[0], f"{topic} rows": outcome.counts.read}
    session.stop()
    print(json.dumps(told), flush=True)


def jobs_of(folder: Path) -> list[int]:
    """How many jobs each micro-batch ran, by Spark's event log."""
    found = Counter[str]()
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            if line.startswith('{"Event":"SparkListenerJobStart"'):
                properties = json.loads(line)["Properties"]
                if "streaming.sql.batchId" in properties:
                    found[f"{properties['sql.streaming.queryId']} {properties['streaming.sql.batchId']}"] += 1
    return sorted(found.values())


def measure(broker: Broker, lines: list[Line], few: int, stages: Path) -> Figures:
    """One round: the loop, then the pipeline in a process of its own."""
    loop_s = by_hand(lines)
    command = [sys.executable, __file__, "--run", broker.address, "--few", str(few), "--stages", str(stages)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=users_environment(), check=True)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told[f"{TOPIC} rows"] == len(lines), told
    figures: Figures = {
        "query s": told[f"{TOPIC} query s"],
        "query and report s": told[f"{TOPIC} s"],
        "cpu s": told[f"{TOPIC} cpu s"],
        "query lines/s": len(lines) / told[f"{TOPIC} query s"],
        "loop lines/s": len(lines) / loop_s,
        "query / loop": loop_s / told[f"{TOPIC} query s"],
    }
    if few:
        assert told[f"{FEW} rows"] == few * SMALL, told
        figures["small batch ms"] = told[f"{FEW} query s"] / few * 1000
    jobs = jobs_of(stages)
    return {**figures, "jobs a batch": jobs[len(jobs) // 2]}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--logs", help="a folder of real logs")
    asked.add_argument("--lines", type=int, default=300_000)
    asked.add_argument("--few", type=int, default=30, help="so many micro-batches of 100 lines")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--quick", action="store_true", help="a tenth of the lines, one round")
    asked.add_argument("--stages", help="a folder to keep Spark's event logs in")
    asked.add_argument("--run", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.run:
        one_run(options.run, options.few, options.stages)
        return
    count, rounds = (options.lines // 10, 1) if options.quick else (options.lines, options.rounds)
    print(machine_line(), flush=True)
    nodes = Nodes(None, "page-cache")
    stages = Path(options.stages) if options.stages else nodes.base / "stages"
    try:
        with nodes.running() as broker:
            lines = sample(options.logs, count)
            write(broker, lines, options.few)
            several = [measure(broker, lines, options.few, stages / str(each)) for each in range(rounds)]
        print(f"{count:,} lines, then {options.few} micro-batches of {SMALL}")
        for figure in several[0]:
            print(f"  {figure:<20}{spread([each[figure] for each in several])}", flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
