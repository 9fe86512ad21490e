"""`ottla pipeline activity --once` over a finished log, beside a plain loop in Python over the same values.

    python -m bench.spark.activity [--only shop log few] [--events 145200] [--rounds 3] [--quick] [--stages DIR]

A round's pipeline is a process of its own (rounds.py). The loop reads the same values from memory, on one core, and
counts events, windows and visits.

- `shop`: the demo's events, JSON, in its two topics
- `log`: lines of a real access log (--log FILE, else lines like them), over and over, so that times repeat
- `few`: two lines over and over: one visitor, one time, and what is no line
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.brokers import Broker
from bench.figures import Figures
from bench.spark import rounds
from ottla.demo import events

FULL = rounds.Scale(records=145_200, rounds=3)
SAMPLES = {
    "shop": "the demo's events, JSON, in its two topics",
    "log": "lines of an access log, over and over, so that times repeat",
    "few": "two lines over and over: one visitor, one time, and what is no line",
}
WINDOW_S, GAP_S = 300, 1800
COMBINED = re.compile(r'(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "(?:\S+ )?(?P<path>[^" ]*)')
"""As much of a line as the loop wants."""
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


def sample(name: str, count: int, log: str | None) -> list[events.Event]:
    """(topic, key, value) of so many events of a shape."""
    if name == "shop":
        return list(islice(events.made_up(), count))
    if name == "few":
        return [events.event_of(line.rstrip(b"\n")) for line in islice(cycle(TWO), count)]
    lines = Path(log).read_bytes().splitlines() if log else list(lines_like_a_log(10_000))
    return [(events.PAGE_VIEWS, line.split(b" ")[0], line) for line in islice(cycle(lines), count)]


# ---- the loop beside it --------------------------------------------------------------------------------------------


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
    line = COMBINED.match(text)
    return None if line is None else (line["client"], line["path"], stamp(line["time"]))


def stamp(told: str) -> float:
    return datetime.strptime(told, "%d/%b/%Y:%H:%M:%S %z").timestamp()


# ---- the pipeline --------------------------------------------------------------------------------------------------


def one_run(bootstrap: str, stages: str | None) -> None:
    """In a process of its own: run it, print what it took."""
    from ottla.spark.activity import run
    from ottla.spark.running.run import RunOptions

    session = rounds.session(stages)
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder, rounds.spent(told, "all"):
        outcome = run(
            RunOptions(bootstrap, None, once=True, quiet=True),
            [events.PAGE_VIEWS, events.ERRORS],
            f"{folder}/site",
            report=f"{folder}/report.html",
            session=session,
        )
    session.stop()
    print(json.dumps({"rows": outcome.rows, "seconds": outcome.seconds, **told}), flush=True)


def prepared(name: str, options: argparse.Namespace, broker: Broker, count: int) -> Callable[[Path], Figures]:
    """Two topics as the demo has them, and everything in them."""
    made = sample(name, count, options.log)
    rounds.fill(broker, {events.PAGE_VIEWS: 6, events.ERRORS: 3}, ((*each, []) for each in made))
    return lambda stages: one_round(broker, made, stages if options.stages else None)


def one_round(broker: Broker, made: list[events.Event], stages: Path | None) -> Figures:
    """The loop, then the pipeline in a process of its own."""
    loop_s = by_hand([value for _, _, value in made])
    told = rounds.in_a_process("bench.spark.activity", broker, stages)
    assert told["rows"] == len(made), told
    return {
        "pipeline s": told["seconds"],
        "pipeline events/s": len(made) / told["seconds"],
        "pipeline cpu s": told["all cpu s"],
        "loop events/s": len(made) / loop_s,
        "pipeline / loop": loop_s / told["seconds"],
    }


def main() -> int:
    made = rounds.parser("bench.spark.activity", __doc__, FULL, "events")
    made.add_argument("--log", metavar="FILE", help="an access log for `log`")
    options = made.parse_args()
    if options.run:
        one_run(options.run, options.stages)
        return 0
    every = [rounds.Measurement(name, says, partial(prepared, name, options)) for name, says in SAMPLES.items()]
    return rounds.measure(options, every, FULL)


if __name__ == "__main__":
    sys.exit(main())
