"""Runs a follower's fetch loop: all partitions that this node follows on one leader, in one incremental session.

It tracks which partitions are fetched, from which offset and in which leader epoch, and which of them rest after a
failure. It also tracks the state of the leader's session (KIP-227). It makes requests, and turns each answer into
actions on the logs. The caller carries out the actions and reports the new end of each log.

    request(now)      ->  a Fetch, or None while one is in flight or there is nothing to fetch
    answered(now, ..) ->  Records | Diverges | OutOfRange | LeaderDamaged for each partition that has news
    at(key, position) <-  the position of its log afterwards

The states of a partition; `follow` begins with fetching. An event without an entry in the table changes nothing:

    event       from        to
    NEWS        FETCHING    BUSY: the caller has to act, until it calls `at` or `rest`
    AT          any         FETCHING: its log has this position
    FAILED      any         RESTING: each time for longer
    HELD_BACK   FETCHING    RESTING: the replication throttle has no room for it
    RESTED      RESTING     FETCHING: its rest is over
    SYNCS       any         SYNCING: the leader may count its new records only once they are on the disk
    STOPS       any         STOPPED: its log accepts no records, or its leader has a newer epoch (KAFKA-9193), which
                            the metadata will bring

While one partition is syncing, no fetch is sent: it would wait at the leader for longer than the sync takes.

Invariants: at most one fetch is in flight. An answer counts for a partition only if its epoch and offset are still
those of the request.

Sources: Kafka's AbstractFetcherThread, ReplicaFetcherThread, FetchSessionHandler; KAFKA-7164, 15510.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""The first rest of a partition whose fetch failed; each further one is twice as long. A leader that does not know of
its leadership yet will know it soon."""

NEW_MAX: Final = 500
"""How many partitions one fetch adds to the session. The next fetch adds more, and is sent at once. A single request
for thousands would block both nodes."""
UNTOLD: Final = -1
Key: TypeAlias = tuple[bytes, int]
"""A topic's id and the index of a partition."""


class Position(NamedTuple):
    """The position of a log: the next offset to fetch, its newest epoch (-1 without any), and its start."""

    offset: int
    last_epoch: int
    log_start_offset: int


class State(Enum):
    """The state of a followed partition."""

    FETCHING = auto()
    RESTING = auto()
    BUSY = auto()
    SYNCING = auto()
    STOPPED = auto()


class Event(Enum):
    """An event that changes the state of a followed partition; see the table in the module's docstring."""

    NEWS = auto()
    AT = auto()
    FAILED = auto()
    HELD_BACK = auto()
    RESTED = auto()
    SYNCS = auto()
    STOPS = auto()


TRANSITIONS: Final[Mapping[Event, Mapping[State, State]]] = {
    Event.NEWS: {State.FETCHING: State.BUSY},
    Event.AT: dict.fromkeys(State, State.FETCHING),
    Event.FAILED: dict.fromkeys(State, State.RESTING),
    Event.HELD_BACK: {State.FETCHING: State.RESTING},
    Event.RESTED: {State.RESTING: State.FETCHING},
    Event.SYNCS: dict.fromkeys(State, State.SYNCING),
    Event.STOPS: dict.fromkeys(State, State.STOPPED),
}
"""The state after an event, by event and by the state before. A state that is missing stays."""


@dataclass(frozen=True, slots=True)
class Records:
    """Append these records (possibly none), which begin at the log's end; then apply the leader's offsets."""

    key: Key
    leader_epoch: int
    offset: int
    records: memoryview
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Diverges:
    """The log has diverged from the leader's: `leader` is the latest epoch that both may have, and its end on the
    leader."""

    key: Key
    leader: EpochEnd


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The leader does not have the offset: request its log's start and end."""

    key: Key
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderDamaged:
    """The leader's log is damaged at the offset."""

    key: Key


News: TypeAlias = Records | Diverges | OutOfRange | LeaderDamaged


