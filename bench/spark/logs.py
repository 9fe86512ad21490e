"""`ottla pipeline logs --once` over a finished log, beside a plain loop in Python over the same lines.

    python -m bench.spark.logs --logs FOLDER [--lines 300000] [--few 30] [--rounds 3] [--quick] [--stages FOLDER]

FOLDER has logs of services (`hadoop.log`, `linux.log` ...); their lines come again and again, of four hosts each, so
that there are four times as many services. Without it: made-up lines of two formats. A round's pipeline is a process of
its own (rounds.py); behind it come so `few` micro-batches of 100 lines. The loop reads the same lines from memory, on
one core, takes each apart with its service's one expression and counts services, windows and levels.

The jobs that are counted come out of Spark's event log.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from calendar import month_abbr
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.brokers import Broker
from bench.figures import Figures
from bench.spark import rounds

FULL = rounds.Scale(records=300_000, rounds=3)
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
    from ottla.spark.running.run import RunOptions

    session = rounds.session(stages)
    told: dict[str, Any] = {}
    once = RunOptions(bootstrap, None, once=True, quiet=True)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        for topic, rows in ((TOPIC, None), (FEW, SMALL)) if few else ((TOPIC, None),):
            with rounds.spent(told, topic):
                outcome = run(
                    once, [topic], f"{folder}/{topic}", report=f"{folder}/page.html", batch_rows=rows, session=session
                )
            told |= {f"{topic} query s": outcome.seconds, f"{topic} rows": outcome.counts.read}
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


def prepared(options: argparse.Namespace, broker: Broker, count: int) -> Callable[[Path], Figures]:
    lines = sample(options.logs, count)
    chosen = ((topic, line) for topic, some in ((TOPIC, lines), (FEW, lines[: options.few * SMALL])) for line in some)
    rounds.fill(
        broker,
        {TOPIC: 3, FEW: 1},
        (
            (topic, service, value, [("service", service.encode()), ("file", b"/var/log/x")])
            for topic, (service, value) in chosen
        ),
    )
    return lambda stages: one_round(broker, lines, options.few, stages)


def one_round(broker: Broker, lines: list[Line], few: int, stages: Path) -> Figures:
    """The loop, then the pipeline in a process of its own."""
    loop_s = by_hand(lines)
    told = rounds.in_a_process("bench.spark.logs", broker, stages, "--few", str(few))
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


def main() -> int:
    made = rounds.parser("bench.spark.logs", __doc__, FULL, "lines")
    made.add_argument("--logs", metavar="FOLDER", help="a folder of real logs")
    made.add_argument("--few", type=int, default=30, help="so many micro-batches of 100 lines (30)")
    options = made.parse_args()
    if options.run:
        one_run(options.run, options.few, options.stages)
        return 0
    says = f"lines of services, then {options.few} micro-batches of {SMALL}"
    return rounds.measure(options, [rounds.Measurement("logs", says, partial(prepared, options))], FULL)


if __name__ == "__main__":
    sys.exit(main())
