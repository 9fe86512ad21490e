"""`ottla pipeline activity --once` over a finished log, beside a plain loop in Python over the same values.

    python bench/spark_activity.py [--only shop log few] [--events 145200] [--rounds 3] [--quick] [--stages FILE]

Each round is a fresh process: the JVM's start is not counted, all else is, from the first question to the broker to the
report page. The loop reads the same values from memory, on one core, and counts events, windows and visits.

- `shop`: the demo's events, JSON, in its two topics
- `log`: lines of a real access log (--log FILE, else lines like them), over and over, so that times repeat
- `few`: the demo's replay of a log of two lines: one visitor, one time, and what is no line

`--stages` keeps Spark's own account of the first round (its event log) as `stage` lines: what ran for how long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path

from brokers import Broker, Nodes, users_environment
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from figures import Figures, spread
from machine import machine_line

from ottla.demo import events

NAMES = ["shop", "log", "few"]
WINDOW_S, GAP_S = 300, 1800
TWO = (
    b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"\n',
    b"\xff no log line at all\n",
)


def lines_like_a_log(count: int) -> Iterator[bytes]:
    """Lines of the combined format over a few days, where no real log is given."""
    draw, at = random.Random(1), datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
    for _ in range(count):
        at += timedelta(seconds=draw.randrange(60))
        who, page = f"10.0.{draw.randrange(8)}.{draw.randrange(250)}", draw.choice(events.PATHS)
        agent, status = draw.choice(events.AGENTS), draw.choice(events.STATUSES)
        request = f'"GET {page} HTTP/1.1" {status} {draw.randrange(1 << 17)} "http://example.org/" "{agent}"'
        yield f"{who} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] {request}".encode()


def sample(name: str, count: int, log: str | None, folder: Path) -> list[events.Event]:
    """(topic, key, value) of so many events of a shape."""
    if name == "shop":
        return list(islice(events.made_up(), count))
    if name == "few":
        path = folder / "two.log"
        path.write_bytes(b"".join(TWO))
        return list(islice(events.replayed(path), count))
    lines = Path(log).read_bytes().splitlines() if log else list(lines_like_a_log(10_000))
    return [(events.PAGE_VIEWS, line.split(b" ")[0], line) for line in islice(cycle(lines), count)]


def write(broker: Broker, made: list[events.Event]) -> None:
    """Two topics as the demo has them, and everything in them."""
    properties = {"bootstrap.servers": broker.address, "log_level": 0}
    admin = AdminClient(properties)
    for future in admin.create_topics([NewTopic(events.PAGE_VIEWS, 6), NewTopic(events.ERRORS, 3)]).values():
        future.result(30)
    producer = Producer({**properties, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for topic, key, value in made:
        producer.produce(topic, value, key)
    if producer.flush(120):
        raise RuntimeError("records were not delivered")


# The loop beside it


def by_hand(values: list[bytes]) -> float:
    """Seconds to parse and count in one loop of plain Python."""
    began = time.perf_counter()
    windows, pages, last, visits, bad = Counter[int](), Counter[tuple[int, str]](), dict[str, float](), 0, 0
    for value in values:
        found = read(value)
        if found is None:
            bad += 1
            continue
        visitor, page, at = found
        window = int(at) // WINDOW_S
        windows[window] += 1
        pages[window, page] += 1
        visits += at - last.get(visitor, -1e9) > GAP_S
        last[visitor] = at
    assert windows.total() + bad == len(values)
    return time.perf_counter() - began


def read(value: bytes) -> tuple[str, str, float] | None:
    """Visitor, page and time of an event."""
    text = value.decode("utf-8", "replace")
    if text.startswith("{"):
        found = json.loads(text)
        told = found.get("time")
        at = stamp(told) if told else time.time()
        visitor = found.get("visitor") or found.get("client")
        return None if visitor is None else (visitor, found.get("path") or "/", at)
    line = re.match(events.COMBINED, text)
    return None if line is None else (line["client"], line["path"], stamp(line["time"]))


def stamp(told: str) -> float:
    return datetime.strptime(told, "%d/%b/%Y:%H:%M:%S %z").timestamp()


# The pipeline


def one_run(bootstrap: str, stages: str | None) -> None:
    """In a process of its own: run it, print what it took."""
    from ottla.spark.activity import run
    from ottla.spark.platform.session import pipeline_session
    from ottla.spark.running.run import RunOptions

    conf = {"spark.driver.memory": "1g"}
    if stages:
        Path(stages).mkdir(parents=True, exist_ok=True)
        conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{stages}"}
        conf |= {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
    session = pipeline_session("bench", master="local[2]", conf=conf)
    me = Broker("me", "127.0.0.1:0", os.getpid())
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        before = me.cpu_s()
        outcome = run(
            RunOptions(bootstrap, None, once=True, quiet=True),
            [events.PAGE_VIEWS, events.ERRORS],
            f"{folder}/site",
            report=f"{folder}/report.html",
            session=session,
        )
        after = me.cpu_s()
    assert before is not None
    assert after is not None
    told = {"rows": outcome.rows, "seconds": outcome.seconds, "cpu_s": after[0] - before[0], "said": str(outcome)}
    session.stop()
    print(json.dumps(told), flush=True)


def measure(broker: Broker, made: list[events.Event], stages: str | None) -> Figures:
    """One round: the loop, then the pipeline in a process of its own."""
    loop_s = by_hand([value for _, _, value in made])
    command = [sys.executable, __file__, "--run", broker.address, *(["--stages", stages] if stages else [])]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=users_environment(), check=True)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["rows"] == len(made), told
    return {
        "pipeline s": told["seconds"],
        "pipeline events/s": len(made) / told["seconds"],
        "pipeline cpu s": told["cpu_s"],
        "loop events/s": len(made) / loop_s,
        "pipeline / loop": loop_s / told["seconds"],
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    asked.add_argument("--events", type=int, default=145_200)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--log", help="an access log for `log`")
    asked.add_argument("--quick", action="store_true", help="a tenth of the events, one round")
    asked.add_argument("--stages", help="a directory for Spark's event logs")
    asked.add_argument("--run", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.run:
        one_run(options.run, options.stages)
        return
    count, rounds = (options.events // 10, 1) if options.quick else (options.events, options.rounds)
    print(machine_line(), flush=True)
    nodes = Nodes(None, "page-cache")
    try:
        for name in options.only:
            with nodes.running() as broker:
                made = sample(name, count, options.log, nodes.base)
                write(broker, made)
                several = [measure(broker, made, options.stages) for _ in range(rounds)]
            print(f"{name}, {count:,} events")
            for figure in several[0]:
                print(f"  {figure:<20}{spread([each[figure] for each in several])}", flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
