"""Runs a follower's fetch loop: everything that this node follows of one leader, in one incremental session.

Knows which partitions are fetched, from which offset and in which leader epoch, which of them rest after a failure, and
what of the session the leader was told (KIP-227). Makes requests, and makes of each answer what has to be done to the
logs. Does not know a log: whoever carries that out says where the log ends afterwards.

    request(now)      ->  a Fetch, or None while one is in flight or there is nothing to fetch
    answered(now, ..) ->  Records | Diverges | OutOfRange | LeaderDamaged for each partition that has news
    at(key, position) <-  what came of it

A partition is *busy* from such news until `at`, `rest` or `follow` is called for it. It is *syncing* while records of
it are on their way to the disk which must be there before the leader counts them: no fetch leaves meanwhile, as it
would wait at the leader for longer than that takes. It is *stopped* when the leader is in a newer epoch than we know:
the metadata will say which (KAFKA-9193); or when its log takes nothing.

Invariants: one fetch is in flight at most; an answer counts only for a partition whose epoch and offset are still those
that were asked.

Sources: Kafka's AbstractFetcherThread, ReplicaFetcherThread, FetchSessionHandler; KAFKA-7164, 15510.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.replica.divergence import EpochEnd

REST_MIN_MS: Final = 20
"""The first rest of a partition whose fetch failed; each next one is twice as long. A leader that has not heard of its
leadership yet has in a moment."""

UNTOLD: Final = -1
Key: TypeAlias = tuple[bytes, int]
"""A topic's id and the index of a partition."""


class Position(NamedTuple):
    """Where a log stands: the next offset to fetch, the newest epoch in it (-1 without any), its start."""

    offset: int
    last_epoch: int
    log_start_offset: int


class State(Enum):
    """What a followed partition is doing."""

    FETCHING = auto()
    RESTING = auto()
    BUSY = auto()
    SYNCING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Records:
    """Take these records, perhaps none, which begin where the log ends; then the leader's offsets."""

    key: Key
    leader_epoch: int
    offset: int
    records: memoryview
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Diverges:
    """The log and the leader's part ways: `leader` is the epoch that both may have, and where it ends there."""

    key: Key
    leader: EpochEnd


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The leader does not have the offset: its start and end have to be asked for."""

    key: Key
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderDamaged:
    """The leader's log is damaged at the offset."""

    key: Key


News: TypeAlias = Records | Diverges | OutOfRange | LeaderDamaged


class Followed:
    """One partition that is fetched."""

    __slots__ = ("high_watermark", "leader_epoch", "position", "rest_ms", "rests_until", "state")

    def __init__(self, leader_epoch: int, position: Position) -> None:
        self.leader_epoch = leader_epoch
        self.position = position
        self.state = State.FETCHING
        self.rests_until: Millis = 0
        self.rest_ms = 0
        self.high_watermark = UNTOLD
        """The leader's, as it last said."""

    @property
    def is_caught_up(self) -> bool:
        """Whether it has all that is committed, as far as anybody here knows."""
        return UNTOLD < self.high_watermark <= self.position.offset


