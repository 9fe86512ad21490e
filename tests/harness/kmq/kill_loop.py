"""Kill workers and trackers of a queue again and again, and prove what the queue promises.

    python -m tests.harness.kmq.kill_loop [--seconds 300] [--seed 1] [--workers 3] [--trackers 2] [--kill-node]

Real processes all: a node, workers (worker.py), trackers (`ottla kmq tracker`). It fails when

- a message was sent and no worker finished it, but for those that nobody ever finishes;
- one of those is no dead letter, or a dead letter has another count than the last;
- a message came again though no time-out of it nor a delay was over, or though it was finished in time;
- a copy's count does not follow its original's;
- in the end something is still open.

The queue's timestamps are the broker's here, so that each copy says when it was made.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.kmq import KmqConfig, create_topics, headers, markers
from ottla.kmq.client import taken
from ottla.kmq.stats import standings
from tools.node_process import NodeProcess

TOP = Path(__file__).resolve().parents[3]
PARTITIONS = 3
TIMEOUT_MS = 1_500
KINDS = ("ok",) * 195 + ("poison", "poison", "fail", "fail", "slow")
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "group.min.session.timeout.ms": "500",
}
DRAIN_S_MAX = 120.0


@dataclass(frozen=True)
class Sent:
    """A record of the queue or the dead-letter topic."""

    number: int
    kind: str
    partition: int
    offset: int
    at_ms: int
    count: int
    headers: list[tuple[str, bytes]]


@dataclass
class Verdict:
    """What a run showed. `faults` is empty when all is well."""

    messages: int = 0
    killed_workers: int = 0
    killed_trackers: int = 0
    killed_nodes: int = 0
    begun: int = 0
    copies: int = 0
    dead_letters: int = 0
    faults: list[str] = field(default_factory=list)


class KillLoop:
    """One run."""

    drain_s_max = DRAIN_S_MAX

    def __init__(self, directory: Path, seed: int, workers: int = 3, trackers: int = 2) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.config = KmqConfig(
            queue="jobs", timeout_ms=TIMEOUT_MS, max_redeliveries=2, use_now_after_ms=300, batch_size=10
        )
        self.node = NodeProcess(directory / "node", SETTINGS)
        self.verdict = Verdict()
        self.kinds: list[str] = []
        self._count = {"worker": workers, "tracker": trackers}
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._kills = 0
        self._logs = (directory / "trackers.log").open("ab")

    # ---- processes -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.node.start()
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap, "log_level": 0})
        queue = NewTopic("jobs", PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([queue])["jobs"].result(30)
        create_topics(admin, self.config)
        self.producer = Producer({"bootstrap.servers": self.node.bootstrap, "linger.ms": 5, "log_level": 0})
        for what, count in self._count.items():
            for index in range(count):
                self.launch(what, index)

    def launch(self, what: str, index: int) -> None:
        command = self._worker(index) if what == "worker" else self._tracker()
        self._processes[what, index] = subprocess.Popen(command, stdout=self._logs, stderr=self._logs, cwd=TOP)

    def _worker(self, index: int) -> list[str]:
        settings = {
            name: getattr(self.config, name) for name in ("queue", "timeout_ms", "batch_size", "use_now_after_ms")
        }
        notes = str(self.directory / f"worker-{index}.notes")
        script = str(Path(__file__).with_name("worker.py"))
        return [sys.executable, script, self.node.bootstrap, notes, json.dumps(settings)]

    def _tracker(self) -> list[str]:
        return [
            *(sys.executable, "-m", "ottla", "kmq", "tracker", "jobs", "--bootstrap", self.node.bootstrap),
            *("--max-redeliveries", "2", "--use-now-after-ms", "300"),
            *("-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=300"),
        ]

    def kill_one(self, what: str) -> None:
        index = self.random.randrange(self._count[what])
        process = self._processes[what, index]
        process.kill()
        process.wait()
        self.launch(what, index)

    def end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._logs.close()
        if self.node.alive:
            self.node.stop()

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(self, seconds: float, *, kill_node: bool = False) -> Verdict:
        """Send and kill for so long, then let it come to rest, then judge."""
        try:
            self.begin()
            until, next_kill = time.monotonic() + seconds, time.monotonic() + 2
            while time.monotonic() < until:
                self.send(self.random.randrange(1, 12))
                time.sleep(0.05)
                if time.monotonic() > next_kill:
                    next_kill = time.monotonic() + self.random.uniform(0.3, 2.0)
                    self._kill(kill_node)
            self.producer.flush(60)
            self.drain()
            self.judge()
        finally:
            self.end()
        return self.verdict

    def send(self, count: int) -> None:
        for _ in range(count):
            kind = self.random.choice(KINDS)
            number = len(self.kinds)
            self.kinds.append(kind)
            self.producer.produce("jobs", f"{number} {kind}", str(number), partition=number % PARTITIONS)
        self.producer.poll(0)
        self.verdict.messages += count

    def _kill(self, kill_node: bool) -> None:
        victims = ("worker", "tracker", *(["node"] if kill_node else []))
        what = victims[self._kills % len(victims)]
        self._kills += 1
        if what == "node":
            self.node.kill()
            self.node.start()
            self.verdict.killed_nodes += 1
        elif what == "worker":
            self.kill_one(what)
            self.verdict.killed_workers += 1
        else:
            self.kill_one(what)
            self.verdict.killed_trackers += 1

    def drain(self) -> None:
        """Wait until nothing waits and nothing is open."""
        began = time.monotonic()
        while time.monotonic() - began < self.drain_s_max:
            found = standings({"bootstrap.servers": self.node.bootstrap, "log_level": 0}, self.config)
            if not any(each.waiting or each.open for each in found):
                return
            time.sleep(0.5)
        self.verdict.faults.append(f"still open after {self.drain_s_max:g} s: {found}")

    # ---- the judgement ---------------------------------------------------------------------------------------------

    def judge(self) -> None:
        verdict = self.verdict
        notes = [line.split() for path in self.directory.glob("*.notes") for line in path.read_text().splitlines()]
        ended = {int(number) for what, number, _ in notes if what == "end"}
        verdict.begun = sum(what == "begin" for what, _, _ in notes)
        queue = list(self.records("jobs"))
        letters = list(self.records(self.config.dead_letters))
        verdict.copies = sum(each.count > 0 for each in queue)
        verdict.dead_letters = len(letters)
        dead = {each.number for each in letters}
        for number, kind in enumerate(self.kinds):
            if kind in ("poison", "fail"):
                if number not in dead:
                    verdict.faults.append(f"{number} ({kind}) is no dead letter")
            elif number not in ended | dead:
                verdict.faults.append(f"{number} ({kind}) was lost: nobody finished it")
        for each in letters:
            said = headers.provenance(each.headers)
            if each.count != 2 or said.delivery_count != 3:
                verdict.faults.append(f"the dead letter {each.number} has count {each.count}: {said}")
        self._judge_times(queue)

    def _judge_times(self, queue: list[Sent]) -> None:
        """Every copy has an original with the count before, that was open, and overdue when the copy was made."""
        marks = self.marks()
        originals: dict[tuple[int, int], list[Sent]] = defaultdict(list)
        for each in queue:
            originals[each.number, each.count].append(each)
        for copy in queue:
            if copy.count == 0:
                continue
            parents = [each for each in originals[copy.number, copy.count - 1] if each.offset < copy.offset]
            if not any(was_due(marks[parent.partition, parent.offset], copy.at_ms) for parent in parents):
                self.verdict.faults.append(
                    f"{copy} came too early: {[marks[each.partition, each.offset] for each in parents]}"
                )

    def marks(self) -> dict[tuple[int, int], list[tuple[int, markers.Start | None]]]:
        """(partition, offset) of a message to its markers, in order, with their times."""
        found: dict[tuple[int, int], list[tuple[int, markers.Start | None]]] = defaultdict(list)
        for message in self.read(self.config.markers):
            found[markers.decode_key(message.key())].append((message.timestamp()[1], markers.decode(message.value())))
        return found

    def records(self, topic: str) -> Iterator[Sent]:
        for message in self.read(topic):
            number, kind = message.value().decode().split()
            found = message.headers() or []
            count = headers.count_in(found, self.config.count_header)
            yield Sent(int(number), kind, message.partition(), message.offset(), message.timestamp()[1], count, found)

    def read(self, topic: str) -> Iterator[Any]:
        """Every record of a topic."""
        given = {"group.id": "judge", "log_level": 0, "fetch.wait.max.ms": 10}  # the next partition waits for a fetch
        consumer = Consumer({"bootstrap.servers": self.node.bootstrap, **given})
        for partition in range(len(consumer.list_topics(topic, 30).topics[topic].partitions)):
            position, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            consumer.assign([TopicPartition(topic, partition, position)])
            while position < end:
                for message in taken(consumer, 1000, 1):
                    assert message.error() is None, message.error()
                    position = message.offset() + 1
                    yield message
        consumer.close()


def was_due(marks: list[tuple[int, markers.Start | None]], at_ms: int) -> bool:
    """Whether some time-out was over at `at_ms`, with no end marker within it nor an extension before its end."""
    for index, (started_ms, said) in enumerate(marks):
        if said is None or started_ms + said.duration_ms > at_ms:
            continue
        due_ms = started_ms + said.duration_ms
        if not any(later_ms < due_ms for later_ms, _ in marks[index + 1 :]):
            return True
    return False


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=300)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--workers", type=int, default=3)
    asked.add_argument("--trackers", type=int, default=2)
    asked.add_argument("--kill-node", action="store_true", help="kill -9 the node too")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loop = KillLoop(Path(directory), options.seed, options.workers, options.trackers)
        verdict = loop.run(options.seconds, kill_node=options.kill_node)
        if verdict.faults:
            print((Path(directory) / "trackers.log").read_text()[-5000:], file=sys.stderr)
    print(verdict)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
