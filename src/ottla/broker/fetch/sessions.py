"""Keeps incremental fetch sessions (KIP-227): a client names its partitions once, then only the changes.

A session has its partitions in order, the last values reported for each, and the epoch that the next request must
carry.

Invariants: at most `max.incremental.fetch.session.cache.slots` sessions, with `PARTITIONS_MAX` partitions together; an
id is never 0 and never in use twice. If there is no free slot, a session may be evicted if it was idle for two minutes,
or is that old and has fewer partitions than the newcomer. If there is no room for the partitions, the largest sessions
are evicted, including the newcomer. A session ends with the connection it was last used on; Kafka keeps it until its
slot is needed.

Source: KIP-227, Kafka's FetchSession.scala.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeAlias

from ottla.broker.config.live import LiveSettings
from ottla.machine import Entropy, Millis
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.partitions.partition import Partition

TopicKey: TypeAlias = str | bytes
"""A topic's name (up to version 12) or its id (from 13)."""

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_MS = 120_000
NOT_TOLD = -1
PARTITIONS_MAX = 200_000
"""Twice what a node may have; each needs some 350 bytes."""


class FetchPartition:
    """One partition of a fetch: the request for it, and the values last reported to the session's client."""

    __slots__ = (
        "caught_up_with",
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "told_high_watermark",
        "told_log_start_offset",
        "topic",
    )

    def __init__(
        self,
        topic: TopicKey,
        index: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        """Of a follower's log."""
        self.told_high_watermark = NOT_TOLD
        self.told_log_start_offset = NOT_TOLD
        self.caught_up_with: tuple[Partition, int] | None = None
        """Set once a follower has received everything: the partition and its epoch then; reset when it requests
        something else."""

    def ask(self, newer: FetchPartition) -> None:
        """The client changed its request for this partition. In a new epoch it may have ignored the values reported
        before."""
        if newer.current_leader_epoch != self.current_leader_epoch:
            self.told_high_watermark = self.told_log_start_offset = NOT_TOLD
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset
        self.caught_up_with = None

    def tell(self, error: int, has_records: bool, high_watermark: int, log_start_offset: int, diverging: bool) -> bool:
        """Note the values of an incremental answer; True if the partition has to be in it."""
        changed = has_records or diverging or error != 0
        if high_watermark != self.told_high_watermark:
            changed = True
            self.told_high_watermark = high_watermark
        if log_start_offset != self.told_log_start_offset:
            changed = True
            self.told_log_start_offset = log_start_offset
        if error or diverging:
            self.told_high_watermark = (
                NOT_TOLD  # so that the next answer reports the recovery, and the values after the truncation
            )
        return changed

    def has_nothing_new(self) -> bool:
        """Whether the partition that a follower has caught up with is unchanged since its last answer."""
        assert self.caught_up_with is not None
        partition, epoch = self.caught_up_with
        log = partition.log
        return (
            partition.partition_epoch == epoch
            and log.log_end_offset == self.fetch_offset
            and log.high_watermark == self.told_high_watermark
            and log.log_start_offset == self.told_log_start_offset
        )


class FetchSession:
    """One client's session. `epoch` is the epoch that its next request must carry."""

    __slots__ = ("connection", "created", "epoch", "identity", "last_used", "partitions")

    def __init__(
        self, identity: int, connection: int, now: Millis, partitions: dict[tuple[TopicKey, int], FetchPartition]
    ) -> None:
        self.identity = identity
        self.connection = connection
        self.epoch = 1
        self.created = now
        self.last_used = now
        self.partitions = partitions

    def update(self, asked: list[FetchPartition], forgotten: list[tuple[TopicKey, int]]) -> None:
        for partition in asked:
            known = self.partitions.get((partition.topic, partition.index))
            if known is None:
                self.partitions[(partition.topic, partition.index)] = partition
            else:
                known.ask(partition)
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, partition: FetchPartition) -> None:
        """A partition that returned records moves to the end, so that the others get their turn."""
        key = (partition.topic, partition.index)
        known = self.partitions.pop(key, None)
        if known is not None:
            self.partitions[key] = known


