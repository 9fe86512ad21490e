"""Runs every pipeline: waits for the broker, starts the queries, shows their progress, and stops them cleanly.

A query that fails because the broker is unavailable, or because the machine is too busy to start its Python process in
time, is restarted from its checkpoint, so no record is lost or processed twice. Every other failure becomes one
sentence.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ottla.client import BrokerError, Client, ClientError
from ottla.client.reporting import Reporter
from ottla.spark.platform.client_properties import ClientProperties, WrongOptionError, client_properties
from ottla.spark.platform.failures import (
    OptionsRefusedError,
    PipelineFailedError,
    means_away,
    passes,
    sentence,
    text_of,
)
from ottla.spark.platform.paths import local_path
from ottla.spark.platform.session import require_workers
from ottla.spark.reader.losses import ADVICE
from ottla.spark.running.checkpoints import examine, kept_partitions
from ottla.spark.running.executors import waits_for_executors
from ottla.spark.running.progress import BatchRows, View
from ottla.spark.running.signals import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Finished", "PipelineFailedError", "RunOptions", "read_stream", "require_topics", "run_queries"]

LOOK_S = 0.25
SAY_EVERY_S = 5.0
BROKER_TIMEOUT_MS = 5_000
LAST_BATCH_S = 120.0
"""How long a stopped query may continue its running batch before it is interrupted; its next start repeats that
batch."""
FRUITLESS_MAX = 5
FRUITLESS_S = 60.0
"""Restarts of a query, with neither a batch nor a minute between them, after which its next failure ends the run."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of every pipeline. `kafka`: client properties (`security.protocol=...`). `checkpoint`: a directory; None
    for a temporary one. `broker_wait_s`: how long to wait for an unavailable broker; None for no limit."""

    bootstrap: str
    checkpoint: str | None
    once: bool = False
    trigger_s: float = 1.0
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    broker_wait_s: float | None = None
    on_loss: str = ADVICE
    """Advice for lost records, appended to the message after a semicolon."""
    reporter: Reporter | None = field(default=None, repr=False)
    """Gets the figures of the queries."""

    def sentence(self, run: str, checkpoint: str, text: str) -> str:
        """Describe a failure, and what to do, in a sentence."""
        return sentence(run, checkpoint, text.replace(ADVICE, self.on_loss))


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended: rows read from the sources, batches, and whether a signal stopped it."""

    rows: int
    batches: int
    seconds: float
    stopped: bool


# ---- topics --------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait_for_broker(
    options: RunOptions, tell: Callable[[str], None] = say, stopped: threading.Event | None = None
) -> Client | None:
    """Return a client of a cluster that answers; report every few seconds that it waits. None if `stopped` is set
    first. Raises PipelineFailedError when `broker_wait_s` is over, or if the properties cannot be used."""
    properties = connection_of(options)
    began, said = time.monotonic(), -SAY_EVERY_S
    waited = False
    while stopped is None or not stopped.is_set():
        client = properties.connect()
        try:
            client.metadata([])
        except ClientError as failure:
            client.close()
            now = time.monotonic() - began
            if options.broker_wait_s is not None and now >= options.broker_wait_s:
                raise PipelineFailedError(
                    f"{failure} Waited {now:.0f} s for it; `ottla serve` starts a broker."
                ) from None
            if now - said >= SAY_EVERY_S:
                tell(f"Waiting for a broker: {failure}")
                said = now
            waited = True
            pause(0.5, stopped)
        else:
            if waited:
                tell(f"The broker at {options.bootstrap} answers.")
            return client
    return None


def connection_of(options: RunOptions) -> ClientProperties:
    """Return the connection properties, with a short time-out for each request. Raises PipelineFailedError."""
    given = {f"kafka.{key}": value for key, value in options.kafka.items()}
    try:
        found = client_properties({**given, "kafka.bootstrap.servers": options.bootstrap})
        return replace(found, request_timeout_ms=min(found.request_timeout_ms, BROKER_TIMEOUT_MS))
    except WrongOptionError as error:
        raise OptionsRefusedError(str(error)) from None


def pause(seconds: float, stopped: threading.Event | None) -> None:
    if stopped is None:
        time.sleep(seconds)
    else:
        stopped.wait(seconds)


