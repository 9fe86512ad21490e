"""Reads the reader's options into one frozen value, with the names and rules of Spark's own Kafka source.

It checks every option, its default and which options exclude each other. Options that Spark refuses are refused here
too, each with one sentence (`WrongOptionError`). The module asks no broker: `offsets` finds out whether a topic exists.

Source: KafkaSourceProvider.scala, JsonUtils.scala, and Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ottla.client import TopicPartition
from ottla.client.client import EARLIEST, LATEST
from ottla.spark.platform.client_properties import ClientProperties, WrongOptionError, client_properties

Offsets = dict[TopicPartition, int]

SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
NAMES = (
    *SUBSCRIPTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "readerTasks",
    "rangesOnly",
)
"""Every option but those that begin with `kafka.`. `readerTasks` is ours alone. `rangesOnly` is internal: rows are the
ranges that were planned, for a pipeline whose own tasks read them (`ottla.spark.archive.fetching`)."""

MAX_TRIGGER_DELAY = "15m"
POLL_TIMEOUT_MS = 120_000
"""Spark's default: `spark.network.timeout`, which a Python source cannot see."""
_TIME_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: those of `topics`, of the topics that match `pattern`, or exactly `places`."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[TopicPartition, ...] | None = None

    def __str__(self) -> str:
        if self.places is not None:
            return "assign " + ", ".join(f"{topic}-{partition}" for topic, partition in self.places)
        return f"the pattern {self.pattern}" if self.pattern is not None else ", ".join(self.topics)


@dataclass(frozen=True, slots=True)
class Edge:
    """Every partition at its earliest or latest offset."""

    offset: int  # EARLIEST or LATEST


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition; EARLIEST and LATEST are possible offsets."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition that is not older than a time in ms: one time for all, or one for each."""

    default_ms: int | None
    times_ms: Offsets
    else_latest: bool
    """If no record is that recent: LATEST, or an error."""


Position = Edge | Specific | AtTime


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a reader."""

    subscription: Subscription
    starting: Position
    ending: Position
    client: ClientProperties
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1000
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    reader_tasks: int | None = None
    ranges_only: bool = False


def any_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options that batch and streaming queries share. Raises WrongOptionError."""
    given = _lowered(options)
    return _read(given, _starting(given, Edge(EARLIEST)), _position(given, "ending", Edge(LATEST), else_latest=True))


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read`. Raises WrongOptionError."""
    given = _lowered(options)
    starting = _starting(given, Edge(EARLIEST))
    ending = _position(given, "ending", Edge(LATEST), else_latest=True)
    if starting == Edge(LATEST):
        raise WrongOptionError("The starting offset can't be latest for batch queries.")
    if ending == Edge(EARLIEST):
        raise WrongOptionError("The ending offset can't be earliest for batch queries.")
    _refuse_edge(starting, LATEST, "The starting offset of {} can't be latest (-1) for batch queries.")
    _refuse_edge(ending, EARLIEST, "The ending offset of {} can't be earliest (-2) for batch queries.")
    _check_order(starting, ending)
    return _read(given, starting, ending)


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.readStream`. Raises WrongOptionError."""
    given = _lowered(options)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name.lower() in given:
            raise WrongOptionError(f"Option '{name}' is not valid in streaming queries, which have no end.")
    return _read(given, _starting(given, Edge(LATEST)), Edge(LATEST))


def _read(given: Mapping[str, str], starting: Position, ending: Position) -> SourceOptions:
    _refuse_misspelt(given)
    least, most = _number(given, "minOffsetsPerTrigger"), _number(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise WrongOptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most}).")
    return SourceOptions(
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        client=client_properties(given),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        include_headers=_boolean(given, "includeHeaders", False),
        min_partitions=_number(given, "minPartitions"),
        max_records_per_partition=_number(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", MAX_TRIGGER_DELAY),
        fetch_offset_retries=_number(given, "fetchOffset.numRetries") or 3,
        fetch_offset_retry_interval_ms=_number(given, "fetchOffset.retryIntervalMs", least=0, default=1000),
        poll_timeout_ms=_number(given, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
        reader_tasks=_number(given, "readerTasks"),
        ranges_only=_boolean(given, "rangesOnly", False),
    )


# ---- what is read --------------------------------------------------------------------------------------------------


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in SUBSCRIPTIONS if name.lower() in given]
    if len(chosen) != 1:
        words = "One of these options must be given" if not chosen else "Only one of these options can be given"
        raise WrongOptionError(f"{words}: {', '.join(SUBSCRIPTIONS)}.")
    (name,) = chosen
    value = given[name.lower()].strip()
    if name == "assign":
        return Subscription(places=_assigned(value))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not topics:
            raise WrongOptionError(f"No topics to subscribe to: option 'subscribe' is '{value}'.")
        return Subscription(topics=topics)
    if not value:
        raise WrongOptionError("Option 'subscribePattern' is empty.")
    try:
        re.compile(value)
    except re.error as error:
        raise WrongOptionError(f"Option 'subscribePattern' is no regular expression: '{value}': {error}.") from error
    return Subscription(pattern=value)


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    sentence = f'Option \'assign\' must look like {{"topicA":[0,1],"topicB":[2]}}, not {value}.'
    found = _object(value, sentence)
    places: list[TopicPartition] = []
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(_is_whole(each, 0) for each in partitions):
            raise WrongOptionError(sentence)
        places += [(topic, partition) for partition in partitions]
    if not places:
        raise WrongOptionError(f"No partitions to read: option 'assign' is '{value}'.")
    return tuple(sorted(set(places)))


# ---- where reading begins and ends ---------------------------------------------------------------------------------


def _starting(given: Mapping[str, str], default: Edge) -> Position:
    name = "startingOffsetsByTimestampStrategy"
    strategy = given.get(name.lower(), "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise WrongOptionError(f"Option '{name}' must be 'error' or 'latest', not '{strategy}'.")
    return _position(given, "starting", default, else_latest=strategy == "latest")


def _position(
    given: Mapping[str, str], which: Literal["starting", "ending"], default: Edge, *, else_latest: bool
) -> Position:
    """Spark's order: one time for all, then times per partition, then offsets."""
    name = f"{which}Timestamp"
    if name.lower() in given:
        text = given[name.lower()].strip()
        if not re.fullmatch(r"[+-]?\d+", text):
            raise WrongOptionError(f"Option '{name}' must be a time in ms since 1970, not '{text}'.")
        return AtTime(int(text), {}, else_latest)
    name = f"{which}OffsetsByTimestamp"
    if name.lower() in given:
        times = parse_offsets(given[name.lower()], f"Option '{name}'")
        return AtTime(None, times, else_latest)
    name = f"{which}Offsets"
    text = given.get(name.lower(), "").strip()
    if name.lower() not in given:
        return default
    if text.lower() in ("earliest", "latest"):
        return Edge(EARLIEST if text.lower() == "earliest" else LATEST)
    offsets = parse_offsets(text, f"Option '{name}'")
    for place, offset in offsets.items():
        if offset < EARLIEST:
            raise WrongOptionError(
                f"Option '{name}' has {offset} for {place[0]}-{place[1]}: neither an offset nor -2 or -1."
            )
    return Specific(offsets)


