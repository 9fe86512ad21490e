"""Finds out, on the driver, which partitions exist and which offsets to read of each.

It asks the cluster through the thin client, retries as `fetchOffset.numRetries` says, and reads no record. Offsets that
are gone are lost data: `failOnDataLoss` decides whether that is an error (`RecordsLostError`) or a warning.

Invariant: every range returned was within the broker's offsets when it was asked, unless its partition did not exist.

Source: KafkaOffsetReaderAdmin.scala, KafkaMicroBatchStream.scala.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ottla.client import BrokerError, Client, ClientError, TopicPartition
from ottla.client.client import EARLIEST, LATEST
from ottla.protocol.errors import ErrorCode
from ottla.protocol.uuids import uuid_text
from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.reader.losses import log, lose
from ottla.spark.reader.options import AtTime, Edge, Offsets, Position, SourceOptions, Specific
from ottla.spark.reader.plan import Range

T = TypeVar("T")


def name_of(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"


def names_of(places: Collection[TopicPartition]) -> str:
    return ", ".join(name_of(place) for place in sorted(places))


class Cluster:
    """Asks a cluster for partitions and offsets. It has one client, which is created when needed and never pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._client: Client | None = None
        self._known_missing: frozenset[str] = frozenset()
        self._seen: set[str] = set()

    def __getstate__(self) -> SourceOptions:
        return self.options

    def __setstate__(self, options: SourceOptions) -> None:
        self.__init__(options)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _asking(self, ask: Callable[[Client], T]) -> T:
        """Ask, and ask again after a failure with a new connection."""
        attempt = 1
        while True:
            if self._client is None:
                self._client = self.options.client.connect()
            try:
                return ask(self._client)
            except BrokerError:  # what a repetition could change, the client has repeated
                raise
            except ClientError as error:
                self.close()
                if attempt >= self.options.fetch_offset_retries:
                    raise
                log.warning("Asking for offsets failed, attempt %d: %s", attempt, error)
            attempt += 1
            time.sleep(self.options.fetch_offset_retry_interval_ms / 1000)

    # ---- partitions ------------------------------------------------------------------------------------------------

    def places(self, known: Collection[TopicPartition] = ()) -> set[TopicPartition]:
        """Return the existing partitions of the subscription. Raises WrongOptionError for a missing one, unless it is
        in `known`: then it was deleted."""
        wanted = self.options.subscription
        if wanted.pattern is not None:
            found = self._asking(self._matching)
            return {(topic, partition) for topic, count in found.items() for partition in range(count)}
        topics = dict.fromkeys(wanted.topics or [topic for topic, _ in wanted.places or ()])
        found = self._described(list(topics))
        there = {(topic, partition) for topic, count in found.items() for partition in range(count)}
        self._seen |= found.keys() | {topic for topic, _ in known}
        if missing := topics.keys() - found.keys() - self._seen:
            names = ", ".join(f"'{topic}'" for topic in sorted(missing))
            noun = "Topic" if len(missing) == 1 else "Topics"
            verb = "does" if len(missing) == 1 else "do"
            raise WrongOptionError(f"{noun} {names} {verb} not exist at {self.options.client.bootstrap}.")
        if wanted.places is None:
            return there
        if missing := set(wanted.places) - there - set(known):
            raise WrongOptionError(f"Option 'assign' names what does not exist: {names_of(missing)}.")
        return there & set(wanted.places)

    def _described(self, topics: list[str]) -> dict[str, int]:
        """Return the number of partitions of each topic. A missing topic is requested again, because it may be new."""
        attempt = 1
        while True:
            found = self._asking(lambda client: _counted(client.metadata(topics)))
            missing = frozenset(topics) - found.keys()
            if missing <= self._known_missing or attempt >= self.options.fetch_offset_retries:
                self._known_missing = missing
                return found
            attempt += 1
            time.sleep(self.options.fetch_offset_retry_interval_ms / 1000)

    def _matching(self, client: Client) -> dict[str, int]:
        pattern = re.compile(self.options.subscription.pattern or "")
        hidden = self.options.client.excludes_internal
        found = _counted(client.metadata(None), internal=not hidden)
        return {topic: count for topic, count in found.items() if pattern.fullmatch(topic)}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of the topics that exist, as Kafka writes them; "" if the broker has no topic ids."""
        if not topics:
            return {}
        answer = self._asking(lambda client: client.metadata(topics))
        ids = {topic.name: bytes(topic.topic_id) for topic in answer.topics if topic.error_code == 0}
        return {name: uuid_text(topic_id) if any(topic_id) else "" for name, topic_id in ids.items()}

    # ---- offsets ---------------------------------------------------------------------------------------------------

    def offsets(self, places: Mapping[TopicPartition, int]) -> Offsets:
        """Return each partition's offset for a time in ms, EARLIEST or LATEST; -1 if no record is that recent. Under
        read_committed, the latest offset is the last stable one. Deleted partitions are left out."""
        if not places:
            return {}
        level = self.options.client.isolation_level
        try:
            return self._asking(lambda client: client.list_offsets_of(places, isolation_level=level))
        except BrokerError as error:
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                raise
            topics = sorted({topic for topic, _ in places})
            counts = self._asking(lambda client: _counted(client.metadata(topics), internal=True))
            left = {place: at for place, at in places.items() if place[1] < counts.get(place[0], 0)}
            if len(left) == len(places):
                raise
            return self.offsets(left)

    def earliest(self, places: Collection[TopicPartition]) -> Offsets:
        return self.offsets(dict.fromkeys(places, EARLIEST))

    def latest(self, known: Mapping[TopicPartition, int] | None = None) -> Offsets:
        """Return the end of every partition subscribed to. If an end is before a known offset, ask again: a new leader
        may not know the end yet (as Spark does, for KAFKA-7703)."""
        known = known or {}
        attempt = 1
        while True:
            found = self.offsets(dict.fromkeys(self.places(known), LATEST))
            behind = [place for place, offset in found.items() if offset < known.get(place, 0)]
            if not behind or attempt >= self.options.fetch_offset_retries:
                return found
            attempt += 1
            time.sleep(self.options.fetch_offset_retry_interval_ms / 1000)

    def resolve(self, position: Position, option: str) -> Offsets:
        """An offset for every partition subscribed to. Raises WrongOptionError where they are not those that were
        named."""
        places = self.places()
        match position:
            case Edge(offset):
                return self.offsets(dict.fromkeys(places, offset))
            case Specific(named):
                _check_named(places, named, option)
                edges = {place: offset for place, offset in named.items() if offset < 0}
                return named | self.offsets(edges)
            case AtTime(default_ms, times):
                if default_ms is None:
                    _check_named(places, times, f"{option}ByTimestamp")
                else:
                    times = dict.fromkeys(places, default_ms)
                return self._at_time(times, position.else_latest)

    def _at_time(self, times: Offsets, else_latest: bool) -> Offsets:
        found = self.offsets(times)
        late = [place for place, offset in found.items() if offset < 0]
        if late and not else_latest:
            place = min(late)
            raise WrongOptionError(
                f"No record of {name_of(place)} is of {times[place]} ms or later; "
                "set option 'startingOffsetsByTimestampStrategy' to 'latest' to begin at its end."
            )
        return found | self.offsets(dict.fromkeys(late, LATEST))

    # ---- ranges ----------------------------------------------------------------------------------------------------

    def batch_ranges(self) -> list[Range]:
        """Return the ranges that a batch query reads. Raises WrongOptionError."""
        starts = self.resolve(self.options.starting, "startingOffsets")
        ends = self.resolve(self.options.ending, "endingOffsets")
        both = starts.keys() & ends.keys()
        if gone := starts.keys() ^ ends.keys():
            self._lose(f"{names_of(gone)} went away while the query was planned")
        earliest, latest = self.earliest(both), self.offsets(dict.fromkeys(both, LATEST))
        ranges: list[Range] = []
        for place in sorted(both & earliest.keys() & latest.keys()):
            first, until = starts[place], ends[place]
            if max(first, until) > latest[place]:
                self._lose(
                    f"Offsets {first} to {until} of {name_of(place)} were asked for, but it ends at {latest[place]}"
                )
                first, until = min(first, latest[place]), min(until, latest[place])
            if first > until:
                raise WrongOptionError(
                    f"The starting offset {first} of {name_of(place)} is behind its ending offset {until}."
                )
            if first < min(earliest[place], until):
                self._lose(
                    f"Offsets {first} to {until} of {name_of(place)} were asked for, but it begins at {earliest[place]}"
                )
            ranges.append(Range(place[0], place[1], max(first, earliest[place]), until))
        return ranges

    def stream_ranges(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
        """Return the ranges that a micro-batch reads. New partitions begin at their earliest offset. Partitions that
        are gone, or whose offsets went back (the topic was deleted and created again), are lost data."""
        if gone := start.keys() - end.keys():
            self._lose(f"{names_of(gone)} are gone, and with them what was not read yet")
        fresh = end.keys() - start.keys()
        begins = self.earliest(fresh)
        if gone := fresh - begins.keys():
            self._lose(f"{names_of(gone)} came and are gone again")
        for place, offset in sorted(begins.items()):
            if offset:
                self._lose(f"The new partition {name_of(place)} begins at {offset} instead of 0")
        back = [place for place, offset in end.items() if offset < start.get(place, 0)]
        for place in sorted(back):
            self._lose(
                f"The end of {name_of(place)} went from {start[place]} back to {end[place]}: it was created "
                "again or truncated"
            )
        firsts = {**start, **begins, **self.earliest(back)}
        return [
            Range(place[0], place[1], firsts[place], until)
            for place, until in sorted(end.items())
            if place in firsts and (place in start or place in begins)
        ]

    def _lose(self, sentence: str) -> None:
        lose(self.options.fail_on_data_loss, sentence)


def _counted(answer: object, *, internal: bool = True) -> dict[str, int]:
    """Return the number of partitions of each topic that exists. Raises BrokerError for any other error."""
    found: dict[str, int] = {}
    for topic in answer.topics:  # type: ignore[attr-defined]
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            continue
        if topic.error_code not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            raise BrokerError(topic.error_code, f"topic {topic.name}")
        if internal or not topic.is_internal:
            found[topic.name] = len(topic.partitions)
    return found


def _check_named(places: Collection[TopicPartition], named: Mapping[TopicPartition, int], option: str) -> None:
    """Spark wants all partitions named, and no other."""
    if missing := set(places) - named.keys():
        raise WrongOptionError(
            f"Option '{option}' must name every partition (-2 for earliest, -1 for latest): {names_of(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing."
        )
    if odd := named.keys() - set(places):
        raise WrongOptionError(f"Option '{option}' names what is not read: {names_of(odd)}.")
