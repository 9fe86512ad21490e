"""Runs the job queue: its topics, its worker processes, and the tally of each job's result.

A job's number is its offset: one producer, one partition.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

from ottla.demo.worker import DONE, REJECTED, WORK_S

JOBS, QUEUE = "jobs", "workers"
REQUEST_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
TICK_S = 0.1


class Worker:
    """One worker process, and the pipe through which it reports. `jobs`: how many it has finished."""

    def __init__(self, bootstrap: str, queue: str, topic: str, name: str) -> None:
        self.name = name
        self.ready = False
        self.jobs = 0
        read, write = os.pipe()
        self.pipe = Connection(read, writable=False)
        command = [sys.executable, "-m", "ottla.demo.worker", bootstrap, queue, name, str(write), topic]
        self.process = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
        os.close(write)


class Jobs:
    """The job queue and its workers. `done`: how often each job was done; `delivered`: the highest delivery count that
    a worker has reported for it. `topic`, `queue`: names of the jobs' topic and of the share group."""

    def __init__(self, bootstrap: str, topic: str = JOBS, queue: str = QUEUE) -> None:
        self._bootstrap = bootstrap
        self.topic = topic
        self.queue = queue
        self.workers: list[Worker] = []
        self.done: Counter[int] = Counter()
        self.rejected: set[int] = set()
        self.delivered: dict[int, int] = {}

    @property
    def dead_letter_topic(self) -> str:
        return f"dlq.{self.topic}"

    def set_up(self, **configs: str) -> None:
        """Create a topic with one partition and a topic for dead letters, and configure the group. `configs`: further
        configs of the group, with underscores for dots."""
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            NewTopic,
            ResourceType,
        )

        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 2})
        letters = NewTopic(self.dead_letter_topic, 1, config={"errors.deadletterqueue.group.enable": "true"})
        for future in admin.create_topics([NewTopic(self.topic, 1), letters]).values():
            future.result(REQUEST_TIMEOUT_S)
        wanted = {
            "share.auto.offset.reset": "earliest",
            "share.retry.backoff.ms": "100",
            "errors.deadletterqueue.topic.name": self.dead_letter_topic,
            **{name.replace("_", "."): value for name, value in configs.items()},
        }
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.queue, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(REQUEST_TIMEOUT_S)

    def start_workers(self, count: int) -> None:
        self.workers = [Worker(self._bootstrap, self.queue, self.topic, f"worker-{n + 1}") for n in range(count)]

    def produce(self, kinds: list[str]) -> None:
        """Produce one job for each kind, in order, each in a batch of its own, because a worker acquires at least one
        batch."""
        from confluent_kafka import Producer

        one_by_one = {"linger.ms": 0, "batch.num.messages": 1}
        producer = Producer({"bootstrap.servers": self._bootstrap, **one_by_one, "log_level": 2})
        for number, kind in enumerate(kinds):
            producer.produce(self.topic, f"{number} {kind}", partition=0)
            producer.poll(0)
        producer.flush(REQUEST_TIMEOUT_S)

    def settled(self) -> int:
        """How many jobs are done or rejected."""
        return len(self.done.keys() | self.rejected)

    def work(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Receive workers' reports until a condition holds; returns whether it held in time."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            self.listen(TICK_S)
        return until()

    def listen(self, seconds: float = 0) -> None:
        """Receive the workers' reports, waiting at most `seconds`."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in wait(list(by_pipe), seconds):
            worker = by_pipe[pipe]  # type: ignore[index]
            if not self._take(worker):
                raise RuntimeError(f"{worker.name} ended by itself.")

    def _take(self, worker: Worker) -> bool:
        """Receive the reports of one worker; False if it will send no more."""
        try:
            told = worker.pipe.recv()
        except (EOFError, OSError):
            return False
        if told[0] == "ready":
            worker.ready = True
            return True
        did, number, deliveries = told
        self.delivered[number] = max(deliveries, self.delivered.get(number, 0))
        if did == DONE:
            self.done[number] += 1
            worker.jobs += 1
        elif did == REJECTED:
            self.rejected.add(number)
        return True

    def kill(self, count: int) -> list[str]:
        """kill -9 some workers, after receiving their remaining reports. Returns their names."""
        victims = self.workers[:count]
        for worker in victims:
            worker.process.send_signal(signal.SIGKILL)
        for worker in victims:
            worker.process.wait()
            while self._take(worker):
                pass
            worker.pipe.close()
        self.workers = self.workers[count:]
        return [worker.name for worker in victims]

    def dead_letters(self, count: int) -> list[int]:
        """The numbers of the jobs in the dead-letter topic, of which `count` are expected."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "demo-letters", "log_level": 2})
        found: list[int] = []
        try:
            consumer.assign([TopicPartition(self.dead_letter_topic, 0, OFFSET_BEGINNING)])
            end = time.monotonic() + REQUEST_TIMEOUT_S
            while len(found) < count and time.monotonic() < end:
                letters = [each for each in consumer.consume(100, 0.2) if each.error() is None]
                found += [int((letter.value() or b"").split()[0]) for letter in letters]
        finally:
            consumer.close()
        return found

    def lag(self) -> int:
        """Records that the queue has not finished, according to the node."""
        from ottla.client import Client
        from ottla.client.share_groups import share_group_offsets

        with Client(self._bootstrap) as client:
            return sum(each.lag for each in share_group_offsets(client, self.queue))

    def stop(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            try:
                worker.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.pipe.close()
        self.workers = []


def alone_s(jobs: int) -> float:
    """The time that one worker would need, in seconds."""
    return jobs * WORK_S
