"""Describes the failure of a query in one plain sentence: what happened, why, and what to do.

Spark reports a failure as a condition in brackets, or as a Python traceback inside a Java one. Some of these mean that
the broker is unavailable, or that the machine is busy; `ottla.spark.running.run` then retries.

Source: error-conditions.json and StreamingQueryException of Spark 4.3.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path


class PipelineFailedError(Exception):
    """Raised if a pipeline cannot do something. The message is one plain sentence for the person who started it."""


class OptionsRefusedError(PipelineFailedError):
    """Raised for an option that no run of the pipeline can accept: restarting does not help."""


AWAY = re.compile(
    r"\bConnectionClosed\b|errors\.TimedOutError\b|No broker can be reached|The connection to \S+ is gone"
    r"|The broker at \S+ (?:hung up|did not answer in time|did not take the request in time)"
    r"|\b(?:LEADER_NOT_AVAILABLE|NOT_LEADER_OR_FOLLOWER|BROKER_NOT_AVAILABLE|COORDINATOR_NOT_AVAILABLE"
    r"|COORDINATOR_LOAD_IN_PROGRESS|NOT_COORDINATOR|NOT_ENOUGH_REPLICAS(?:_AFTER_APPEND)?|NETWORK_EXCEPTION"
    r"|REQUEST_TIMED_OUT|_TRANSPORT|_ALL_BROKERS_DOWN|_MSG_TIMED_OUT|_TIMED_OUT)\b"
)
"""Texts of failures that mean that the broker is unavailable or not ready: from Ottla's client, Kafka's and
librdkafka."""

LATE = "Python worker failed to connect back"
"""Spark's message when a Python process of the driver did not connect to it within 10 s. Spark retries tasks, but not
what the driver itself runs in Python: the planning of a source's batches."""

ADVICE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"There are \[\d+\] sources in the checkpoint|STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
            r"|STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
            r"|STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE|STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
            "The checkpoint {checkpoint} is that of another query, or of an earlier shape of {name}. "
            "Give another --checkpoint, or remove it to start from the beginning.",
        ),
        (
            r"STATE_STORE_INVALID_CONFIG_AFTER_RESTART\] (?P<what>Cannot change \S+ from \S+ to \S+)",
            "The checkpoint {checkpoint} was written with another setting: {what}. "
            "Give that with --conf, or another --checkpoint.",
        ),
        (
            r"CONCURRENT_STREAM_LOG_UPDATE|Cannot start query with id \S+ as another query with same id",
            "Another run writes to the checkpoint {checkpoint}. Stop that one: a checkpoint is for one run at a time.",
        ),
        (
            r"Failed to read log file (?:file:)?(?P<file>\S+?)\. (?:\[INVALID_LOG_VERSION|UnsupportedLogVersion)",
            "The checkpoint file {file} was written by a newer Spark. Run the pipeline with that one, or give another "
            "--checkpoint.",
        ),
        (
            r"Failed to read log file (?:file:)?(?P<file>\S+?)\. |Checksum error: (?:file:)?(?P<sum>\S+)",
            "The checkpoint file {file}{sum} is damaged. Restore it from a copy, or give another --checkpoint.",
        ),
        (
            r"CANNOT_LOAD_STATE_STORE",
            "The state in the checkpoint {checkpoint} can't be read. Restore it from a copy, or give another "
            "--checkpoint.",
        ),
        (
            r"No space left on device",
            "No space is left on the device for {name}: on that of the checkpoint, of the table or of spark.local.dir.",
        ),
        (
            r"java\.lang\.OutOfMemoryError: (?P<what>.+)",
            "Spark ran out of memory in {name} ({what}). Give it more: --conf spark.driver.memory=8g "
            "(spark.executor.memory on a cluster).",
        ),
        (
            r"Python worker exited unexpectedly|PYTHON_WORKER_CRASHED",
            "A Python worker of {name} was killed again and again, for want of memory perhaps; "
            "--conf spark.task.maxFailures allows more tries on a cluster.",
        ),
        (
            LATE,
            "A Python process of {name} did not start within 10 s, again and again: the machine is too busy, or the "
            "Python in PYSPARK_PYTHON hangs. Started again, the pipeline continues where it was.",
        ),
        (
            r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'(?!\s+During handling)",
            "The Python of Spark's workers has no {module}. Install Ottla with its extra `spark` on every machine of "
            "the cluster and name that Python in PYSPARK_PYTHON.",
        ),
        (
            r"\[DATA_SOURCE_NOT_FOUND\].*\bottla\b",
            "Spark does not find the source ottla: its Python lacks Ottla with the extra `spark`. Name the right "
            "one in PYSPARK_PYTHON.",
        ),
        (
            r"Py4JNetworkError|Answer from Java side is empty|Error while sending|^Connection(?:Refused|Reset)Error",
            "Spark's JVM has ended under {name}, perhaps killed for lack of memory. Started again, the pipeline "
            "continues where it was.",
        ),
        (
            r"SparkContext was shut down|Cannot call methods on a stopped SparkContext",
            "Spark was stopped under {name}; on a cluster, check whether its master runs. Started again, the pipeline "
            "continues where it was.",
        ),
    )
)
"""(pattern in Spark's message, sentence). The pattern's groups fill the sentence, besides {name} and {checkpoint}."""

