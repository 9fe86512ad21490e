"""Kill a Kafka Streams word count and its nodes again and again, and hold every count against the words.

    python -m tools.crash_streams --libs DIR [--nodes 3] [--rounds 6] [--seed 1] [--rate 200] [--kinds app,node]

Kafka Streams with `processing.guarantee=exactly_once_v2` reads topic `lines`, regroups the words through a topic of its
own, counts them in a state store (RocksDB, with a changelog topic) and writes each new count to `counts`. A round kills
the application and the node with SIGKILL, in a random order, each at a random moment; of three nodes, which have three
copies of everything, the one whose turn it is. At the end, to readers of committed records, each word's counts must be
1, 2, 3 ... in steps that never go back, up to how often it was written. No node may log an error of its own.

DIR holds the jars of kafka-streams and what it needs, which are not ours to ship; `java` and `javac` are on the path:

    mvn dependency:copy-dependencies -DoutputDirectory=DIR     # of a pom.xml with org.apache.kafka:kafka-streams
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from tests.harness.topics import every_record
from tools.killed_nodes import KilledNodes, begin_nodes

PARTITIONS = 3
WORDS = 40
SOURCE = Path(__file__).resolve().parent / "streams" / "WordCount.java"
ENDS_WITHIN_S = 240.0


class Application:
    """The word count in a process of its own, with its state on disk."""

    def __init__(self, libs: str, bootstrap: str, directory: Path) -> None:
        classes = directory / "classes"
        subprocess.run(["javac", "-cp", f"{libs}/*", "-d", str(classes), str(SOURCE)], check=True)
        small = ["-Xmx256m", "-XX:TieredStopAtLevel=1"]
        self._command = ["java", *small, "-cp", f"{classes}:{libs}/*", "WordCount", bootstrap, str(directory / "state")]
        self._log = (directory / "application.log").open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


class Lines:
    """Writes lines of words until told to stop; `words` counts what was written."""

    def __init__(self, bootstrap: str, rate: int, seed: int) -> None:
        self.words: Counter[str] = Counter()
        self._rng, self._rate = random.Random(seed), rate
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(0.05):
            for _ in range(max(1, self._rate // 20)):
                line = [f"word-{int(self._rng.paretovariate(1.0)) % WORDS}" for _ in range(3)]
                self._producer.produce("lines", " ".join(line))
                self.words.update(line)
            self._producer.poll(0)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def finish(self) -> None:
        """Stop, and wait until all lines are there."""
        self.stop()
        if self._producer.flush(120):
            raise RuntimeError("lines could not be written")


def counts_of(bootstrap: str, login: Mapping[str, str] | None = None) -> dict[str, list[int]]:
    """Each word's counts, in the order in which readers of committed records see them."""
    found: dict[str, list[int]] = {}
    for message in every_record(bootstrap, "counts", "read_committed", login):
        found.setdefault((message.key() or b"").decode(), []).append(int(message.value() or b"0"))
    return found


def failures_in(found: dict[str, list[int]], words: Counter[str]) -> list[str]:
    failures = [f"{word} is counted {found.get(word, [0])[-1]} times instead of {count}"
                for word, count in sorted(words.items()) if found.get(word, [0])[-1] != count]  # fmt: skip
    for word, counts in sorted(found.items()):
        if any(after <= before for before, after in pairwise(counts)):
            failures.append(f"the counts of {word} go back or stand still")
    return failures


def run(given: argparse.Namespace, directory: Path) -> list[str]:
    nodes = begin_nodes(given.nodes, directory)
    try:
        failures = count_words(given, directory, nodes)
    finally:
        errors = nodes.stop()
    return failures + errors


def count_words(given: argparse.Namespace, directory: Path, nodes: KilledNodes) -> list[str]:
    """What is wrong with the counts after all rounds."""
    rng, bootstrap = random.Random(given.seed), nodes.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [NewTopic(name, PARTITIONS, given.nodes) for name in ("lines", "counts")]
    for made in admin.create_topics(new).values():
        made.result(30)
    lines = Lines(bootstrap, given.rate, given.seed)
    application = Application(given.libs, bootstrap, directory)
    try:
        for index in range(given.rounds):
            at = written(bootstrap)
            until = time.monotonic() + 120
            while written(bootstrap) <= at and time.monotonic() < until:
                time.sleep(0.2)
            for kind in rng.sample(given.kinds, len(given.kinds)):
                time.sleep(rng.random() * 3)
                if kind == "app":
                    application.kill()
                    application.start()
                else:
                    nodes.kill(away_s=rng.choice((0.0, 0.5, 2.0)))
            print(f"round {index + 1}: {sum(lines.words.values())} words, {written(bootstrap)} counts", flush=True)
        lines.finish()
        until = time.monotonic() + ENDS_WITHIN_S
        found = counts_of(bootstrap)
        while failures_in(found, lines.words) and time.monotonic() < until:
            time.sleep(1)
            found = counts_of(bootstrap)
        print(f"{sum(lines.words.values())} words of {len(lines.words)}, {sum(map(len, found.values()))} counts")
        return failures_in(found, lines.words)
    finally:
        lines.stop()
        application.stop()


def written(bootstrap: str) -> int:
    with Client(bootstrap) as client:
        return sum(client.list_offsets("counts", range(PARTITIONS)).values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libs", required=True, help="the directory of the jars")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=200, help="lines a second")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["app", "node"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-streams-") as directory:
        failures = run(given, Path(directory))
        if failures:
            print((Path(directory) / "application.log").read_text(errors="replace")[-4000:])
    for failure in failures:
        print(f"FAILED: {failure}")
    print("failed" if failures else "every word is counted exactly once")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