def require_topics(options: RunOptions, topics: Sequence[str] | re.Pattern[str]) -> None:
    """Wait for the broker, then raise PipelineFailedError if a topic is missing, naming it and how to create it. A
    pattern requires none."""
    client = wait_for_broker(options)
    assert client is not None
    with client:
        if isinstance(topics, re.Pattern):
            return
        try:
            answer = client.metadata(list(dict.fromkeys(topics)))
        except ClientError as failure:
            raise PipelineFailedError(f"The topics can't be looked up: {failure}") from None
    missing = [topic.name for topic in answer.topics if topic.error_code]
    if not missing:
        return
    known = {topic.name: topic.error_code for topic in answer.topics}
    refused = [BrokerError(known[name], f"topic {name}") for name in missing]
    if any(error.name != "UNKNOWN_TOPIC_OR_PARTITION" for error in refused):
        raise PipelineFailedError(f"{refused[0]}")
    several = len(missing) > 1
    there_is, them = ("There are no topics", "them") if several else ("There is no topic", "it")
    raise PipelineFailedError(
        f"{there_is} {', '.join(missing)} at {options.bootstrap}. `ottla topics create {' '.join(missing)} "
        f"-b {options.bootstrap}` makes {them}."
    )


def broker_options(options: RunOptions) -> dict[str, str]:
    """The options of format("ottla") that name the broker and how to connect to it."""
    named = {f"kafka.{name}": value for name, value in options.kafka.items()}
    return {"kafka.bootstrap.servers": options.bootstrap, **named}


def source_options(
    options: RunOptions, topics: Collection[str] | re.Pattern[str] | None = None, **more: str
) -> dict[str, str]:
    """The options of format("ottla") for these topics; without topics, `more` must say what is read."""
    found = broker_options(options)
    if isinstance(topics, re.Pattern):
        found["subscribePattern"] = topics.pattern
    elif topics is not None:
        found["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    return found | more


def read_stream(
    session: SparkSession, options: RunOptions, topics: Sequence[str] | re.Pattern[str], **more: object
) -> DataFrame:
    """A stream of the topics, from their beginning unless `startingOffsets` is given. `more`: options of the source."""
    require_workers(session)
    told = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in more.items()}
    given = source_options(options, topics, **{"startingOffsets": "earliest", **told})
    return session.readStream.format("ottla").options(**given).load()


# ---- queries -------------------------------------------------------------------------------------------------------


def run_queries(
    options: RunOptions,
    session: SparkSession,
    writers: Sequence[DataStreamWriter],
    counts: Mapping[str, Callable[[int], BatchRows]] | None = None,
    enough: threading.Event | None = None,
) -> Finished:
    """Run the queries until they have read all available records (`once`), a signal comes, or `enough` is set; then
    they end after their batch. Each needs a queryName; its checkpoint is DIRECTORY/queryName. `counts`: by query, the
    rows of a batch if the source's rows are not records; called once for each batch. Raises PipelineFailedError;
    KeyboardInterrupt on a second signal."""
    with tempfile.TemporaryDirectory(prefix="ottla-checkpoint-", ignore_cleanup_errors=True) as forgotten:
        local = local_path(options.checkpoint or forgotten)  # made absolute: the JVM may have started elsewhere
        directory = str(options.checkpoint).rstrip("/") if local is None else str(local.absolute())
        runs = [Run(writer, f"{directory}/{name_of(writer)}", options) for writer in writers]
        for run in runs:
            run.count = (counts or {}).get(run.name)
        with View(quiet=options.quiet) as view, stopped_by_signals() as stopped:
            if options.reporter is not None:
                options.reporter.measures.append(lambda: view.figures)
                options.reporter.positions.append(lambda: view.positions)
            return Loop(options, session, runs, view, stopped, enough or threading.Event()).run()


def name_of(writer: DataStreamWriter) -> str:
    """The queryName that a writer was given. Raises ValueError."""
    found = cast(Any, writer)._jwrite.extraOptions().get("queryname")
    if not found.isDefined():
        raise ValueError("every query of a pipeline needs a queryName: its checkpoint is kept under it")
    return str(found.get())


def topics_of(writer: DataStreamWriter) -> list[Sequence[str] | re.Pattern[str] | None]:
    """Return the subscription of each source of a query; None for a source that is not ours."""
    leaves = cast(Any, writer)._df._jdf.queryExecution().analyzed().collectLeaves()
    found: list[Sequence[str] | re.Pattern[str] | None] = []
    for each in range(leaves.size()):
        leaf = leaves.apply(each)
        if not leaf.isStreaming():
            continue
        options = leaf.extraOptions() if leaf.nodeName().startswith("StreamingRelationV2") else {}
        subscribed, pattern, assigned = (options.get(key) for key in ("subscribe", "subscribePattern", "assign"))
        if subscribed:
            found.append([topic.strip() for topic in subscribed.split(",")])
        elif pattern:
            found.append(re.compile(pattern))
        else:
            found.append(list(json.loads(assigned)) if assigned else None)
    return found


