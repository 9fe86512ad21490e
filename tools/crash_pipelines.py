"""Kill a running pipeline's driver, its Python workers and the node, again and again, and count every record.

    python -m tools.crash_pipelines --pipeline sink|transactions|commit|commit-transactions|archive
                                    [--nodes 1|3] [--rounds 30] [--seed 1] [--seconds 3]
                                    [--kinds driver,worker,node] [--directory DIR] [--rate 1500] [--minutes M]

A producer writes numbered records into topic `in` all the while. A round kills one process of each kind with SIGKILL,
in a random order, each at a random moment after the pipeline moved again (or before that, one time in six):

- driver: the JVM and the Python process that started it; Python workers may live on and still be sending
- worker: one of the JVM's Python processes, whatever it is doing
- node: the broker, or one of three with three copies of everything, which starts again on its directory and port

`sink`: a streaming query copies `in` to `out` with `exactlyOnce`, shuffled, so that a replayed micro-batch has its rows
in other places. At the end every offset of every partition of `in` must be in `out` exactly once, with its value.
`commit`: the same copy by what the sink does without Spark around it (staging, manifest, commit, and an offset log of
its own), in a process that starts in a second: many more kills. Its kinds are driver and node.
`transactions`, `commit-transactions`: the same two with `transactional`; `out` is read as committed.
`archive`: `ottla pipeline archive` writes a table, and `ottla pipeline archive verify` must find it without gaps.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client, ClientError
from ottla.testing import EmbeddedCluster
from tools.crash_drivers import DRIVERS, PARTITIONS
from tools.node_process import NodeProcess

KINDS = ("driver", "worker", "node")
MOVES_WITHIN_S = 240.0
"""Less than a test may take: what stands still is told with the driver's last lines."""
ENDS_WITHIN_S = 900.0
EARLY = 1 / 6
"""How often a kill does not wait until the pipeline moved."""


# ---- processes -----------------------------------------------------------------------------------------------------


