"""Runs `ottla pipeline kmq-tracker`: the dataflow and the redeliveries, until it is stopped.

It runs one streaming query, adds up the results of its batches, and finds out when all due work is done. step.py
decides which message is due; redelivering.py redelivers it.

The trackers' group has the positions of the last tracker that ran, whichever kind it was. A query without a checkpoint
begins there; a query with a checkpoint begins where that says.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.kmq.config import KmqConfig, KmqRefusedError
from ottla.kmq.events import Reason
from ottla.kmq.figures import PartitionFigures, TrackerFigures
from ottla.spark.platform.failures import OptionsRefusedError
from ottla.spark.platform.session import pipeline_session
from ottla.spark.platform.workers import WorkerFunction
from ottla.spark.running.each_batch import each_batch
from ottla.spark.running.run import Finished, PipelineFailedError, RunOptions, read_stream, require_topics, run_queries
from ottla.spark.tracker.processor import tracked
from ottla.spark.tracker.redelivering import OUTCOME, RedeliveryResult, outcome_of, redeliver_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY: Final = "kmq-tracker"
MARKERS_PER_BATCH: Final = 500_000
CALL_TIMEOUT_S: Final = 30.0
MEMBERS_PATIENCE_S: Final = 15.0
"""How long a standalone tracker that was killed may still appear as a member of the group."""
SAY_AGAIN_S: Final = 30.0
LATE_MAX: Final = 1_000_000


@dataclass(slots=True)
class Progress:
    """The summed results of the batches, which are also the figures of the metrics."""

    config: KmqConfig
    figures: TrackerFigures = field(default_factory=TrackerFigures)
    partitions: Sequence[PartitionFigures] = ()
    positions: dict[int, int] = field(default_factory=dict[int, int])
    late_ms: list[int] = field(default_factory=list[int])
    """Delays of redeliveries, from due to acknowledged; the first LATE_MAX."""
    _said: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, outcome: RedeliveryResult) -> None:
        figures, known = self.figures, {each.partition: each for each in self.partitions}
        figures.markers_read += outcome.read
        figures.markers_malformed += outcome.malformed
        figures.redelivered += outcome.redelivered
        figures.write_failures += outcome.failed
        figures.dead_lettered.update({Reason(name): count for name, count in outcome.dead_lettered.items()})
        for number, (position, each) in outcome.partitions.items():
            self.positions[number], known[number] = position, each
        self.partitions = [known[number] for number in sorted(known)]
        self.late_ms += outcome.late_ms[: max(0, LATE_MAX - len(self.late_ms))]
        for problem in outcome.problems:
            self._say(problem)

    def _say(self, problem: str) -> None:
        """Print a problem, and again if it persists."""
        now = time.monotonic()
        if now - self._said.get(problem, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said[problem] = now
            print(f"{self.config.queue}: {problem}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Tracked:
    """How a run ended. Its text is the command's last line."""

    finished: Finished
    progress: Progress
    left: tuple[int, int] | None
    """(open messages, those of them that are overdue), computed from the topics again; None if that failed."""

    def __str__(self) -> str:
        figures, late = self.progress.figures, sorted(self.progress.late_ms)
        text = (
            f"{self.progress.config.queue}: {figures.markers_read:,} markers read, {figures.redelivered:,} messages "
            f"given again, {sum(figures.dead_lettered.values()):,} dead letters"
        )
        text += "." if self.left is None else f"; {self.left[0]:,} messages are open, {self.left[1]:,} overdue."
        if late:
            text += f" Late by {late[len(late) // 2]} ms (p50), {late[len(late) * 99 // 100]} ms (p99)."
        return text


class CaughtUp:
    """Finds out, for `once`, whether all messages that were due when the run began have been redelivered."""

    def __init__(self, config: KmqConfig, ends: Mapping[int, int], trigger_s: float) -> None:
        self._ends = {number: end for number, end in ends.items() if end > 0}
        self._began_ms = time.time_ns() // 1_000_000
        self._quiet_s = config.use_now_after_ms / 1000 + 2 * trigger_s
        self._since: float | None = None
        self.up = threading.Event()

    def look(self, progress: Progress, outcome: RedeliveryResult) -> None:
        """After each batch. It has caught up when, for a while, nothing was due that was so at the beginning. A
        partition that is still replaying has named nothing of what is open in it; where nothing is open no timer will
        end its replay. The first batch may be the last run's, done again."""
        behind = outcome.read and any(progress.positions.get(number, 0) < end for number, end in self._ends.items())
        behind = behind or any(each.replaying and each.open for each in progress.partitions)
        due = outcome.first_due_ms is not None and outcome.first_due_ms <= self._began_ms
        if behind or due:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        elif time.monotonic() - self._since >= self._quiet_s:
            self.up.set()


