"""How the rate of jobs grows with the workers: 1 to 32 members of one share group, so many milliseconds of work each.

A job is a record in a batch of its own, as services produce them one by one; the work is a sleep. Each cell has a
topic of its own with more jobs than can be done. Nobody begins before everybody has a job in hand, and the clock starts
a while later and stops after the window: neither joining, nor the first jobs, nor a last straggler count. Jobs that are
at work when the clock starts or stops count by the part of their work that is done.

`of linear` is the rate over that of one worker times their number; `of ideal` is the rate over number / work, so it
also contains what one worker loses.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from dataclasses import dataclass

from confluent_kafka import AcknowledgeType

from bench.brokers import BenchFailedError, Broker
from bench.figures import Figures, Scale, cpu_figures
from bench.queues.members import TIMEOUT_S, Member, at_work, fill, new_group

WORKERS = (1, 2, 4, 8, 16, 32)
JOBS_AHEAD_S = 0.2
"""How long the jobs of one poll keep a worker busy: what makes the way to the broker small beside the work."""
JOBS_PER_POLL_MAX = 50
POLL_S = 0.1

_NAME = re.compile(r"workers-(?P<work>\d+)ms-(?P<partitions>\d+)p")

NAMES = [f"workers-{work}ms-{partitions}p" for partitions in (1, 4) for work in (1, 5, 20, 200)]


@dataclass(frozen=True, slots=True)
class Work:
    """`work_ms` for each job, all workers on `partitions` of one topic."""

    work_ms: int
    partitions: int

    @classmethod
    def named(cls, name: str) -> Work | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _NAME.fullmatch(name)
        return None if found is None or not int(found["work"]) else cls(int(found["work"]), int(found["partitions"]))

    def describe(self) -> str:
        places = f"{self.partitions} partition{'s' * (self.partitions > 1)}"
        return f"{WORKERS[0]} to {WORKERS[-1]} workers on {places}, {self.work_ms} ms of work per job"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        figures: Figures = {}
        alone = 0.0
        for workers in WORKERS:
            cpu = broker.cpu_s()
            rate, done = self._rate(broker, workers, window_s=max(scale.seconds / 2, 4 * self.work_ms / 1000))
            alone = alone or rate
            figures[f"{workers} workers jobs/s"] = rate
            figures[f"{workers} workers of linear /s"] = rate / alone / workers
            figures[f"{workers} workers of ideal /s"] = rate / workers * self.work_ms / 1000
        figures |= cpu_figures(f"{workers} workers", broker, cpu, "us/job", done / 1e6)
        return figures

    @property
    def jobs_per_poll(self) -> int:
        return max(1, min(JOBS_PER_POLL_MAX, int(JOBS_AHEAD_S * 1000 / self.work_ms)))

    def _rate(self, broker: Broker, workers: int, window_s: float) -> tuple[float, int]:
        """(jobs per second in the window, jobs done in all)."""
        count = int(workers * (window_s + 2 * JOBS_AHEAD_S) * 1000 / self.work_ms) + 2 * workers * self.jobs_per_poll
        done, begun, over = [0] * workers, [0.0] * workers, threading.Event()
        everybody = threading.Barrier(workers + 1)
        with broker.topic(self.partitions) as topic:
            fill(broker, topic, count, batch=1, partitions=self.partitions)
            group = new_group(broker)
            members = [Member(broker, group, explicit=True, max_poll_records=self.jobs_per_poll) for _ in done]

            def work(index: int) -> None:
                member, pause_s, waits = members[index], self.work_ms / 1000, True
                member.consumer.subscribe([topic])
                while not over.is_set():
                    jobs = member.take(POLL_S)
                    if jobs and waits:
                        waits = False
                        with contextlib.suppress(threading.BrokenBarrierError):
                            everybody.wait(TIMEOUT_S)
                    for job in jobs:
                        begun[index] = time.perf_counter()
                        time.sleep(pause_s)
                        begun[index] = 0.0
                        member.consumer.acknowledge(job, AcknowledgeType.ACCEPT)
                        done[index] += 1
                        if over.is_set():
                            break
                member.consumer.close()

            with at_work([threading.Thread(target=work, args=(index,)) for index in range(workers)], over):
                try:
                    everybody.wait(TIMEOUT_S / 2)
                except threading.BrokenBarrierError:
                    raise BenchFailedError(f"not each of {workers} workers got a job") from None
                time.sleep(max(JOBS_AHEAD_S, self.work_ms / 1000))
                before, began = self._progress(done, begun), time.perf_counter()
                time.sleep(window_s)
                rate = (self._progress(done, begun) - before) / (time.perf_counter() - began)
                if sum(done) >= count:
                    raise BenchFailedError("the jobs ran out before the window was over")
        return rate, sum(done)

    def _progress(self, done: list[int], begun: list[float]) -> float:
        """Jobs done, and the parts of those at work."""
        now = time.perf_counter()
        return sum(done) + sum(min(1.0, (now - since) * 1000 / self.work_ms) for since in begun if since)