def counted(progress: Mapping[str, Any], found: BatchRows) -> dict[str, Any]:
    """Return the entries of a progress report that depend on the number of rows, for this number."""
    spent_ms = progress["durationMs"].get("triggerExecution", 0)
    rate = found.rows * 1000 / spent_ms if spent_ms else 0.0
    return {"numInputRows": found.rows, "processedRowsPerSecond": rate, "numLateRows": found.late}


class Run:
    """One query: started, perhaps again, and what its progress said so far."""

    def __init__(self, writer: DataStreamWriter, checkpoint: str, options: RunOptions) -> None:
        self.name = name_of(writer)
        self.checkpoint = checkpoint
        trigger: dict[str, Any] = {"availableNow": True}
        if not options.once:
            trigger = {"processingTime": f"{max(int(options.trigger_s * 1000), 1)} milliseconds"}
        self._writer = writer.trigger(**trigger).option("checkpointLocation", checkpoint)
        self._seen: tuple[int, str] = (-1, "")
        self.query: StreamingQuery | None = None
        self._java: Any = None
        self.ended = False
        self.count: Callable[[int], BatchRows] | None = None
        """Returns the rows of a batch, if the source's rows are not what is counted."""
        self.rows = 0
        self.batches = 0
        self.fruitless = 0
        self._started_s = 0.0

    def start(self) -> None:
        """Raises PipelineFailedError for a checkpoint that is not this query's."""
        examine(self.checkpoint, topics_of(self._writer))
        self._started_s = time.monotonic()
        self.query = self._writer.start()
        self._java = self.query._jsq
        self._seen = (-1, "")

    def news(self) -> list[dict[str, Any]]:
        """Progress that has not been seen yet, oldest first."""
        if self.query is None:
            return []
        recent = self._java.recentProgress()
        unseen: list[dict[str, Any]] = []
        for each in reversed(range(len(recent))):
            if (recent[each].batchId(), recent[each].timestamp()) <= self._seen:
                break
            unseen.append(json.loads(recent[each].json()))
        for progress in unseen:
            if "addBatch" in progress.get("durationMs", {}):
                if self.count is not None:
                    progress |= counted(progress, self.count(progress["batchId"]))
                self.rows += progress["numInputRows"]
                self.batches += 1
                self.fruitless = 0
        if unseen:
            self._seen = (unseen[0]["batchId"], unseen[0]["timestamp"])
        return unseen[::-1]

    def count_failure(self) -> None:
        """One more without a batch, unless the query ran for a while."""
        self.fruitless = 1 if time.monotonic() - self._started_s > FRUITLESS_S else self.fruitless + 1

    def wait_end(self, seconds: float) -> bool:
        """Whether the query ends within this time. Raises the query's failure."""
        return self.query is None or bool(self._java.awaitTermination(int(seconds * 1000)))

    def finish_batch(self, session: SparkSession) -> None:
        """Ask the query to end after its running batch. Spark's own `stop` would interrupt that batch."""
        if self.query is None:
            return
        runtime = cast(Any, session)._jvm.org.apache.spark.sql.execution.streaming.runtime
        self._java.streamingQuery().state().set(getattr(getattr(runtime, "TERMINATED$"), "MODULE$"))

    def rests(self) -> bool:
        """Whether it is between two batches."""
        return self.query is None or not self.query.status["isTriggerActive"]

    def gone(self, session: SparkSession) -> bool:
        """Whether Spark has removed the query. `isActive` becomes false as soon as the query is asked to stop."""
        return self.query is None or session.streams.get(self.query.id) is None