def parse_offsets(text: str, what: str) -> Offsets:
    """`{"topic": {"0": 23}}`, as Spark's Kafka source writes it, or raise WrongOptionError."""
    sentence = f'{what} must look like {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, not {text}.'
    return offsets_from(_object(text, sentence), sentence)


def offsets_from(found: Mapping[str, Any], sentence: str = "These are no offsets of this source.") -> Offsets:
    """The same, parsed already: Spark hands a checkpoint's offsets over like this. Raises WrongOptionError."""
    offsets: Offsets = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise WrongOptionError(sentence)
        for partition, offset in partitions.items():
            if not str(partition).isdigit() or not _is_whole(offset):
                raise WrongOptionError(sentence)
            offsets[topic, int(partition)] = offset
    return offsets


def offsets_as_dict(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In a fixed order: Spark compares the text to detect changes."""
    out: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    return out


def _refuse_edge(position: Position, edge: int, sentence: str) -> None:
    if isinstance(position, Specific):
        for (topic, partition), offset in position.offsets.items():
            if offset == edge:
                raise WrongOptionError(sentence.format(f"{topic}-{partition}"))


def _check_order(starting: Position, ending: Position) -> None:
    """Check the order of two positions as far as that is possible without a broker (SPARK-38505's checks)."""
    match starting, ending:
        case Specific(first), Specific(last):
            word = "offset"
        case AtTime(None, first), AtTime(None, last):
            word = "time"
        case AtTime(int(early), _), AtTime(int(late), _):
            if early > late:
                raise WrongOptionError(f"startingTimestamp ({early}) is later than endingTimestamp ({late}).")
            return
        case _:
            return
    if first.keys() != last.keys():
        odd = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(first.keys() ^ last.keys()))
        raise WrongOptionError(
            f"The starting and the ending {word}s must name the same partitions; only one names {odd}."
        )
    for (topic, partition), start in first.items():
        end = last[topic, partition]
        if start > end and start >= 0 and end >= 0:
            raise WrongOptionError(
                f"The starting {word} {start} of {topic}-{partition} is behind its ending {word} {end}."
            )


# ---- single values -------------------------------------------------------------------------------------------------


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _object(text: str, sentence: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise WrongOptionError(sentence) from error
    if not isinstance(found, dict):
        raise WrongOptionError(sentence)
    return found


def _is_whole(value: object, least: int | None = None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def _number(given: Mapping[str, str], name: str, *, least: int = 1, default: Any = None) -> Any:
    text = given.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"[+-]?\d+", text.strip()) or int(text) < least:
        raise WrongOptionError(f"Option '{name}' must be a whole number of at least {least}, not '{text}'.")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise WrongOptionError(f"Option '{name}' must be true or false, not '{text}'.")
    return text == "true"


def _duration_ms(given: Mapping[str, str], name: str, default: str) -> int:
    """As Spark reads times: "500ms", "30s", "15m", "1h"; a bare number is in ms."""
    text = given.get(name.lower(), default).strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _TIME_UNITS_MS:
        raise WrongOptionError(f"Option '{name}' must be a time such as 500ms, 30s, 15m or 1h, not '{text}'.")
    return int(int(match[1]) * _TIME_UNITS_MS[match[2] or "ms"])


def _refuse_misspelt(given: Mapping[str, str]) -> None:
    """Refuse misspelt names, which would be ignored silently. Other unknown options pass, as in Spark: `path` and the
    like belong to other parts of a query."""
    known: dict[str, str] = {name.lower(): name for name in NAMES}
    close: Callable[[str], list[str]] = lambda name: difflib.get_close_matches(name, known, 1, 0.9)  # noqa: E731
    for name in given:
        if name not in known and not name.startswith("kafka.") and (meant := close(name)):
            raise WrongOptionError(f"Option '{name}' is not known; did you mean '{known[meant[0]]}'?")
