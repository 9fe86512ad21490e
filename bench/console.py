"""The cost of the console: the slowdown of a node's small requests by open pages, and memory under steady use.

    python -m bench.console [--only PATTERN ...] [--pages 100] [--minutes 5] [--seconds 4] [--rounds 5] [--quick]
    python -m bench.console --list

`open-pages`: one small message at a time, in turns with and without open pages. The pages are asked for as browsers do
it: each in a session of its own, the page and its parts at their own intervals. Where there are two cores, node and
producer share one, and the console and its browsers have the other: the figures show what the node does for it, not
what its own process needs. The rows of CPU are measured with pages alone.

`first-byte`: the time until a page begins in a new session, on a node with 10,000 topics and 1,000 groups, and on one
with ten of each. Pages that read all topics are measured twice: when the console remembers nothing, and at once again,
in another session.

`first-paint`: the same pages in Chromium, each in a new session: from the navigation until text is painted. It needs
playwright, and `chromium` or `chromium-headless-shell`.

`memory`: the console's resident memory while every page and part is asked for as fast as it answers, with a new session
every 50 requests; the slope is that from the first minute (with less than two, the first half) to the end.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import BenchFailedError, Broker, Nodes, OttlaNode, users_environment
from bench.figures import Figures, Rounds, measure_in_turns, percentiles, table
from bench.figures import Scale as Turns
from bench.node.latency import Pace
from bench.program import in_words, main, parser, scaled
from ottla.client.errors import check
from ottla.console.app import REFRESH
from ottla.console.reading import KEPT_S
from ottla.console.registry import PAGES
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

TOPICS, GROUPS = 50, 20
THREADS = 8
SETTLE_S = 1.0
PATIENCE_S = 60
REQUESTS_OF_SESSION = 50


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. `warmup`: rounds before those that count."""

    seconds: float
    rounds: int
    warmup: int
    pages: int
    minutes: float
    topics: int