class Followed:
    """A followed partition."""

    __slots__ = ("high_watermark", "leader_epoch", "position", "rest_ms", "rests_until", "state")

    def __init__(self, leader_epoch: int, position: Position) -> None:
        self.leader_epoch = leader_epoch
        self.position = position
        self.state = State.FETCHING
        self.rests_until: Millis = 0
        self.rest_ms = 0
        self.high_watermark = UNTOLD
        """The leader's high watermark in its latest answer."""

    def on(self, event: Event) -> None:
        self.state = TRANSITIONS[event].get(self.state, self.state)

    @property
    def is_caught_up(self) -> bool:
        """Whether it has all committed records, as far as this node knows."""
        return UNTOLD < self.high_watermark <= self.position.offset


class FetchLimits(NamedTuple):
    """The settings replica.fetch.*, and the longest rest."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    backoff_ms: int


_Told: TypeAlias = tuple[int, Position]


class Fetcher:
    """The partitions that this node follows on one leader. `partitions` are in the order of requests."""

    __slots__ = (
        "_asked",
        "_confirmed",
        "_epoch",
        "_is_refused",
        "_limits",
        "_node_id",
        "_rests_until",
        "_session_id",
        "_told",
        "_unconfirmed",
        "partitions",
    )

    def __init__(self, node_id: int, limits: FetchLimits) -> None:
        self.partitions: dict[Key, Followed] = {}
        self._node_id = node_id
        self._limits = limits
        self._session_id = 0
        self._epoch = 0
        self._told: dict[Key, _Told] = {}
        """The state of each partition in the leader's session."""
        self._asked: dict[Key, tuple[int, int]] | None = None
        """Epoch and offset of every partition in the fetch in flight; None without one."""
        self._rests_until: Millis = 0
        """The earliest time of the next request to the leader."""
        self._is_refused = False
        """The leader had no room for a session, so each fetch has to name every partition."""
        self._confirmed: list[Key] = []
        self._unconfirmed: set[Key] = set()

    # ---- followed partitions ---------------------------------------------------------------------------------------

    def follow(self, key: Key, leader_epoch: int, position: Position) -> None:
        """Fetch this partition from `position` on, in this leader epoch. Each call resets its state, whichever node led
        before."""
        self.partitions[key] = Followed(leader_epoch, position)

    def drop(self, key: Key) -> None:
        """Stop fetching this partition."""
        self.partitions.pop(key, None)
        self._unconfirmed.discard(key)

    def at(self, key: Key, leader_epoch: int, position: Position) -> None:
        """The actions for this partition are done, and its log is at this position."""
        followed = self.partitions.get(key)
        if followed is not None and followed.leader_epoch == leader_epoch:
            if position != followed.position:
                followed.rest_ms = 0
            followed.position = position
            followed.on(Event.AT)

    def wait_for_sync(self, key: Key) -> None:
        """The log must be synced to disk before the leader may count its records; call `at` afterwards."""
        followed = self.partitions.get(key)
        if followed is not None:
            followed.on(Event.SYNCS)

    def stop(self, key: Key) -> None:
        """The log accepts no records until `at` or `follow` is called."""
        followed = self.partitions.get(key)
        if followed is not None:
            followed.on(Event.STOPS)

    def cut(self, key: Key) -> None:
        """The log was cut below a position that the leader has: note when it has the new one."""
        self._unconfirmed.add(key)

    def take_confirmed(self) -> list[Key]:
        """The partitions of which the leader has answered a fetch in its present epoch since their logs were `cut`."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def is_busy(self, key: Key) -> bool:
        """Whether actions for this partition are pending."""
        followed = self.partitions.get(key)
        return followed is not None and followed.state is State.BUSY

    @property
    def _is_syncing(self) -> bool:
        return any(followed.state is State.SYNCING for followed in self.partitions.values())

    def rest(self, now: Millis, key: Key, position: Position | None = None) -> None:
        """Pause fetching this partition after a failure, each time for longer."""
        followed = self.partitions.get(key)
        if followed is None:
            return
        if position is not None:
            followed.position = position
        longest = self._limits.backoff_ms
        followed.rest_ms = min(max(REST_MIN_MS, 2 * followed.rest_ms), longest)
        followed.rests_until = now + followed.rest_ms
        followed.on(Event.FAILED)

    def hold_back(self, until: Millis, is_throttled: Callable[[Key], bool]) -> None:
        """Pause throttled partitions that are not caught up, until this time."""
        for key, followed in self.partitions.items():
            if followed.state is State.FETCHING and not followed.is_caught_up and is_throttled(key):
                followed.on(Event.HELD_BACK)
                followed.rests_until = until

    # ---- requests --------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `request` will have something new to send; None while it waits for another event."""
        if self._asked is not None or self._is_syncing:
            return None
        times = [
            followed.rests_until if followed.state is State.RESTING else 0
            for followed in self.partitions.values()
            if followed.state in (State.RESTING, State.FETCHING)
        ]
        return max(min(times), self._rests_until) if times else None

    def request(self, now: Millis, broker_epoch: int) -> FetchRequest | None:
        """The next fetch, if one is due. `broker_epoch`: that of this node's registration."""
        if self._asked is not None or now < self._rests_until or self._is_syncing:
            return None
        asked: dict[Key, tuple[int, int]] = {}
        new: dict[Key, _Told] = {}
        added, is_whole = 0, True
        for key, followed in self.partitions.items():
            if followed.state is State.RESTING and followed.rests_until <= now:
                followed.on(Event.RESTED)
            if followed.state is State.FETCHING:
                told = followed.leader_epoch, followed.position
                if self._told.get(key) != told:
                    added += key not in self._told
                    if added > NEW_MAX and not self._is_refused:
                        is_whole = False
                        continue
                    new[key] = told
                asked[key] = followed.leader_epoch, followed.position.offset
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
            max_wait_ms=limits.max_wait_ms if is_whole else 0,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_topics(new, limits.partition_max_bytes),
            forgotten_topics_data=_forgotten(forgotten) if self._session_id else [],
        )

    # ---- answers ---------------------------------------------------------------------------------------------------

    def unanswered(self, now: Millis) -> None:
        """The fetch in flight was lost: start a new session after a pause."""
        self._asked = None
        self._begin_session()
        self._rests_until = now + self._limits.backoff_ms

    def answered(self, now: Millis, answer: FetchResponse) -> list[News]:
        """Handle the answer to the fetch in flight. Returns actions for the logs; their partitions are busy from now
        on."""
        asked, self._asked = self._asked, None
        assert asked is not None, "an answer to no fetch"
        if answer.error_code:
            self._begin_session()
            if answer.error_code not in _SESSION_ERRORS:
                self._rests_until = now + self._limits.backoff_ms
            return []
        self._is_refused = not answer.session_id
        if answer.session_id:
            self._session_id = answer.session_id
            self._epoch = self._epoch + 1 if self._epoch < 0x7FFF_FFFF else 1
        else:
            self._begin_session()
        if self._unconfirmed:
            self._confirm(asked, answer)
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
                        followed.on(Event.NEWS)
                        news.append(told)
        return news

    def _confirm(self, asked: dict[Key, tuple[int, int]], answer: FetchResponse) -> None:
        """The leader has the positions in this fetch, except where it answers that it does not count them. It leaves
        out partitions without news."""
        refused = {
            (topic.topic_id, part.partition_index)
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code or (part.diverging_epoch is not None and part.diverging_epoch.epoch >= 0)
        }
        for key in self._unconfirmed - refused:
            leader_epoch, offset = asked.get(key, (-1, -1))
            followed = self.partitions[key]
            if leader_epoch == followed.leader_epoch and offset == followed.position.offset:
                self._unconfirmed.discard(key)
                self._confirmed.append(key)

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
                followed.on(Event.STOPS)
            case _:
                self.rest(now, key)
        return None

    def _begin_session(self) -> None:
        self._session_id, self._epoch, self._told = 0, 0, {}

    def check(self) -> None:
        """Raises AssertionError."""
        assert self._session_id or not self._epoch
        assert self._unconfirmed <= self.partitions.keys()
        for followed in self.partitions.values():
            assert followed.rest_ms <= self._limits.backoff_ms or followed.rest_ms == REST_MIN_MS


_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""After these errors a new session may be opened at once."""


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
