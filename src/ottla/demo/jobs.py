"""Runs the job queue: its topics, its worker processes, and the tally of each job's result.

A job's number is its offset: one producer, one partition. A job that is sent back gets a new number.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection, wait

from ottla.demo.worker import BUSY_SHOP, DONE, REJECTED, SERVER_DOWN, SERVER_UP, SHOP, WORK_S
from ottla.protocol.dead_letters import PREFIX

JOBS, QUEUE = "jobs", "workers"
REQUEST_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
TICK_S = 0.1

GOOD, FLAKY, BROKEN = "good", "flaky", "broken"


def picture(number: int, kind: str = GOOD) -> dict[str, object]:
    """The job to resize a picture: good, from the busy shop, or broken because the file is not a picture."""
    shop, ending = BUSY_SHOP if kind == FLAKY else SHOP, "txt" if kind == BROKEN else "jpg"
    return {"picture": f"{shop}/shoe-{number}.{ending}", "width": 640}


class Worker:
    """One worker process, and the pipe through which it reports. `jobs`: how many it has finished."""

    def __init__(self, bootstrap: str, queue: str, topic: str, name: str, options: Iterable[str]) -> None:
        self.name = name
        self.ready = False
        self.jobs = 0
        read, write = os.pipe()
        self.pipe = Connection(read, writable=False)
        command = [sys.executable, "-m", "ottla.demo.worker", bootstrap, queue, name, str(write), topic, *options]
        self.process = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
        os.close(write)


class Jobs:
    """The job queue and its workers. `done`: how often each job was done; `delivered`: the highest delivery count that
    a worker has reported for it; `rejected`: the worker that has rejected it. `topic`, `queue`: names of the jobs'
    topic and of the share group."""

    def __init__(self, bootstrap: str, topic: str = JOBS, queue: str = QUEUE) -> None:
        self._bootstrap = bootstrap
        self.topic = topic
        self.queue = queue
        self.workers: list[Worker] = []
        self.done: Counter[int] = Counter()
        self.rejected: dict[int, str] = {}
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

    def start_workers(self, count: int, name: str = "worker", *, is_server_down: bool = False) -> None:
        """Start this many workers. `is_server_down`: whether the mail server is down, until `server_up`."""
        options = [SERVER_DOWN] if is_server_down else []
        self.workers = [
            Worker(self._bootstrap, self.queue, self.topic, f"{name}-{n + 1}", options) for n in range(count)
        ]

    def server_up(self) -> None:
        """Let the workers reach the mail server. All must be ready."""
        for worker in self.workers:
            worker.process.send_signal(SERVER_UP)

    def produce(self, jobs: Iterable[Mapping[str, object]]) -> None:
        """Produce these jobs in order, each in a batch of its own, because a worker acquires at least one batch."""
        from confluent_kafka import Producer

        one_by_one = {"linger.ms": 0, "batch.num.messages": 1}
        producer = Producer({"bootstrap.servers": self._bootstrap, **one_by_one, "log_level": 2})
        for job in jobs:
            producer.produce(self.topic, json.dumps(job), partition=0)
            producer.poll(0)
        producer.flush(REQUEST_TIMEOUT_S)

    def settled(self) -> int:
        """How many jobs are done or rejected."""
        return len(self.done.keys() | self.rejected.keys())

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
            self.rejected[number] = worker.name
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
                found += [int(dict(letter.headers() or ())[f"{PREFIX}offset"] or b"") for letter in letters]
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
