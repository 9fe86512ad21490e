"""What went wrong in a query, as one plain sentence: what, why, what to do.

Knows: the shapes in which Spark tells of a failure (an error condition in brackets, a Python traceback inside a Java
one), and which of them mean that the broker is away. Does not know: when to try again (`ottla.spark.run`).
Source: common/utils/src/main/resources/error/error-conditions.json of Spark 4.3.
"""

from __future__ import annotations

import re


class PipelineFailed(Exception):
    """What a pipeline could not do, as one plain sentence for the person who started it."""


AWAY = re.compile(
    r"ConnectionClosed|TimedOut\b|ottla\.client\.errors\.TimedOut|No broker can be reached|hung up\."
    r"|did not answer in time|The connection to \S+ is gone"
    r"|LEADER_NOT_AVAILABLE|NOT_LEADER_OR_FOLLOWER|BROKER_NOT_AVAILABLE|COORDINATOR_NOT_AVAILABLE"
    r"|COORDINATOR_LOAD_IN_PROGRESS|NOT_COORDINATOR|NOT_ENOUGH_REPLICAS|NETWORK_EXCEPTION|REQUEST_TIMED_OUT"
    r"|_TRANSPORT|_ALL_BROKERS_DOWN|_MSG_TIMED_OUT|_TIMED_OUT\b"
)
"""What a failure says when the broker is away, or not ready yet: our client's words, Kafka's, librdkafka's."""

PYTHON_ERROR = re.compile(r"^(?:[\w.]*\.)?(?P<kind>[A-Z]\w*): (?P<text>\S.*)$", re.MULTILINE)
CONDITION = re.compile(r"^\[(?P<condition>[A-Z][A-Z0-9_.]+)\] *(?P<text>.*)", re.DOTALL)


def text_of(error: BaseException) -> str:
    """Everything that Spark says of a failure: message, Java's causes, Python's traceback."""
    parts = [str(error)]
    cause = getattr(error, "cause", None)
    if cause is not None:
        parts.append(str(cause))
    trace = getattr(error, "_stackTrace", None) or getattr(error, "stackTrace", None)
    if isinstance(trace, str):
        parts.append(trace)
    return "\n".join(parts)


def means_away(text: str) -> bool:
    """Whether the failure is that of a broker that is away for a while."""
    return AWAY.search(text) is not None


def root(text: str) -> str:
    """The innermost thing said: the last line of a Python traceback, else Spark's own first line."""
    python = [found for found in PYTHON_ERROR.finditer(text) if "Traceback" in text[: found.start()]]
    if python:
        last = python[-1]
        kind, said = last["kind"], last["text"].strip()
        return said if kind in OURS else f"{kind}: {said}"
    first = text.strip().splitlines()[0] if text.strip() else "no reason was given"
    found = CONDITION.match(first)
    return (found["text"] or found["condition"]).strip() if found else first


OURS = {"PipelineFailed", "ErrorAnswer", "ConnectionClosed", "TimedOut", "ClientFailure", "BadAnswer"}
"""Errors whose text is a sentence already."""


def sentence(name: str, text: str) -> str:
    """What the failure of query `name` comes to."""
    return f"The query {name} failed: {root(text).rstrip('.')}."