class Loop:
    """Polls the queries until all have ended."""

    def __init__(
        self,
        options: RunOptions,
        session: SparkSession,
        runs: list[Run],
        view: View,
        stopped: threading.Event,
        enough: threading.Event,
    ) -> None:
        self._options = options
        self._session = session
        self._runs = runs
        self._view = view
        self._stopped = stopped
        self._enough = enough

    def run(self) -> Finished:
        began = time.monotonic()
        try:
            for run in self._runs:
                self._start(run)
                self._tell_partitions(run)
            while not (self._stopped.is_set() or self._enough.is_set() or all(run.ended for run in self._runs)):
                self._look()
            self._finish()
        except Exception:
            self._interrupt()
            raise
        self._view.measure()
        rows, batches = sum(run.rows for run in self._runs), sum(run.batches for run in self._runs)
        finished = Finished(rows, batches, time.monotonic() - began, self._stopped.is_set())
        how = "Stopped" if finished.stopped else "Done"
        onwards = " The next start continues there." if finished.stopped and self._options.checkpoint else ""
        self._view.tell(f"{how}: {rows:,} rows in {batches:,} batches, {finished.seconds:.1f} s.{onwards}")
        return finished

    def _interrupt(self) -> None:
        for run in self._runs:
            if run.query is not None and not run.ended:
                with suppress(Exception):  # it is failing already; the error that is being raised says why
                    run.query.stop()

    def _tell_partitions(self, run: Run) -> None:
        """Say when a number of shuffle partitions was asked for that the checkpoint overrules."""
        key = "spark.sql.shuffle.partitions"
        kept, asked = kept_partitions(run.checkpoint), self._options.conf.get(key)
        if kept is not None and asked is not None and asked != str(kept):
            self._view.say(
                f"{run.name} continues with the {kept} shuffle partitions of its state in {run.checkpoint}; "
                f"{key}={asked} takes effect with a new checkpoint only."
            )

    def _start(self, run: Run) -> None:
        self._view.expect(run.name)
        try:
            run.start()
        except PipelineFailedError:
            raise
        except Exception as error:
            self._failed(run, error)

    def _look(self) -> None:
        for run in self._runs:
            if run.ended:
                continue
            try:
                ended = run.wait_end(LOOK_S / len(self._runs))
                self._show(run)
                run.ended = ended
            except Exception as error:
                self._failed(run, error)
        self._view.waits = self._waits()
        self._view.draw()
        self._view.measure()

    def _waits(self) -> bool:
        with suppress(Exception):  # the JVM is gone, which the next poll finds out
            return waits_for_executors(self._session)
        return False

    def _show(self, run: Run) -> None:
        for progress in run.news():
            self._view.take(run.name, progress)

    def _failed(self, run: Run, error: Exception) -> None:
        """If the broker is unavailable, wait for it and restart the query. Restart it too if a Python process started
        too late. Otherwise raise PipelineFailedError."""
        text = text_of(error)
        with suppress(Exception):  # of the JVM, if it is that which has gone
            self._show(run)
        run.count_failure()
        if not passes(text) or run.fruitless > FRUITLESS_MAX:
            raise PipelineFailedError(self._options.sentence(run.name, run.checkpoint, text)) from error
        if means_away(text):
            self._view.say(f"The broker at {self._options.bootstrap} is away; {run.name} waits for it.")
            client = wait_for_broker(self._options, self._view.say, self._stopped)
            if client is not None:
                client.close()
        else:
            self._view.say(f"A Python process of {run.name} did not start within 10 s; is the machine busy?")
        pause(min(0.2 * 2**run.fruitless, 5.0), self._stopped)
        if self._stopped.is_set():
            run.ended = True
            return
        self._view.say(f"Starting {run.name} again where it was.")
        self._start(run)

    def _finish(self) -> None:
        """Let the running batches finish, for at most LAST_BATCH_S, and only while they have an executor."""
        left = [run for run in self._runs if not run.ended]
        if not left:
            return
        if self._stopped.is_set():
            self._view.say("Stopping when the running batch is done; once more stops at once.")
        for run in left:
            run.finish_batch(self._session)
        until = time.monotonic() + LAST_BATCH_S
        while left:
            waits = self._waits()
            for run in left:
                self._end(run, waits or time.monotonic() > until)
            left = [run for run in left if not run.ended]
            time.sleep(0.05 if left else 0)

    def _end(self, run: Run, overdue: bool) -> None:
        """Note that the query has ended, if it has. Interrupt it if it only waits for its next trigger, or if its batch
        is overdue. A failure from before that is raised. A failure after it is not: a batch that began meanwhile breaks
        in many ways when it is interrupted, and the next start repeats it."""
        assert run.query is not None
        failure: Exception | None = None
        try:
            if overdue or run.gone(self._session) or run.rests():
                failure = run.query.exception()
                run.query.stop()
                run.ended = True
            self._show(run)
        except Exception as error:
            failure = failure or error
        if failure is not None and not passes(text := text_of(failure)):
            raise PipelineFailedError(self._options.sentence(run.name, run.checkpoint, text)) from failure
