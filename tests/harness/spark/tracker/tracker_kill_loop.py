"""Kill the tracker on Spark, its Python workers and the queue's workers, and prove what the queue promises.

    python -m tests.harness.spark.tracker.tracker_kill_loop [--kills 20] [--seed 1] [--workers 2] [--kill-node]

The same processes, messages and judge as tests/harness/kmq/kill_loop.py has for standalone trackers; the tracker is
`ottla pipeline kmq-tracker` with a checkpoint that outlives it. A kill is SIGKILL of the driver with its JVM, of
one of its Python workers or of a queue's worker, at a random moment once the tracker has moved on since the last
one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.harness.kmq.kill_loop import PARTITIONS, KillLoop, Verdict
from tools.crash_pipelines import Driver

MOVES_WITHIN_S = 600.0
VICTIMS = ("driver", "worker", "python", "worker")


class SparkKillLoop(KillLoop):
    """One run. `counts`: how often each kind was killed."""

    drain_s_max = 300.0

    def __init__(self, directory: Path, seed: int, workers: int = 2) -> None:
        super().__init__(directory, seed, workers, trackers=0)
        self.counts = dict.fromkeys(("worker", "driver", "python", "node"), 0)
        self._driver: Driver | None = None

    def begin(self) -> None:
        super().begin()
        options = ["--max-redeliveries", "2", "--use-now-after-ms", "300", "--trigger", "0.5", "--quiet"]
        places = ["-b", self.node.bootstrap, "--checkpoint", str(self.directory / "checkpoint")]
        spark = ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
        command = [sys.executable, "-m", "ottla", "pipeline", "kmq-tracker", "jobs", *places, *options, *spark]
        self._driver = Driver(command, self.directory / "trackers.log")
        self._driver.start()

    def end(self) -> None:
        if self._driver is not None:
            self._driver.stop()
        super().end()

    def position(self) -> int:
        """How far the tracker is: the sum of what its group keeps."""
        consumer = Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": self.config.tracker_group_id})
        places = [TopicPartition(self.config.markers, number) for number in range(PARTITIONS)]
        try:
            return sum(max(0, each.offset) for each in consumer.committed(places, timeout=30))
        finally:
            consumer.close()

    def run_kills(self, kills: int, *, kill_node: bool = False) -> Verdict:
        """Send all the while and kill so often, then let it come to rest, then judge."""
        victims = (*VICTIMS, *(("node",) if kill_node else ()))
        try:
            self.begin()
            for index in range(kills):
                self._until_moved()
                self._send_for(self.random.uniform(0.1, 2.5))
                self._kill_kind(victims[index % len(victims)])
            self._until_moved()
            self.producer.flush(60)
            self.drain()
            self.judge()
        finally:
            self.end()
        return self.verdict

    def _send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.send(self.random.randrange(1, 12))
            time.sleep(0.1)

    def _until_moved(self) -> None:
        before, until = self.position(), time.monotonic() + MOVES_WITHIN_S
        while self.position() == before:
            assert self._driver is not None
            if self._driver.ended is not None:  # a worker was killed too often: whoever runs it starts it again
                self._driver.start()
            if time.monotonic() > until:
                raise AssertionError(f"the tracker does not move on:\n{self._driver.last_lines()}")
            self._send_for(0.5)

    def _kill_kind(self, what: str) -> None:
        assert self._driver is not None
        self.counts[what] += 1
        if what == "worker":
            self.kill_one("worker")
            self.verdict.killed_workers += 1
        elif what == "python":
            self._driver.kill_worker(self.random)
        elif what == "node":
            self.node.kill()
            self.node.start()
            self.verdict.killed_nodes += 1
        else:
            self._driver.kill_driver()
            self._driver.start()
            self.verdict.killed_trackers += 1


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=20)
    asked.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--kill-node", action="store_true", help="kill -9 the node too")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loop = SparkKillLoop(Path(directory), options.seed, options.workers)
        verdict = loop.run_kills(options.kills, kill_node=options.kill_node)
        if verdict.faults:
            print((Path(directory) / "trackers.log").read_text()[-5000:], file=sys.stderr)
    print(f"seed {options.seed}, kills {loop.counts}\n{verdict}")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