class FetchLimits(NamedTuple):
    """The settings of replica.fetch.*, and the longest rest."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    backoff_ms: int


_Told: TypeAlias = tuple[int, Position]


class Fetcher:
    """What this node follows of one leader. `partitions` are in the order in which they are asked for."""

    __slots__ = ("_asked", "_epoch", "_limits", "_node_id", "_rests_until", "_session_id", "_told", "partitions")

    def __init__(self, node_id: int, limits: FetchLimits) -> None:
        self.partitions: dict[Key, Followed] = {}
        self._node_id = node_id
        self._limits = limits
        self._session_id = 0
        self._epoch = 0
        self._told: dict[Key, _Told] = {}
        """What the leader's session has of each partition."""
        self._asked: dict[Key, tuple[int, int]] | None = None
        """Epoch and offset of everything that the fetch in flight asks for; None: none is in flight."""
        self._rests_until: Millis = 0
        """The leader can't be reached before."""

    # ---- what is followed ------------------------------------------------------------------------------------------

    def follow(self, key: Key, leader_epoch: int, position: Position) -> None:
        """Fetch this partition from `position` on, in this leader epoch: begun anew at each, whoever led before."""
        self.partitions[key] = Followed(leader_epoch, position)

    def drop(self, key: Key) -> None:
        """Fetch it no more."""
        self.partitions.pop(key, None)

    def at(self, key: Key, leader_epoch: int, position: Position) -> None:
        """What was told of this partition is done, and the log stands there now."""
        followed = self.partitions.get(key)
        if followed is not None and followed.leader_epoch == leader_epoch:
            if position != followed.position:
                followed.rest_ms = 0
            followed.position = position
            followed.state = State.FETCHING

    def wait_for_sync(self, key: Key) -> None:
        """What its log has must be on the disk before the leader hears of it; then `at` is called."""
        followed = self.partitions.get(key)
        if followed is not None:
            followed.state = State.SYNCING

    def stop(self, key: Key) -> None:
        """Its log takes nothing, until `at` or `follow` is called."""
        followed = self.partitions.get(key)
        if followed is not None:
            followed.state = State.STOPPED

    def is_busy(self, key: Key) -> bool:
        """Whether what was told of this partition has yet to be done."""
        followed = self.partitions.get(key)
        return followed is not None and followed.state is State.BUSY

    @property
    def _is_syncing(self) -> bool:
        return any(followed.state is State.SYNCING for followed in self.partitions.values())

    def rest(self, now: Millis, key: Key, position: Position | None = None) -> None:
        """Something about this partition failed: leave it alone for a while, each time for longer."""
        followed = self.partitions.get(key)
        if followed is None:
            return
        if position is not None:
            followed.position = position
        longest = self._limits.backoff_ms
        followed.rest_ms = min(max(REST_MIN_MS, 2 * followed.rest_ms), longest)
        followed.rests_until = now + followed.rest_ms
        followed.state = State.RESTING

    def hold_back(self, until: Millis, is_throttled: Callable[[Key], bool]) -> None:
        """Leave alone until then what is throttled and not caught up."""
        for key, followed in self.partitions.items():
            if followed.state is State.FETCHING and not followed.is_caught_up and is_throttled(key):
                followed.state = State.RESTING
                followed.rests_until = until

    # ---- requests --------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `request` has something to send that it has not now; None while it waits for something else."""
        if self._asked is not None or self._is_syncing:
            return None
        times = [
            followed.rests_until if followed.state is State.RESTING else 0
            for followed in self.partitions.values()
            if followed.state in (State.RESTING, State.FETCHING)
        ]
        return max(min(times), self._rests_until) if times else None

    def request(self, now: Millis, broker_epoch: int) -> FetchRequest | None:
        """The next fetch, if one is due. `broker_epoch`: of this node's registration."""
        if self._asked is not None or now < self._rests_until or self._is_syncing:
            return None
        asked: dict[Key, tuple[int, int]] = {}
        new: dict[Key, _Told] = {}
        for key, followed in self.partitions.items():
            if followed.state is State.RESTING and followed.rests_until <= now:
                followed.state = State.FETCHING
            if followed.state is State.FETCHING:
                asked[key] = followed.leader_epoch, followed.position.offset
                told = followed.leader_epoch, followed.position
                if self._told.get(key) != told:
                    new[key] = told
        if not asked:
            return None
        forgotten = [key for key in self._told if key not in asked]
        self._asked = asked
        for key in forgotten:
            del self._told[key]
        self._told |= new
        limits = self._limits
        return FetchRequest(
            replica_state=ReplicaState(self._node_id, broker_epoch),
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_topics(new, limits.partition_max_bytes),
            forgotten_topics_data=_forgotten(forgotten) if self._session_id else [],
        )

    # ---- answers ---------------------------------------------------------------------------------------------------

    def unanswered(self, now: Millis) -> None:
        """Nobody knows what became of the fetch in flight: the session begins anew, after a while."""
        self._asked = None
        self._begin_session()
        self._rests_until = now + self._limits.backoff_ms

    def answered(self, now: Millis, answer: FetchResponse) -> list[News]:
        """What came of the fetch in flight: what has to be done to the logs, each of whose partitions is busy then."""
        asked, self._asked = self._asked, None
        assert asked is not None, "an answer to no fetch"
        if answer.error_code:
            self._begin_session()
            if answer.error_code not in _SESSION_ERRORS:
                self._rests_until = now + self._limits.backoff_ms
            return []
        if answer.session_id:
            self._session_id = answer.session_id
            self._epoch = self._epoch + 1 if self._epoch < 0x7FFF_FFFF else 1
        else:
            self._begin_session()
        news: list[News] = []
        for topic in answer.responses:
            for part in topic.partitions:
                key = topic.topic_id, part.partition_index
                followed = self.partitions.get(key)
                if followed is None or followed.state is not State.FETCHING:
                    continue
                if asked.get(key) == (followed.leader_epoch, followed.position.offset):
                    told = self._look_at(now, key, followed, part)
                    if told is not None:
                        followed.state = State.BUSY
                        news.append(told)
        return news

    def _look_at(self, now: Millis, key: Key, followed: Followed, part: PartitionData) -> News | None:
        match part.error_code:
            case ErrorCode.NONE:
                diverging = part.diverging_epoch
                if diverging is not None and diverging.epoch >= 0:
                    return Diverges(key, EpochEnd(diverging.epoch, diverging.end_offset))
                records = memoryview(b"") if part.records is None else memoryview(part.records)
                offset = followed.position.offset
                followed.high_watermark = part.high_watermark
                return Records(key, followed.leader_epoch, offset, records, part.high_watermark, part.log_start_offset)
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return OutOfRange(key, followed.leader_epoch)
            case ErrorCode.CORRUPT_MESSAGE:
                return LeaderDamaged(key)
            case ErrorCode.FENCED_LEADER_EPOCH:
                followed.state = State.STOPPED
            case _:
                self.rest(now, key)
        return None

    def _begin_session(self) -> None:
        self._session_id, self._epoch, self._told = 0, 0, {}

    def check(self) -> None:
        """Raises AssertionError."""
        assert self._session_id or not self._epoch
        for followed in self.partitions.values():
            assert followed.rest_ms <= self._limits.backoff_ms or followed.rest_ms == REST_MIN_MS


_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""After these a new session may be opened at once."""


def _topics(told: dict[Key, _Told], max_bytes: int) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, index), (leader_epoch, position) in told.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
        topic.partitions.append(
            FetchPartition(
                index, leader_epoch, position.offset, position.last_epoch, position.log_start_offset, max_bytes
            )
        )
    return list(topics.values())


def _forgotten(keys: list[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ForgottenTopic(topic_id=topic_id)
        topic.partitions.append(index)
    return list(topics.values())