def stat_of(pid: int) -> tuple[int, str] | None:
    """Parent and start time of a process; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def descendants(root: int) -> dict[int, str]:
    """Process ids below `root`, with their start times: a pid alone may be another process a moment later."""
    rows = {int(name): stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found: dict[int, str] = {}
    below = [root]
    while below:
        parent = below.pop()
        for pid, row in rows.items():
            if row is not None and row[0] == parent and pid not in found:
                found[pid] = row[1]
                below.append(pid)
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Driver:
    """A driver and all that it starts; only these are ever signalled."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self.seen: dict[int, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def look(self) -> dict[int, str]:
        below = descendants(self.pid)
        self.seen.update(below)
        return below

    def kill_driver(self) -> bool:
        """JVM and Python parent at once; the workers are left to themselves."""
        java = [pid for pid in self.look() if name_of(pid) == "java"]
        killed = [kill(pid) for pid in [*java, self.pid]]
        assert self._process is not None
        self._process.wait()
        return all(killed)

    def kill_worker(self, rng: random.Random) -> bool:
        """One Python process below the JVM."""
        java = [pid for pid in self.look() if name_of(pid) == "java"]
        workers = sorted(pid for root in java for pid in descendants(root) if name_of(pid).startswith("python"))
        return bool(workers) and kill(rng.choice(workers))

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of everything this driver ever started."""
        if self._process is None:
            return
        self.look()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        for pid, born in {self.pid: None, **self.seen}.items():
            row = stat_of(pid)
            if row is not None and born in (None, row[1]):
                kill(pid)
        self._process.wait()

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class Feeder(threading.Thread):
    """Writes numbered records, a few thousand each second, through every restart of the node."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failure: str | None = None
        self.done = threading.Event()
        self.rate = rate
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        waits = {"message.timeout.ms": 300_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        self.producer = Producer({**settings, **waits})

    def run(self) -> None:
        while not self.done.is_set():
            for _ in range(self.rate // 20):
                try:
                    text = b"record %d" % self.sent
                    self.producer.produce("in", text, partition=self.sent % PARTITIONS, on_delivery=self._told)
                    self.sent += 1
                except BufferError:
                    break
            self.producer.poll(0)
            self.done.wait(0.05)

    def finish(self) -> None:
        self.done.set()
        self.join()
        if self.producer.flush(120):
            self.failure = self.failure or "records of the producer were neither acknowledged nor refused"

    def _told(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failure = self.failure or f"the producer failed: {error}"


# ---- pipelines -----------------------------------------------------------------------------------------------------


class Pipeline(Protocol):
    """What is killed: a command, how far it is, and what is wrong with what it made."""

    command: list[str]

    def moved(self) -> int: ...
    def complete(self, driver: Driver) -> None: ...
    def failures(self) -> list[str]: ...


class Sink:
    """`in` to `out` by a streaming query of `tools.crash_pipelines --drive`."""

    name = "sink"

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        checkpoint = ["--directory", str(directory / "checkpoint")]
        command = [sys.executable, "-m", "tools.crash_pipelines", "--pipeline", self.name, "--drive", bootstrap]
        self.command = [*command, *checkpoint]

    def moved(self) -> int:
        return sum(ends(self.bootstrap, "out").values())

    def written(self) -> int:
        """How many records are in `out`, doubled ones too."""
        return self.moved()

    def complete(self, driver: Driver) -> None:
        """Wait until as much came out as went in, and a little longer for what should not come."""
        wanted = sum(ends(self.bootstrap, "in").values())
        until = time.monotonic() + ENDS_WITHIN_S
        while self.written() < wanted and time.monotonic() < until:
            if driver.ended is not None:
                driver.start()
            time.sleep(0.5)
        time.sleep(3)
        driver.stop()

    def failures(self) -> list[str]:
        given = {
            b"%d-%d" % (message.partition(), message.offset()): message.value()
            for message in all_of(self.bootstrap, "in")
        }
        found: dict[bytes, int] = {}
        failures: list[str] = []
        for message in all_of(self.bootstrap, "out"):
            key = message.key()
            found[key] = found.get(key, 0) + 1
            if given.get(key) != message.value():
                failures.append(f"{key.decode()} came out as {message.value()!r}")
        lost, doubled = given.keys() - found.keys(), [key for key, times in found.items() if times > 1]
        if lost:
            failures.append(f"{len(lost)} of {len(given)} records are lost, among them {sorted(lost)[:3]}")
        if doubled:
            failures.append(f"{len(doubled)} records are there more than once, among them {sorted(doubled)[:3]}")
        print(f"{len(given)} records in, {sum(found.values())} out")
        return failures


class Commit(Sink):
    """`in` to `out` by the sink's commit alone."""

    name = "commit"


class InTransactions(Sink):
    """The same with each micro-batch a transaction: markers, and what was aborted, take offsets too."""

    name = "transactions"

    def written(self) -> int:
        return sum(1 for _ in all_of(self.bootstrap, "out"))


class CommitInTransactions(InTransactions):
    """The sink's commit alone, each a transaction."""

    name = "commit-transactions"


class Archive:
    """`ottla pipeline archive`, and what its own `verify` says."""

    name = "archive"

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.table = directory / "table"
        pipeline = [sys.executable, "-m", "ottla", "pipeline", "archive"]
        places = ["--topic", "in", "--table", str(self.table), "--checkpoint", str(directory / "checkpoint")]
        small = ["--master", "local[2,4]", "--batch-rows", "20000", "--conf", "spark.driver.memory=1g"]
        self.command = [*pipeline, "-b", bootstrap, *places, *small, "--trigger", "0.5"]
        self.last = [*pipeline, "-b", bootstrap, *places, *small, "--once"]
        self.verify = [*pipeline, "verify", "-b", bootstrap, "--table", str(self.table), "--content"]

    def moved(self) -> int:
        log = self.table / "_delta_log"
        return len(list(log.glob("*.json"))) if log.is_dir() else 0

    def complete(self, driver: Driver) -> None:
        driver.stop()
        with open(driver.log, "ab") as log:
            code = subprocess.run(self.last, stdout=log, stderr=log, timeout=ENDS_WITHIN_S).returncode
        if code:
            raise RuntimeError(f"the last run ended with {code}:\n{driver.last_lines()}")

    def failures(self) -> list[str]:
        done = subprocess.run(self.verify, capture_output=True, text=True, timeout=ENDS_WITHIN_S)
        print(done.stdout.strip())
        return [] if done.returncode == 0 else [f"verify ended with {done.returncode}: {done.stdout}{done.stderr}"]


PIPELINES: dict[str, Callable[[str, Path], Pipeline]] = {
    made.name: made for made in (Sink, InTransactions, Commit, CommitInTransactions, Archive)
}


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    with Client(bootstrap, timeout_s=30) as client:
        return client.list_offsets(topic, range(PARTITIONS))


def all_of(bootstrap: str, topic: str) -> Iterator[Any]:
    """Every record of a topic that is no part of an open or aborted transaction."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    at_end: set[int] = set()
    until = time.monotonic() + 120
    try:
        while len(at_end) < PARTITIONS and time.monotonic() < until:
            for message in consumer.consume(10_000, timeout=1.0):
                if message.error() is not None:
                    at_end.add(message.partition() or 0)
                else:
                    at_end.discard(message.partition() or 0)
                    yield message
    finally:
        consumer.close()
    if len(at_end) < PARTITIONS:
        raise AssertionError(f"topic {topic} can't be read to its end")


# ---- the nodes -----------------------------------------------------------------------------------------------------


class Nodes(Protocol):
    """The broker that a pipeline reads and writes."""

    bootstrap: str

    def kill_one(self, rng: random.Random) -> None:
        """Kill a node with SIGKILL, and return when it is there again."""

    def stop(self) -> list[str]:
        """Stop what runs; what went wrong in the nodes."""
        ...


class OneNode:
    """A node that is alone."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self._node = NodeProcess(directory, settings)
        self._node.start()
        self.bootstrap = self._node.bootstrap

    def kill_one(self, rng: random.Random) -> None:
        self._node.kill()
        time.sleep(rng.choice((0.0, 0.5, 2.0)))
        self._node.start()

    def stop(self) -> list[str]:
        code = self._node.stop() if self._node.alive else None
        failures = [] if code == 0 else [f"the node ended with {code} instead of 0"]
        return failures + sorted(set(self._node.tracebacks))


class ThreeNodes:
    """A cluster, in which a node that is killed stays away until others lead in its place, or comes back before."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        quick = {"broker.session.timeout.ms": 3_000, "min.insync.replicas": 2}
        self._cluster = EmbeddedCluster(directory=directory, settings={**settings, **quick})
        self._cluster.start()
        self.bootstrap = self._cluster.bootstrap_servers

    def kill_one(self, rng: random.Random) -> None:
        node = rng.choice(self._cluster.nodes)
        self._cluster.kill(node)
        time.sleep(rng.choice((0.0, 2.0, 6.0)))
        self._cluster.start_node(node)

    def stop(self) -> list[str]:
        self._cluster.stop()
        logs = (Path(self._cluster.directory, f"{node}.log") for node in self._cluster.nodes)
        lines = (line for log in logs for line in log.read_text().splitlines())
        return sorted({line for line in lines if "Traceback" in line})


# ---- the loop ------------------------------------------------------------------------------------------------------


class Loop:
    """One run: a node or three, a feeder, a pipeline, and the kills."""

    def __init__(
        self, name: str, seed: int, seconds: float, directory: Path, rate: int, nodes: int, say: Any = print
    ) -> None:
        self.rng = random.Random(seed)
        self.seconds = seconds
        self.say = say
        self.nodes: Nodes = (OneNode if nodes == 1 else ThreeNodes)(
            directory / "node", {"log.segment.bytes": "4194304"}
        )
        bootstrap = self.nodes.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        kept = {"retention.ms": "-1"}  # some records have old times
        for made in admin.create_topics(
            [NewTopic(name, PARTITIONS, nodes, config=kept) for name in ("in", "out")]
        ).values():
            made.result(30)
        self.feeder = Feeder(bootstrap, rate)
        self.pipeline = PIPELINES[name](bootstrap, directory)
        self.driver = Driver(self.pipeline.command, directory / "driver.log")
        self.kills = dict.fromkeys(KINDS, 0)

    def run(self, rounds: int, kinds: tuple[str, ...], minutes: float = 1e9) -> list[str]:
        """The failures; empty when all went well. `minutes`: begin no further round after so long."""
        failures: list[str] = []
        until = time.monotonic() + minutes * 60
        self.feeder.start()
        self.driver.start()
        try:
            for index in range(rounds):
                if time.monotonic() > until:
                    break
                for kind in self.rng.sample(kinds, len(kinds)):
                    self.round(kind)
                counted = ", ".join(f"{times} {kind}" for kind, times in self.kills.items())
                self.say(f"round {index + 1}: killed {counted}; {self.feeder.sent} records, at {self.pipeline.moved()}")
            self.wait_for_move()  # while there is more to write: a pipeline that has all of it moves no more
            self.feeder.finish()
            self.pipeline.complete(self.driver)
            failures += self.pipeline.failures()
        except (AssertionError, RuntimeError, ClientError) as error:
            failures.append(f"{type(error).__name__}: {error}")
        finally:
            self.feeder.done.set()
            self.driver.stop()
            failures += self.nodes.stop()
        if self.feeder.failure:
            failures.append(self.feeder.failure)
        return failures

    def round(self, kind: str) -> None:
        """Kill one process at a random moment, and see that it is there again."""
        if self.rng.random() >= EARLY:
            self.wait_for_move()
        time.sleep(self.rng.random() * self.seconds)
        match kind:
            case "driver":
                self.kills[kind] += self.driver.kill_driver()
                self.driver.start()
            case "worker":
                self.kills[kind] += self.driver.kill_worker(self.rng)
            case "node":
                self.nodes.kill_one(self.rng)
                self.kills[kind] += 1

    def wait_for_move(self) -> None:
        """Until the pipeline has written more than it has now."""
        began, at = time.monotonic(), self.pipeline.moved()
        while self.pipeline.moved() <= at:
            self.driver.look()
            if self.driver.ended is not None:
                self.say(f"the driver ended with {self.driver.ended} by itself; starting it again")
                self.driver.start()
            if time.monotonic() - began > MOVES_WITHIN_S:
                raise RuntimeError(f"the pipeline stands still:\n{self.driver.last_lines()}")
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=sorted(PIPELINES), default="sink")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="longest time between a move and a kill")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further round after so long")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rate", type=int, default=1500, help="records a second into the topic")
    parser.add_argument("--directory", help="where node, checkpoint and log are kept; a temporary one without it")
    parser.add_argument("--drive", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        DRIVERS[given.pipeline](given.drive, given.directory)
    kinds = tuple(
        kind for kind in given.kinds.split(",") if kind != "worker" or not given.pipeline.startswith("commit")
    )
    if not set(kinds) <= set(KINDS):
        parser.error(f"--kinds are some of {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="ottla-crash-") as temporary:
        directory = Path(given.directory or temporary)
        loop = Loop(given.pipeline, given.seed, given.seconds, directory, given.rate, given.nodes)
        failures = loop.run(given.rounds, kinds, given.minutes)
    for failure in failures:
        print(f"FAILED: {failure}")
    counted = ", ".join(f"{times} {kind}" for kind, times in loop.kills.items())
    print(f"{counted} kills: " + ("failed" if failures else "every record exactly once"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