OURS = {
    "BrokerError",
    "ConnectionClosedError",
    "TimedOutError",
    "ClientError",
    "BadResponseError",
    "RecordsLostError",
    "ReadFailedError",
    "WrongOptionError",
}
"""Errors whose text is a sentence already."""

REPORT = "Traceback (most recent call last):"
CONDITION = re.compile(r"^(?:\[[A-Z][A-Z0-9_.]+\] *)+")
WRAPPING = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[id = [^\]]*\] terminated with exception: ")


def text_of(error: BaseException) -> str:
    """Return Spark's messages for a failure and for its causes, without Java stack traces."""
    own = isinstance(error, OSError) or type(error).__module__.startswith("py4j.")
    said = [f"{type(error).__name__}: {error}" if own else str(error)]
    cause = getattr(error, "cause", None)
    while cause is not None and len(said) < 10:
        said.append(str(cause))
        cause = getattr(cause, "cause", None)
    return "\n".join(said)


def means_away(text: str) -> bool:
    """Whether the failure means that the broker is temporarily unavailable."""
    return AWAY.search(text) is not None


def passes(text: str) -> bool:
    """Whether a restart of the query may succeed: the broker was unavailable, or a Python process started too late."""
    return means_away(text) or LATE in text


def reason(text: str) -> str:
    """Return the innermost message: the end of Python's last traceback, or Spark's first line without its wrapping."""
    if REPORT in text:
        for line in text[text.rindex(REPORT) + len(REPORT) :].splitlines()[1:]:
            if line and not line[0].isspace():
                kind, _, said = line.partition(": ")
                kind = kind.rpartition(".")[2]
                return said.strip() if kind in OURS and said else f"{kind}: {said.strip()}" if said else kind
    java = re.search(r"^: (?:[\w.$]+(?:Exception|Error): )?(.+)$", text, re.MULTILINE)
    first = java[1] if java else text.strip().partition("\n")[0]
    first = CONDITION.sub("", WRAPPING.sub("", first))
    return re.sub(r"( SQLSTATE: \w+)+$", "", first).strip() or "no reason was given"


def is_sparks(error: BaseException) -> bool:
    """Whether it was raised by Spark, or on the way to its JVM."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def sentence(name: str, checkpoint: str, text: str, what: str = "query") -> str:
    """Describe the failure of the query `name` in a sentence. The full text of an unknown failure is written to a
    file."""
    plain = re.sub(r" SQLSTATE: \w+", "", text)
    for pattern, comes_to in ADVICE:
        if found := pattern.search(plain):
            parts = {key: value or "" for key, value in found.groupdict().items()}
            return comes_to.format(name=name, checkpoint=checkpoint, **parts)
    said = reason(text).rstrip(".")
    return f"The {what} {name} failed: {said}. Spark's full output is in {written(name, text)}."


def written(name: str, text: str) -> Path:
    """A new file with the text."""
    number, path = tempfile.mkstemp(prefix=f"ottla-{re.sub(r'[^A-Za-z0-9_-]', '_', name)}-", suffix=".log")
    with os.fdopen(number, "w") as file:
        file.write(text)
    return Path(path)