class FetchSessions:
    """All sessions of a node, least recently used first."""

    def __init__(self, settings: LiveSettings, entropy: Entropy) -> None:
        self._settings = settings
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        """How many all sessions have together."""
        self._of_connection: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, now: Millis, connection: int, partitions: dict[tuple[TopicKey, int], FetchPartition]
    ) -> FetchSession | None:
        """A new session, or None if the cache is full of sessions that must stay: the client then gets no session."""
        slots: int = self._settings["max.incremental.fetch.session.cache.slots"]
        if not self._make_room(len(partitions), None):
            return None
        if len(self._sessions) >= slots and not self._evict(now, len(partitions)):
            return None
        identity = 0
        while identity == 0 or identity in self._sessions:
            identity = 1 + self._entropy.randrange(0x7FFF_FFFE)
        session = FetchSession(identity, connection, now, partitions)
        self._sessions[identity] = session
        self._partitions += len(partitions)
        self._of_connection.setdefault(connection, {})[identity] = None
        return session

    def close(self, identity: int) -> None:
        session = self._sessions.pop(identity, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            self._leave_connection(session)

    def connection_lost(self, connection: int) -> None:
        for identity in self._of_connection.pop(connection, ()):
            self._partitions -= len(self._sessions.pop(identity).partitions)

    def resume(
        self, now: Millis, connection: int, identity: int, epoch: int, by_id: bool, more: int
    ) -> FetchSession | ErrorCode:
        """The session of an incremental request, with its epoch advanced; or the error that ends the request.

        `more`: how many partitions the request names; a session that is too large then ends.
        """
        session = self._sessions.get(identity)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        key = next(iter(session.partitions), None)
        if key is not None and isinstance(key[0], bytes) != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if more and not self._make_room(len(session.partitions) + more, session):
            self.close(identity)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = session.epoch + 1 if session.epoch < 0x7FFF_FFFF else 1
        session.last_used = now
        del self._sessions[identity]
        self._sessions[identity] = session
        if session.connection != connection:
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, {})[identity] = None
        return session

    def update(self, session: FetchSession, asked: list[FetchPartition], forgotten: list[tuple[TopicKey, int]]) -> None:
        """Apply the client's changed requests for partitions, and the partitions that it removes."""
        before = len(session.partitions)
        session.update(asked, forgotten)
        self._partitions += len(session.partitions) - before

    def _leave_connection(self, session: FetchSession) -> None:
        identities = self._of_connection[session.connection]
        del identities[session.identity]
        if not identities:
            del self._of_connection[session.connection]

    def _make_room(self, wanted: int, but: FetchSession | None) -> bool:
        """Make `wanted` partitions fit beside those of the sessions without `but`; False if they are too many."""
        total = wanted + self._partitions - (0 if but is None else len(but.partitions))
        if total <= PARTITIONS_MAX:
            return True
        others = [session for session in self._sessions.values() if session is not but]
        others.sort(key=lambda session: len(session.partitions))
        while total > PARTITIONS_MAX and others and len(others[-1].partitions) > wanted:
            largest = others.pop()
            total -= len(largest.partitions)
            self.close(largest.identity)
        return total <= PARTITIONS_MAX

    def _evict(self, now: Millis, newcomers_partitions: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used > EVICTION_MS:
            self.close(oldest.identity)
            return True
        smallest = min(self._sessions.values(), key=lambda session: len(session.partitions))
        if len(smallest.partitions) < newcomers_partitions and now - smallest.created > EVICTION_MS:
            self.close(smallest.identity)
            return True
        return False

    def connections(self) -> AbstractSet[int]:
        """Those that sessions were last used on."""
        return self._of_connection.keys()

    def check(self) -> None:
        assert self._partitions == sum(len(session.partitions) for session in self._sessions.values())
        assert self._partitions <= PARTITIONS_MAX
        assert {i for identities in self._of_connection.values() for i in identities} == set(self._sessions)