FULL = Scale(seconds=4, rounds=5, warmup=1, pages=100, minutes=5, topics=10_000)
QUICK = Scale(seconds=0.3, rounds=1, warmup=0, pages=20, minutes=0.05, topics=200)


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing that is measured."""

    name: str
    says: str
    measure: Callable[[Nodes, Scale], Rounds]


# ---- a console and what it shows -----------------------------------------------------------------------------------


@contextlib.contextmanager
def on_core(number: int) -> Iterator[None]:
    """Children and threads that start in this block run on one core, where there are several."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def filled(node: Broker) -> dict[str, dict[str, str]]:
    """Topics and groups for the pages to show; the query of each page of one thing."""
    topics = [node.create_topic(3) for _ in range(TOPICS)]
    producer = Producer({**node.properties, "linger.ms": 5, "transactional.id": "bench-console"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(100):
        producer.produce(topics[0], b'{"number": %d}' % number, partition=number % 3)
    producer.commit_transaction(PATIENCE_S)
    for number in range(GROUPS):
        consumer = Consumer({**node.properties, "group.id": f"group-{number}"})
        consumer.commit(offsets=[TopicPartition(topics[number], 0, 0)], asynchronous=False)
        consumer.close()
    return {
        "topic": {"name": topics[0]},
        "messages": {"topic": topics[0], "tail": "0:0,1:0,2:0"},
        "message": {"topic": topics[0], "partition": "0", "offset": "0"},
        "group": {"name": "group-0"},
        "transaction": {"name": "bench-console"},
    }


@contextlib.contextmanager
def console(node: Broker) -> Iterator[tuple[int, str]]:
    """A console of the node as a process: its process id and the address with the token."""
    command = [sys.executable, "-m", "ottla", "console", "--bootstrap", node.address, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=users_environment())
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if (found := re.search(r"http://\S+", line)) is not None:
                yield process.pid, found[0]
                return
        raise BenchFailedError("The console did not print its address.")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()


class Session:
    """A browser's connection to the console, with the cookie that it got for the token."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self._where = parts.netloc
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
        self._connection.request("GET", f"/?{parts.query}")
        answer = self._connection.getresponse()
        answer.read()
        self._cookie = (answer.headers["set-cookie"] or "").partition(";")[0]

    def get(self, path: str, *, refreshes: bool = True) -> int:
        """The status of an answer; its text is read. A connection that was idle may have been closed. `refreshes`: it
        is asked for by a page that is open."""
        headers = {"cookie": self._cookie, "hx-request": "true", REFRESH: str(refreshes).lower()}
        for is_last in (False, True):
            try:
                self._connection.request("GET", path, headers=headers)
                answer = self._connection.getresponse()
                answer.read()
                return answer.status
            except (http.client.HTTPException, ConnectionError):
                self._connection.close()
                if is_last:
                    raise
        raise AssertionError

    def first_byte_ms(self, path: str) -> float:
        """Milliseconds until an answer begins."""
        if self.get("/static/favicon.svg") != 200:  # connects again if the connection was idle
            raise BenchFailedError("The console does not answer.")
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"cookie": self._cookie})
        answer = self._connection.getresponse()
        spent_ms = (time.perf_counter() - began) * 1000
        answer.read()
        if answer.status != 200:
            raise BenchFailedError(f"{path}: {answer.status}")
        return spent_ms

    def close(self) -> None:
        self._connection.close()


def places(of: dict[str, dict[str, str]]) -> list[list[tuple[str, float]]]:
    """For each page, its own path and those of its parts, with their intervals in seconds."""
    found: list[list[tuple[str, float]]] = []
    for page in PAGES:
        query = dict(of.get(page.name, {}))
        if not page.label and not query:
            continue
        cursor = query.pop("tail", None)
        end = f"?{urllib.parse.urlencode(query)}" if query else ""
        rows = [(page.path + end, float(page.refresh_s))] if page.refresh_s else [(page.path + end, 1e9)]
        for part in page.parts:
            more = f"&after={cursor}" if part.name == "tail" else ""
            rows.append((f"{page.path}/part/{part.name}{end}{more}", 1.0 if part.name == "tail" else part.refresh_s))
        found.append(rows)
    return found


# ---- open pages ----------------------------------------------------------------------------------------------------


def browse(address: str, pages: int, of: dict[str, dict[str, str]], answered: Any) -> None:
    """Keep pages open until the process ends: a thread asks for several of them, each when it is due."""
    kinds = itertools.cycle(places(of))
    mine = [(Session(address), next(kinds)) for _ in range(pages)]
    chance = random.Random(7)

    def keep(few: Sequence[tuple[Session, list[tuple[str, float]]]]) -> None:
        now = time.monotonic()
        due = [[now + chance.random() * every, session, path, every] for session, rows in few for path, every in rows]
        while True:
            first = min(due, key=lambda row: row[0])
            late_s = time.monotonic() - first[0]
            if late_s < 0:
                time.sleep(-late_s)
            elif late_s > 3:  # stopped meanwhile
                for row in due:
                    row[0] = time.monotonic() + chance.random() * row[3]
                continue
            status = first[1].get(first[2])
            if status != 200:
                print(f"{first[2]}: {status}", file=sys.stderr, flush=True)
            with answered.get_lock():
                answered.value += 1
            first[0] = max(first[0] + first[3], time.monotonic())

    for number in range(THREADS):
        threading.Thread(target=keep, args=(mine[number::THREADS],), daemon=True).start()


@contextlib.contextmanager
def open_pages(
    address: str, pages: int, of: dict[str, dict[str, str]], answered: Any
) -> Iterator[Callable[[bool], None]]:
    """Browsers as a process of their own, which the function given stops and continues."""
    pid = os.fork()
    if pid == 0:
        browse(address, pages, of, answered)
        while True:
            time.sleep(5)
    try:
        time.sleep(SETTLE_S)

        def go(on: bool) -> None:
            os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)

        yield go
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def produced(node: OttlaNode, seconds: float) -> Figures:
    """Small messages, each waits for its acknowledgement."""
    with node.topic() as topic:
        spent_us = Pace(None, "1").alone(node, topic, seconds)
    ends = percentiles("one at a time", spent_us, (50, 99))
    return {"one at a time requests/s": len(spent_us) / (sum(spent_us) / 1e6), **ends}


def measure_open_pages(nodes: Nodes, scale: Scale) -> Rounds:
    """A small message at a time, without and with open pages."""
    with on_core(0):
        node = nodes.make()
        node.start()
        of = filled(node)
    answered = multiprocessing.Value("q", 0)
    with contextlib.ExitStack() as stack:
        with on_core(-1):
            console_pid, address = stack.enter_context(console(node))
            go = stack.enter_context(open_pages(address, scale.pages, of, answered))
        time.sleep(5 * SETTLE_S)
        looking = Broker("console", node.address, console_pid)

        def side(on: bool) -> Figures:
            go(on)
            time.sleep(SETTLE_S)
            with on_core(0):
                found = produced(node, scale.seconds)
            before, own, pages, began = node.cpu_s(), looking.cpu_s(), answered.value, time.monotonic()
            time.sleep(scale.seconds)
            after, after_own, spent = node.cpu_s(), looking.cpu_s(), time.monotonic() - began
            assert before is not None
            assert after is not None
            assert own is not None
            assert after_own is not None
            found["page requests/s"] = (answered.value - pages) / spent
            found["node cpu %"] = 100 * (after[0] - before[0]) / spent
            found["console cpu %"] = 100 * (after_own[0] - own[0]) / spent
            return found

        return measure_in_turns({"with": lambda: side(True), "without": lambda: side(False)}, _of(scale))


def _of(scale: Scale) -> Turns:
    return Turns(scale.seconds, scale.rounds, scale.warmup, 0, 0)


# ---- memory --------------------------------------------------------------------------------------------------------


def measure_memory(nodes: Nodes, scale: Scale) -> Rounds:
    """Resident memory while everything is asked for as fast as it answers."""
    with nodes.running() as node, contextlib.ExitStack() as stack:
        of = filled(node)
        pid, address = stack.enter_context(console(node))
        watched = Broker("console", node.address, pid)
        paths = [path for rows in places(of) for path, _ in rows]
        asked, failed, until = itertools.count(), list[str](), time.monotonic() + 60 * scale.minutes

        def ask() -> None:
            while time.monotonic() < until:
                session = Session(address)
                for path in random.sample(paths * REQUESTS_OF_SESSION, REQUESTS_OF_SESSION):
                    if (status := session.get(path, refreshes=random.random() < 0.5)) != 200:
                        failed.append(f"{path}: {status}")
                    next(asked)
                    if time.monotonic() > until:
                        break
                session.close()

        threads = [threading.Thread(target=ask) for _ in range(THREADS // 2)]
        for thread in threads:
            thread.start()
        began, seen = time.monotonic(), list[tuple[float, float]]()
        while time.monotonic() < until:
            time.sleep(min(2.0, 60 * scale.minutes / 10))
            seen.append((time.monotonic() - began, watched.resident_mb() or 0.0))
        files = watched.open_files()
        for thread in threads:
            thread.join(PATIENCE_S)
    if failed:
        most = ", ".join(f"{text} ({count})" for text, count in Counter(failed).most_common(5))
        raise BenchFailedError(f"{len(failed)} of {next(asked)} requests failed: {most}")
    start = min(60.0, 30 * scale.minutes)
    later = [each for each in seen if each[0] >= start]
    slope, _ = statistics.linear_regression([at for at, _ in later], [mb for _, mb in later])
    tail = [mb for _, mb in later[-len(later) // 3 :]]
    figures = {
        "page requests": float(next(asked)),
        "resident MB after the first minute": later[0][1],
        "resident MB at the end": later[-1][1],
        "resident MB, most": max(mb for _, mb in seen),
        "slope MB/min": slope * 60,
        "range MB of the last third": max(tail) - min(tail),
        "open files": float(files or 0),
    }
    return {"console": [figures]}


# ---- first byte ----------------------------------------------------------------------------------------------------

LISTS = ("/overview", "/topics", "/groups", "/share-groups", "/transactions", "/cluster", "/security")
PAINTED = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"
OF_ALL_TOPICS = ("/overview", "/topics", "/cluster")
"""Lists that read all topics, or what the console remembers of them for a moment."""


def with_many(node: Broker, topics: int, groups: int) -> None:
    """Topics of one partition, and groups with a committed offset."""
    with node.client() as client:
        for first in range(0, topics, 1000):
            rows = [CreatableTopic(f"topic-{each:05}", 1, 1) for each in range(first, min(topics, first + 1000))]
            for answer in client.send(CreateTopicsRequest(topics=rows, timeout_ms=PATIENCE_S * 1000)).topics:
                check(answer.error_code, answer.name, answer.error_message)
        coordinator = client.coordinator("group-0000", 0)
        parts = [OffsetCommitRequestPartition(0, 0)]
        for number in range(groups):
            asked = OffsetCommitRequest(
                f"group-{number:04}", topics=[OffsetCommitRequestTopic("topic-00000", partitions=parts)]
            )
            (answer,) = coordinator.send(asked, 9).topics
            check(answer.partitions[0].error_code, "a commit")


@functools.cache
def large_and_small(nodes: Nodes, topics: int) -> dict[str, OttlaNode]:
    """A node with many topics and groups, and one with few: both measurements use them. They end with `nodes`."""
    found: dict[str, OttlaNode] = {}
    for name, many, groups in (("large", topics, topics // 10), ("small", 10, 10)):
        found[name] = nodes.make()
        found[name].start()
        with_many(found[name], many, groups)
    return found


class Lists:
    """Consoles of one node. Each page of all topics has one of its own: while others are measured, it forgets the
    topics, so hardly any time is spent on waiting for that."""

    def __init__(self, node: Broker, shown_ms: Callable[[str, str], float], stack: contextlib.ExitStack) -> None:
        self._addresses = {path: stack.enter_context(console(node))[1] for path in ("", *OF_ALL_TOPICS)}
        self._used = dict.fromkeys(self._addresses, -KEPT_S)
        self._shown_ms = shown_ms

    def measure(self) -> Figures:
        """Milliseconds until each page is shown, of a page of all topics also at once again."""
        found: Figures = {}
        for path in LISTS:
            own = path if path in OF_ALL_TOPICS else ""
            if own:
                time.sleep(max(0.0, self._used[own] + KEPT_S - time.monotonic()))
            found[f"{path} ms"] = self._shown_ms(self._addresses[own], path)
            if own:
                found[f"{path} again ms"] = self._shown_ms(self._addresses[own], path)
                self._used[own] = time.monotonic()
        return found


def measure_lists(nodes: Nodes, scale: Scale, shown_ms: Callable[[str, str], float]) -> Rounds:
    """How long pages take that show lists: `shown_ms` gets the console's address and a path."""
    with contextlib.ExitStack() as stack:
        filled_nodes = large_and_small(nodes, scale.topics)
        sides = {name: Lists(node, shown_ms, stack).measure for name, node in filled_nodes.items()}
        return measure_in_turns(sides, replace(_of(scale), rounds=2 * scale.rounds))


def measure_first_byte(nodes: Nodes, scale: Scale) -> Rounds:
    """Time to the first byte."""
    return measure_lists(nodes, scale, lambda address, path: Session(address).first_byte_ms(path))


def measure_first_paint(nodes: Nodes, scale: Scale) -> Rounds:
    """Time to the first paint in Chromium, which loads the console's files anew each time."""
    from playwright.sync_api import sync_playwright  # only this measurement needs it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-headless-shell")
        )

        def painted_ms(address: str, path: str) -> float:
            with contextlib.closing(browser.new_context()) as context:
                context.request.get(address, max_redirects=0)  # a session
                page = context.new_page()
                page.goto(urllib.parse.urljoin(address, path))
                deadline = time.monotonic() + PATIENCE_S
                while time.monotonic() < deadline:
                    found = page.evaluate(PAINTED)
                    if found:
                        return float(found[0])
                    time.sleep(0.01)
            raise BenchFailedError(f"{path} was not painted.")

        try:
            return measure_lists(nodes, scale, painted_ms)
        finally:
            browser.close()


# ---- the program ---------------------------------------------------------------------------------------------------

SUBJECTS = [
    Subject("open-pages", "a small message at a time without and with open pages", measure_open_pages),
    Subject("first-byte", "lists of a node with many topics and groups, and of one with few", measure_first_byte),
    Subject("first-paint", "the same lists in Chromium, until something is painted", measure_first_paint),
    Subject("memory", "the console's memory while it answers as fast as it can", measure_memory),
]


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser("bench.console", __doc__, FULL, seconds="the window of a measurement")
    made.add_argument("--pages", type=int, help=f"open pages ({FULL.pages})")
    made.add_argument("--topics", type=int, help=f"of the lists, with a tenth as many groups ({FULL.topics})")
    made.add_argument("--minutes", type=float, help=f"of `memory` ({FULL.minutes:g})")
    return made.parse_args(arguments)


def run() -> int:
    options = options_of()
    scale = scaled(QUICK if options.quick else FULL, options)
    heading = f"{scale.pages} open pages; {in_words(_of(scale))}"
    return main(
        options,
        SUBJECTS,
        lambda nodes: contextlib.nullcontext(lambda each: each.measure(nodes, replace(scale))),
        heading,
        lines=table,
    )


if __name__ == "__main__":
    sys.exit(run())
