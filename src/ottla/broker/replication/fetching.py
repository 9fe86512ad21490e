"""Fetches from the leaders of the partitions that this node follows, and applies the answers to its logs.

There is one fetch loop for each leader (`replica.fetcher.Fetcher`). Fetched records are appended as they are, a log
that diverged is truncated, and the high watermark and the log start follow the leader's.

An answer for thousands of partitions that were never written creates thousands of directories. The part of it that does
not fit into a slice is applied by the next ticks. Nothing more is fetched from this leader until it is all applied.

Invariants: a log is truncated before its high watermark moves (KAFKA-14704). If the checkpoints may have been above the
new end, they are on disk before anything is appended after a truncation. If every record has to be on disk, a fetch
reports only the part of this log that is.

Sources: Kafka's ReplicaFetcherThread, AbstractFetcherThread; KIP-101, KIP-320.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import FETCH_LINE, Peers
from ottla.broker.cluster.registrations import Registrations
from ottla.broker.environment import Environment
from ottla.broker.partitions.partition import Partition
from ottla.broker.replication.offsets import OffsetQuestion
from ottla.broker.replication.throttle import Throttle
from ottla.broker.schedule import AT_ONCE, NEVER, Reckoning, Timed
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.answers import AppendRefusedError, DamagedLogError, DivergingOffsetError, StorageError
from ottla.log.cost import BEYOND_USUAL, SEGMENT, TimeSlice
from ottla.machine import Millis
from ottla.protocol.messages.fetch import FetchResponse
from ottla.replica.copy_status import CopyStatus, Event
from ottla.replica.divergence import EpochEnd, truncation_offset
from ottla.replica.fetcher import (
    Diverges,
    Fetcher,
    FetchLimits,
    Key,
    LeaderDamaged,
    News,
    OutOfRange,
    Position,
    Records,
)


class FetchesOf:
    """The fetches from one leader; a `peers.Asker`. `due`: when to send the next fetch, or to continue with the last
    answer; NEVER while it waits for another event. It is computed again after each use of the fetcher."""

    def __init__(self, fetching: Fetching, leader: int, fetcher: Fetcher) -> None:
        self.leader = leader
        self.news: deque[News] = deque()
        """The rest of the last answer."""
        self._fetcher = fetcher
        self._fetching = fetching
        self._due: Millis | None = None

    @property
    def fetcher(self) -> Fetcher:
        """The machine, whose deadline may change by its use."""
        self._due = None
        self._fetching.touched()
        return self._fetcher

    @property
    def due(self) -> Millis:
        if self.news:
            return AT_ONCE
        if self._due is None:
            self._due = self._reckoned()
        return self._due

    def _reckoned(self) -> Millis:
        deadline = self._fetcher.deadline()
        return NEVER if deadline is None else deadline

    def answered(self, now: Millis, answer: object) -> None:
        self._fetching.answered(now, self, answer)

    def check(self) -> None:
        """Raises AssertionError."""
        self._fetcher.check()
        assert self._due in (None, self._reckoned()), f"fetches of node {self.leader} are due at another moment"


class Fetching:
    """All fetches of one node."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        registrations: Registrations,
        peers: Peers,
        upkeep: Upkeep,
        throttle: Throttle,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._registrations = registrations
        self._peers = peers
        self._upkeep = upkeep
        self._throttle = throttle
        self._of_leader: dict[int, FetchesOf] = {}
        self._followed: dict[Key, tuple[Partition, FetchesOf]] = {}
        self._unsynced: dict[Key, None] = {}
        """Partitions that wait for their fsync before they are fetched further."""
        self._refused: dict[Partition, int] = {}
        """The end of the log when it last refused what its leader sent."""
        self._reckoning = Reckoning(environment.schedule, Timed.REPLICATION, self._go_on_all, self._due)

    # ---- partitions that this node follows -------------------------------------------------------------------------

    def follow(self, now: Millis, partition: Partition, leader: int) -> None:
        """Fetch this partition from that leader, in the partition's epoch; no change if it does so already."""
        key = key_of(partition)
        known = self._followed.get(key)
        self._mend(now, partition)
        if known is not None:
            before = known[1].fetcher.partitions[key]
            if known == (partition, self._of_leader.get(leader)) and before.leader_epoch == partition.leader_epoch:
                if partition.refused_epoch == partition.leader_epoch and not self._may_refuse(partition):
                    partition.refused_epoch = -1
                    self.go_on(key, partition)
                return
            known[1].fetcher.drop(key)
        is_cut = self._cut_unless_it_has_epochs(now, partition)
        fetches = self._of_leader.get(leader)
        if fetches is None:
            fetches = self._of_leader[leader] = FetchesOf(
                self, leader, Fetcher(self._environment.node_id, self._limits())
            )
        self._followed[key] = partition, fetches
        fetches.fetcher.follow(key, partition.leader_epoch, position_of(partition))
        if partition.copy.status is CopyStatus.REJOINING:
            fetches.fetcher.cut(key)
        if is_cut:
            self._hold_back(key, partition)
        else:
            fetches.fetcher.stop(key)

    def look_at_damage(self, now: Millis) -> None:
        """Damage was found: repair it where the cluster does not count on this log."""
        for partition, _ in list(self._followed.values()):
            self._mend(now, partition)

    def _mend(self, now: Millis, partition: Partition) -> None:
        """Once the cluster no longer counts on this log, cut off the damage: the leader has the whole log.

        The row of this node must report the log first: until then, a proposal under way may still count this replica as
        in sync by the end that it had before. It reports the log until the leader has the new end.
        """
        copy, log, key = partition.copy, partition.log, key_of(partition)
        copy.on(Event.FOLLOWS)
        if not copy.is_to_be_cut:
            return
        is_gone = log.is_gone
        if log.failed is not None and not is_gone:
            return
        node_id, place = self._environment.node_id, (log.topic_id, partition.index)
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if placed is None or node_id in (*placed.isr, *placed.elr):
            return
        if copy.is_reported and self._registrations.may_count(node_id, place):
            return
        cut_from = log.log_start_offset if is_gone else copy.damaged_from
        if is_gone or (cut_from is not None and cut_from < log.log_end_offset):
            self._environment.notes(f"{partition.name} is damaged from offset {cut_from} on and copied again")
            try:
                if cut_from is None or is_gone:
                    log.start_over()
                else:
                    log.truncate_to(cut_from, now=now)
                self._was_cut(now, partition)
            except StorageError as failed:
                self.storage_failed(now, partition, failed)
                return
            self.go_on(key, partition)
        self._upkeep.failures.mended(partition)
        self._upkeep.scrubs.check_rest(partition)
        if key in self._followed:
            self._followed[key][1].fetcher.cut(key)

    def _look_at_rejoining(self, fetches: FetchesOf) -> None:
        """This leader has the ends of these logs, as they are since they were cut: it may count on them again."""
        for key in fetches.fetcher.take_confirmed():
            partition, of_now = self._followed.get(key, (None, None))
            if partition is not None and of_now is fetches and partition.copy.on(Event.CONFIRMED):
                self._upkeep.failures.has_news = True

    def _cut_unless_it_has_epochs(self, now: Millis, partition: Partition) -> bool:
        """Truncate a log without epochs, as nothing else shows where it may diverge. False if it could not be
        truncated, and must not be fetched for before it is."""
        log = partition.log
        if log.latest_epoch < 0 and log.high_watermark < log.log_end_offset and log.failed is None:
            try:
                self.cut_to(now, partition, log.high_watermark)
            except StorageError as failed:
                self.storage_failed(now, partition, failed)
        return log.latest_epoch >= 0 or log.high_watermark == log.log_end_offset

    def drop(self, key: Key) -> None:
        """Fetch it no more."""
        self._unsynced.pop(key, None)
        known = self._followed.pop(key, None)
        if known is not None:
            known[1].fetcher.drop(key)
            self._refused.pop(known[0], None)

    def _limits(self) -> FetchLimits:
        settings = self._environment.settings
        return FetchLimits(
            settings["replica.fetch.wait.max.ms"],
            settings["replica.fetch.min.bytes"],
            settings["replica.fetch.response.max.bytes"],
            settings["replica.fetch.max.bytes"],
            settings["replica.fetch.backoff.ms"],
        )

    # ---- requests --------------------------------------------------------------------------------------------------

    def touched(self) -> None:
        """The deadline of a fetcher may be another one from now on."""
        self._reckoning.touched()

    def _due(self) -> Millis | None:
        due = min((fetches.due for fetches in self._of_leader.values()), default=NEVER)
        return None if due == NEVER else due

    def send(self, now: Millis) -> None:
        """Send every fetch that is due."""
        broker_epoch = self._registrations.epoch_here(self._environment.node_id)
        waits_ms = self._throttle.waits_ms(now) if self._throttle.is_on else 0
        for fetches in self._of_leader.values():
            if fetches.news:
                continue
            if waits_ms:
                fetches.fetcher.hold_back(now + waits_ms, self._is_throttled)
            if fetches.due > now:
                continue
            request = fetches.fetcher.request(now, broker_epoch)
            if request is not None:
                self._peers.ask(now, fetches.leader, request, fetches, line=FETCH_LINE)

    def answered(self, now: Millis, fetches: FetchesOf, answer: object) -> None:
        """A leader has answered, or the outcome of the fetch is unknown."""
        if isinstance(answer, FetchResponse):
            fetches.news.extend(fetches.fetcher.answered(now, answer))
            self._look_at_rejoining(fetches)
            self._take_slice(now, fetches, self._environment.time_slice())
            fetches.news = deque(map(kept, fetches.news))
        else:
            fetches.fetcher.unanswered(now)
        self.send(now)

    def _go_on_all(self, now: Millis) -> None:
        """Continue answers that were too long for one slice, and send every fetch that is due."""
        time_slice = self._environment.time_slice()
        for fetches in self._of_leader.values():
            if fetches.news and not time_slice.is_over:
                self._take_slice(now, fetches, time_slice)
        self.send(now)

    def _take_slice(self, now: Millis, fetches: FetchesOf, time_slice: TimeSlice) -> None:
        """Apply the leader's answer, until the slice is over."""
        news, fetcher = fetches.news, fetches.fetcher
        while news:
            each = news.popleft()
            partition, of_now = self._followed.get(each.key, (None, None))
            if partition is None or of_now is not fetches or not fetcher.is_busy(each.key):
                continue  # it is followed otherwise since
            try:
                self._carry_out(now, fetches, partition, each)
            except StorageError as failed:
                self.storage_failed(now, partition, failed)
                fetcher.rest(now, each.key, position_of(partition))
                self._hold_back(each.key, partition)
            except Exception as error:
                fetcher.rest(now, each.key, position_of(partition))
                self._environment.fault(f"following the leader of {partition.name} failed", error)
            if time_slice.is_over:
                return

    def storage_failed(self, now: Millis, partition: Partition, failed: StorageError) -> None:
        """The log could not be truncated or appended to: report it to the cluster."""
        self._upkeep.failures.storage_failed(now, partition, str(failed))

    def _is_throttled(self, key: Key) -> bool:
        partition = self._followed[key][0]
        return self._throttle.lists(partition.topic_name, partition.index)

    # ---- applying an answer ----------------------------------------------------------------------------------------

    def _carry_out(self, now: Millis, fetches: FetchesOf, partition: Partition, news: News) -> None:
        if partition.log.failed is not None:
            fetches.fetcher.stop(news.key)
            return
        match news:
            case Records():
                self._take(now, fetches, partition, news)
            case Diverges(key, leader):
                log = partition.log
                own = EpochEnd(*log.end_offset_for(leader.epoch))
                self.cut_to(now, partition, truncation_offset(leader, own, log.log_end_offset))
                self.go_on(key, partition)
            case OutOfRange(key, leader_epoch) if partition.log.latest_epoch > leader_epoch:
                # The leader can't know this epoch: a bit of it is flipped, or the metadata store has lost it.
                newer = [start for epoch, start in partition.log.epochs.entries if epoch > leader_epoch]
                self.cut_to(now, partition, newer[0])
                self.go_on(key, partition)
            case OutOfRange(key, leader_epoch):
                own_id = self._environment.node_id
                OffsetQuestion(self, self._peers, own_id, fetches.leader, partition, key, leader_epoch).ask(now)
            case LeaderDamaged(key):
                self._note_refusal(fetches.leader, partition, "its log is damaged there")
                fetches.fetcher.rest(now, key)

    def _take(self, now: Millis, fetches: FetchesOf, partition: Partition, news: Records) -> None:
        log, fetcher = partition.log, fetches.fetcher
        if log.log_end_offset != news.offset:
            self.go_on(news.key, partition)
            return
        if len(news.records):
            try:
                appended = log.append_as_follower(news.records, now=now, leader_epoch=news.leader_epoch)
            except (DamagedLogError, DivergingOffsetError, AppendRefusedError) as refused:
                appended = None
                self._note_refusal(fetches.leader, partition, str(refused))
            if appended is None:
                fetcher.rest(now, news.key, position_of(partition))
                return
            partition.appended_as_follower(now)
            if self._throttle.is_on and self._is_throttled(news.key):
                self._throttle.took(len(news.records))
        partition.advance_as_follower(news.high_watermark)
        if log.log_start_offset < news.log_start_offset <= log.high_watermark:
            log.delete_records_before(news.log_start_offset)
        self.go_on(news.key, partition)

    def _note_refusal(self, leader: int, partition: Partition, why: str) -> None:
        """Log once that this log refuses what its leader sends, as the same is fetched again and again."""
        offset = partition.log.log_end_offset
        if self._refused.get(partition) != offset:
            self._refused[partition] = offset
            self._environment.notes(
                f"{partition.name} stops at offset {offset}: what its leader, node {leader}, sent is refused: {why}"
            )

    def go_on(self, key: Key, partition: Partition) -> None:
        """Continue to fetch from the present end of the log."""
        known = self._followed.get(key)
        if known is not None and known[0] is partition:
            known[1].fetcher.at(key, partition.leader_epoch, position_of(partition))
            self._hold_back(key, partition)

    def _hold_back(self, key: Key, partition: Partition) -> None:
        """Fetch on only once the log accepts records, and has on disk the records that must be."""
        fetcher, log = self._followed[key][1].fetcher, partition.log
        if log.failed is not None or partition.refused_epoch == partition.leader_epoch:
            fetcher.stop(key)
        elif partition.fsyncs_each and log.recovery_point < log.log_end_offset:
            self._unsynced[key] = None
            fetcher.wait_for_sync(key)
            self._upkeep.commits.sync_soon(partition)

    def synced(self, now: Millis) -> None:
        """Some fsyncs have completed: resume the partitions that waited for them."""
        if not self._unsynced:
            return
        unsynced, self._unsynced = self._unsynced, {}
        for key in unsynced:
            self.go_on(key, self._followed[key][0])
        self.send(now)

    def taken_back(self, now: Millis, partition: Partition) -> None:
        """The log accepts records again, after its end was cut off."""
        key = key_of(partition)
        if key in self._followed:
            self.go_on(key, partition)
            self.send(now)

    def rest(self, now: Millis, key: Key) -> None:
        """Leave this partition alone for a moment."""
        known = self._followed.get(key)
        if known is not None:
            known[1].fetcher.rest(now, key)

    def cut_to(self, now: Millis, partition: Partition, offset: int) -> None:
        """The leader's log differs from here on, or ends here: remove this log's records from `offset` on.

        If some of them are committed, this replica keeps them and refuses to follow. Raises StorageError.
        """
        log = partition.log
        end = log.log_end_offset
        if offset < log.high_watermark and self._may_refuse(partition):
            self._refuse(partition, offset)
            return
        if offset < end:
            self._environment.notes(
                f"{partition.name} is cut from {end} to {offset}: its leader has other records there"
            )
        committed = min(offset, log.high_watermark)
        log.truncate_to(offset, now=now)
        if log.log_end_offset < committed:
            self._environment.warn(
                f"{partition.name} is cut to {log.log_end_offset}, because its records up to {committed} are damaged. "
                "They are copied again"
            )
            partition.copy.on(Event.MAY_LACK)
            self._upkeep.failures.has_news = True
        self._was_cut(now, partition)

    def _may_refuse(self, partition: Partition) -> bool:
        """Whether this replica keeps its committed records against a leader that lacks them.

        Not if the cluster has accepted the loss with the leader's election, nor if most replicas agree with the
        leader.
        """
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if placed is None or placed.unclean_epoch > partition.log.last_record_epoch:
            return False
        return self._environment.node_id in placed.isr or 2 * len(placed.isr) <= len(placed.replicas)

    def _refuse(self, partition: Partition, offset: int) -> None:
        """Follow this leader no further, and report it to the controller."""
        log = partition.log
        partition.refused_epoch = partition.leader_epoch
        self._environment.warn(
            f"{partition.name}: this replica has committed records up to offset {log.high_watermark}, and its leader "
            f"has other records from offset {offset} on. It does not follow this leader, so that no record is lost. If "
            f"the leader stays, run `ottla topics elect-leaders --unclean {partition.topic_name}` to accept the loss"
        )
        self._upkeep.failures.has_news = True

    def begin_at(self, now: Millis, partition: Partition, offset: int) -> None:
        """The leader's log starts behind this log's end: empty this log and start there. Raises StorageError."""
        self._environment.notes(f"{partition.name} starts again at {offset}: its leader has no earlier records")
        partition.log.truncate_fully_and_start_at(offset, now=now)
        self._was_cut(now, partition)

    def _was_cut(self, now: Millis, partition: Partition) -> None:
        BEYOND_USUAL.steps += SEGMENT  # checkpoints are written, and segments go
        self._upkeep.checkpoints.write_cut()
        self._upkeep.commits.look_soon(now, partition)
        partition.wake_all_fetches()

    def check(self) -> None:
        """Raises AssertionError."""
        for key, (partition, fetches) in self._followed.items():
            assert key in fetches.fetcher.partitions
            assert not partition.leads, partition.name
        for fetches in self._of_leader.values():
            fetches.check()


def kept(news: News) -> News:
    """The same, without the frame of the answer, whose memory will be reused."""
    return replace(news, records=memoryview(bytearray(news.records))) if isinstance(news, Records) else news


def key_of(partition: Partition) -> Key:
    """How the fetches name a partition."""
    return partition.log.topic_id, partition.index


def position_of(partition: Partition) -> Position:
    """The position of its log."""
    log = partition.log
    return Position(log.log_end_offset, log.latest_epoch, log.log_start_offset)