def run(
    options: RunOptions,
    config: KmqConfig,
    *,
    markers_per_batch: int = MARKERS_PER_BATCH,
    progress: Progress | None = None,
) -> Tracked:
    """Redeliver messages that workers did not finish, until SIGTERM or SIGINT. Run two for fail-over."""
    require_topics(options, [config.queue, config.markers, config.dead_letters])
    session = pipeline_session(QUERY, master=options.master, conf=options.conf)
    try:
        return follow(session, options, config, markers_per_batch=markers_per_batch, progress=progress)
    finally:
        session.stop()


def follow(
    session: SparkSession,
    options: RunOptions,
    config: KmqConfig,
    *,
    markers_per_batch: int = MARKERS_PER_BATCH,
    progress: Progress | None = None,
) -> Tracked:
    """Run the tracker in an existing session, which stays open."""
    kept = Progress(config) if progress is None else progress
    properties = {"bootstrap.servers": options.bootstrap, **options.kafka}
    starts, ends = looked_up(properties, config)
    caught = CaughtUp(config, ends, options.trigger_s) if options.once else None
    markers = read_stream(
        session,
        options,
        [config.markers],
        startingOffsets=json.dumps({config.markers: {str(number): at for number, at in starts.items()}}),
        maxOffsetsPerTrigger=markers_per_batch,
        failOnDataLoss=False,
    )

    def redeliver(batch: DataFrame, number: int) -> None:
        total = RedeliveryResult()
        for text, late in batch.mapInArrow(WorkerFunction(redeliver_all(properties, config)), OUTCOME).collect():
            total.add(outcome_of(text, late))
        kept.add(total)
        if caught is not None:
            caught.look(kept, total)

    writer = (
        tracked(markers, config).writeStream.queryName(QUERY).outputMode("update").foreachBatch(each_batch(redeliver))
    )
    enough = None if caught is None else caught.up
    finished = run_queries(replace(options, once=False), session, [writer], enough=enough)
    return Tracked(finished, kept, left(properties, config))


# ---- the cluster ---------------------------------------------------------------------------------------------------


def looked_up(properties: Mapping[str, Any], config: KmqConfig) -> tuple[dict[int, int], dict[int, int]]:
    """Return (where to begin, where the markers end) by partition. Raises PipelineFailedError if the topics do not fit,
    or if another tracker follows the queue."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    from ottla.kmq.topics import require_topics as require_queue

    given = {"log_level": 0, **properties, "group.id": config.tracker_group_id, "enable.auto.commit": False}
    try:
        consumer = Consumer(given)
    except KafkaException as error:
        raise OptionsRefusedError(f"The client refuses what it was given: {error.args[0].str()}.") from None
    try:
        count = require_queue(consumer, config, dead_letters=True)
        require_alone(properties, config)
        places = [TopicPartition(config.markers, number) for number in range(count)]
        marks = [consumer.get_watermark_offsets(each, timeout=CALL_TIMEOUT_S) or (0, 0) for each in places]
        kept = consumer.committed(places, timeout=CALL_TIMEOUT_S)
        starts = {each.partition: max(low, each.offset) for each, (low, _) in zip(kept, marks, strict=True)}
        return starts, {number: high for number, (_, high) in enumerate(marks)}
    except KmqRefusedError as refused:
        raise PipelineFailedError(str(refused)) from None
    except KafkaException as error:
        raise PipelineFailedError(f"The markers' positions can't be looked up: {error.args[0].str()}.") from None
    finally:
        consumer.close()


def require_alone(properties: Mapping[str, Any], config: KmqConfig) -> None:
    """Refuse a second tracker: two trackers that do not know of each other would both redeliver every message. Raises
    PipelineFailedError."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin, group = AdminClient({"log_level": 0, **properties}), config.tracker_group_id
    until = time.monotonic() + MEMBERS_PATIENCE_S
    while True:
        try:
            members = admin.describe_consumer_groups([group])[group].result(CALL_TIMEOUT_S).members
        except KafkaException:
            return  # there is no such group
        if not members:
            return
        if time.monotonic() > until:
            raise PipelineFailedError(
                f"{len(members)} standalone trackers of {config.queue} run already (group {group}): both kinds would "
                "give the same messages again. Stop them first."
            )
        time.sleep(0.5)


def left(properties: Mapping[str, Any], config: KmqConfig) -> tuple[int, int] | None:
    """(open messages, those that are overdue), as `ottla kmq stats` counts them."""
    from ottla.kmq.stats import standings

    try:
        found = standings({"log_level": 0, **properties}, config)
    except KmqRefusedError:
        return None
    return sum(each.open for each in found), sum(each.overdue for each in found)
