"""Keeps the durable state of share partitions in one partition of `__share_group_state`: the share coordinator's shard.

For each (group, topic id, partition) it keeps the epochs that fence and the start offset. It also keeps the state and
delivery count of every offset that is not simply available. Members, locks and the topic's own log are not part of it.

One call is about one key; the caller splits a request for several keys. A write becomes a ShareUpdate. A ShareSnapshot
follows after `snapshot_updates` of them, once they are larger than the last snapshot, so that a large state is not
rewritten repeatedly. A key without writes gets a new snapshot (`expire`) when other keys write, so that the log can be
pruned below `prunable_offset`.

Invariants (`check`): batches ascend, and none is below the start offset. No snapshot offset is above the last applied
offset. Replay gives the same state.

Sources: KIP-932; Kafka's ShareCoordinatorShard.java, PersisterStateBatchCombiner.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.machine import NOTHING, Answer, AppliedBatch, Call, Decision, Millis, ShardRecord, Ticket, WallClock
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages import delete_share_group_state as delete
from ottla.protocol.messages import initialize_share_group_state as initialize
from ottla.protocol.messages import read_share_group_state as read
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.protocol.messages import write_share_group_state as write
from ottla.protocol.uuids import uuid_text
from ottla.share.records import (
    UNCHANGED,
    Key,
    Snapshot,
    Update,
    decode,
    encode_snapshot,
    encode_tombstone,
    encode_update,
)
from ottla.share.runs import Runs
from ottla.share.settings import ShareStateSettings
from ottla.share.standing import State, StateBatch

UNINITIALIZED: Final = -1
BEHIND_MAX: Final = 10_000
"""A key whose snapshot is more records back than this gets a new one, so that the log can be pruned."""
SNAPSHOTS_PER_STEP: Final = 100

_UNTOUCHED = (int(State.AVAILABLE), 0)
_UNINITIALIZED_WRITE = "Write operation on uninitialized share partition not allowed."
_UNINITIALIZED_READ = "Read operation on uninitialized share partition not allowed."


def coordinator_key(group_id: str, topic_id: bytes, partition: int) -> str:
    """The key that determines the partition of `__share_group_state` (SharePartitionKey.asCoordinatorKey)."""
    return f"{group_id}:{uuid_text(topic_id)}:{partition}"


@dataclass(frozen=True, slots=True)
class TopicGone:
    """The body of a call from the node itself: a topic was deleted, so the groups' state for it is deleted too."""

    topic_id: bytes


class Kept:
    """The state of one key."""

    __slots__ = (
        "complete_count",
        "created_ms",
        "leader_epoch",
        "runs",
        "snapshot_bytes",
        "snapshot_epoch",
        "snapshot_offset",
        "start_offset",
        "state_epoch",
        "update_bytes",
        "updates",
    )

    def __init__(self, snapshot: Snapshot, offset: int, size: int) -> None:
        self.snapshot_epoch = snapshot.snapshot_epoch
        self.snapshot_offset = offset
        self.snapshot_bytes = size
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.start_offset = snapshot.start_offset
        self.complete_count = max(snapshot.complete_count, 0)
        self.created_ms = snapshot.created_ms
        self.updates = 0
        self.update_bytes = 0
        self.runs: Runs[tuple[int, int]] = Runs(max(snapshot.start_offset, 0))
        self.merge(snapshot.batches)

    def merge(self, batches: Sequence[StateBatch]) -> None:
        """Apply batches in order, later ones over earlier ones; offsets below the start offset are ignored."""
        runs = self.runs
        for first, last, state, delivery_count in batches:
            first = max(first, runs.start)
            if last < first:
                continue
            runs.append(first, _UNTOUCHED)
            known = runs.end
            runs.append(last + 1, (state, delivery_count))
            if first < known:
                runs.assign(first, min(last + 1, known), (state, delivery_count))

    def update(self, update: Update, size: int) -> None:
        self.updates += 1
        self.update_bytes += size
        if update.leader_epoch != UNCHANGED:
            self.leader_epoch = update.leader_epoch
        if update.start_offset > self.start_offset:  # a write that began earlier may end later
            self.start_offset = update.start_offset
            self.runs.trim(update.start_offset)
        if update.complete_count != UNCHANGED:
            self.complete_count = update.complete_count
        self.merge(update.batches)

    def batches(self) -> list[StateBatch]:
        """Every run that is not simply available."""
        runs = self.runs
        return [
            StateBatch(first, end - 1, *value)
            for first, end, value in runs.within(runs.start, runs.end)
            if value != _UNTOUCHED
        ]

    def snapshot(self) -> Snapshot:
        """The next snapshot, of the state as it is."""
        return Snapshot(
            self.snapshot_epoch + 1,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.complete_count,
            self.created_ms,
            self.batches(),
        )

    def check(self) -> None:
        self.runs.check()
        assert self.runs.start >= self.start_offset


class ShareStateShard:
    """A `machine.Shard`; see the module's docstring."""

    TOPIC = SHARE_GROUP_STATE_TOPIC

    def __init__(
        self,
        settings: ShareStateSettings,
        notes: Callable[[str], None],
        wall: WallClock | None = None,
    ) -> None:
        self._wall = wall if wall is not None else WallClock()
        self._settings = settings
        self._notes = notes
        self._kept: dict[Key, Kept] = {}
        self._of_topic: dict[bytes, dict[Key, None]] = {}
        self._next_offset = 0
        self._look_at: Millis | None = None
        self._looked = (0, 0)
        """(how far the log was applied, the oldest snapshot in use then). Once the log is committed up to the first, no
        older snapshot is needed."""
        self._prunable = 0

    # ---- requests --------------------------------------------------------------------------------------------------

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision:
        match call.body:
            case write.WriteShareGroupStateRequest() as body:
                return self._write(now, ticket, body)
            case read.ReadShareGroupStateRequest() as body:
                return self._read(ticket, body)
            case summary.ReadShareGroupStateSummaryRequest() as body:
                return self._summarize(ticket, body)
            case initialize.InitializeShareGroupStateRequest() as body:
                return self._initialize(now, ticket, body)
            case delete.DeleteShareGroupStateRequest() as body:
                key = _key_of(body)
                records = (encode_tombstone(key),) if key in self._kept else ()
                return Decision(records, (Answer(ticket, refuse(body, ErrorCode.NONE)),))
            case TopicGone(topic_id):
                return Decision(tuple(map(encode_tombstone, self._of_topic.get(topic_id, ()))))
            case other:
                raise AssertionError(f"no share coordinator answers {type(other).__name__}")

    def _write(self, now: Millis, ticket: Ticket, body: write.WriteShareGroupStateRequest) -> Decision:
        part = body.topics[0].partitions[0]
        key = _key_of(body)
        kept = self._kept.get(key)
        if kept is None:
            return _refusal(ticket, body, ErrorCode.INVALID_REQUEST, _UNINITIALIZED_WRITE)
        if part.state_epoch != UNCHANGED and part.state_epoch < kept.state_epoch:
            return _refusal(ticket, body, ErrorCode.FENCED_STATE_EPOCH)
        if part.leader_epoch != UNCHANGED and part.leader_epoch < kept.leader_epoch:
            return _refusal(ticket, body, ErrorCode.FENCED_LEADER_EPOCH)
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in part.state_batches
        ]
        update = Update(
            kept.snapshot_epoch, part.leader_epoch, part.start_offset, part.delivery_complete_count, batches
        )
        records = (encode_update(key, update),)
        if self._snapshot_is_due(kept):
            # A snapshot of the state before this write, then the write itself: batches are combined in one way only.
            before = kept.snapshot()
            records = (
                encode_snapshot(key, before, self._wall.at(now)),
                encode_update(key, update._replace(snapshot_epoch=before.snapshot_epoch)),
            )
        return Decision(records, (Answer(ticket, refuse(body, ErrorCode.NONE)),))

    def _snapshot_is_due(self, kept: Kept) -> bool:
        return kept.updates >= self._settings.snapshot_updates and kept.update_bytes >= kept.snapshot_bytes

    def _read(self, ticket: Ticket, body: read.ReadShareGroupStateRequest) -> Decision:
        key = _key_of(body)
        kept = self._kept.get(key)
        if kept is None:
            return _refusal(ticket, body, ErrorCode.INVALID_REQUEST, _UNINITIALIZED_READ)
        leader_epoch = body.topics[0].partitions[0].leader_epoch
        if leader_epoch != UNCHANGED and leader_epoch < kept.leader_epoch:
            return _refusal(ticket, body, ErrorCode.FENCED_LEADER_EPOCH)
        records: tuple[ShardRecord, ...] = ()
        if leader_epoch > kept.leader_epoch:
            update = Update(kept.snapshot_epoch, leader_epoch, UNCHANGED, UNCHANGED, ())
            records = (encode_update(key, update),)
        batches = [read.StateBatch(*batch) for batch in kept.batches()]
        result = read.PartitionResult(key.partition, 0, None, kept.state_epoch, kept.start_offset, batches)
        return Decision(records, (Answer(ticket, _read_answer(key, result)),))

    def _summarize(self, ticket: Ticket, body: summary.ReadShareGroupStateSummaryRequest) -> Decision:
        key = _key_of(body)
        kept = self._kept.get(key)
        if kept is None:
            result = summary.PartitionResult(key.partition, 0, None, 0, 0, UNINITIALIZED, UNINITIALIZED)
        else:
            complete = kept.complete_count if kept.start_offset != UNINITIALIZED else UNINITIALIZED
            result = summary.PartitionResult(
                key.partition, 0, None, kept.state_epoch, kept.leader_epoch, kept.start_offset, complete
            )
        answer = summary.ReadShareGroupStateSummaryResponse([summary.ReadStateSummaryResult(key.topic_id, [result])])
        return Decision(answers=(Answer(ticket, answer),))

    def _initialize(self, now: Millis, ticket: Ticket, body: initialize.InitializeShareGroupStateRequest) -> Decision:
        part = body.topics[0].partitions[0]
        key = _key_of(body)
        kept = self._kept.get(key)
        if kept is not None and part.state_epoch < kept.state_epoch:
            return _refusal(ticket, body, ErrorCode.FENCED_STATE_EPOCH)
        epoch = 0 if kept is None else kept.snapshot_epoch + 1
        # No leader has written since: an epoch here would give the offset a date, see `SharePartition.log_end_is`.
        wall_ms = self._wall.at(now)
        fresh = Snapshot(epoch, part.state_epoch, UNCHANGED, part.start_offset, 0, wall_ms, ())
        return Decision((encode_snapshot(key, fresh, wall_ms),), (Answer(ticket, refuse(body, ErrorCode.NONE)),))

    def abandon(self, ticket: Ticket) -> None:
        """Do nothing: this shard parks no tickets."""

    # ---- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        return self._look_at

    def expire(self, now: Millis) -> Decision:
        """Write new snapshots for keys whose snapshots are far behind the log's end."""
        behind = [key for key, kept in self._kept.items() if self._next_offset - kept.snapshot_offset > BEHIND_MAX]
        self._look_at = now + (self._settings.look_interval_ms if len(behind) <= SNAPSHOTS_PER_STEP else 0)
        some = behind[:SNAPSHOTS_PER_STEP]
        wall_ms = self._wall.at(now)
        return Decision(tuple(encode_snapshot(key, self._kept[key].snapshot(), wall_ms) for key in some))

    def prunable_offset(self, committed: int) -> int:
        """No record below this offset is needed to restore the state, even if all records from `committed` on were
        lost.

        Call it periodically: a snapshot counts once everything that was applied before the last call is committed.
        """
        oldest = min((kept.snapshot_offset for kept in self._kept.values()), default=self._next_offset)
        for end, offset in (self._looked, (self._next_offset, oldest)):
            if end <= committed:
                self._prunable = offset
        if self._looked[0] <= committed:
            self._looked = self._next_offset, oldest
        return self._prunable

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, now: Millis, batch: AppliedBatch) -> None:
        for each in batch.records:
            self._next_offset = each.offset + 1
            try:
                key, stored = decode(each.key or b"", each.value)
            except MalformedFrameError as error:
                self._notes(f"{self.TOPIC}: the record at offset {each.offset} does not parse and is skipped: {error}")
                continue
            size = len(each.value or b"")
            match stored:
                case None:
                    self._forget(key)
                case Snapshot():
                    self._kept[key] = Kept(stored, each.offset, size)
                    self._of_topic.setdefault(key.topic_id, {})[key] = None
                case Update():
                    kept = self._kept.get(key)
                    if kept is not None:  # otherwise its snapshot was pruned, and a later one follows
                        kept.update(stored, size)
        if self._look_at is None:
            self._look_at = now + self._settings.look_interval_ms

    def _forget(self, key: Key) -> None:
        if self._kept.pop(key, None) is not None:
            of_topic = self._of_topic[key.topic_id]
            del of_topic[key]
            if not of_topic:
                del self._of_topic[key.topic_id]

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Do nothing: no transaction writes to this topic."""

    def loaded(self, now: Millis) -> Decision:
        return NOTHING

    # ---- for tests and inspection ----------------------------------------------------------------------------------

    def known(self) -> list[Key]:
        return list(self._kept)

    def image(self) -> object:
        """The durable state as plain values; two shards that applied the same log have equal images."""
        return {
            key: (kept.state_epoch, kept.leader_epoch, kept.start_offset, kept.complete_count, kept.batches())
            for key, kept in self._kept.items()
        }

    def check(self) -> None:
        for key, kept in self._kept.items():
            kept.check()
            assert kept.snapshot_offset < self._next_offset, key
        assert {key for keys in self._of_topic.values() for key in keys} == self._kept.keys()
        assert all(key.topic_id == topic_id for topic_id, keys in self._of_topic.items() for key in keys)
        assert all(self._of_topic.values()), "an empty map was left behind"


def refuse(body: Any, error: ErrorCode, message: str | None = None) -> object:
    """The answer of one of the five APIs to a request about one key, with this error (or NONE)."""
    key = _key_of(body)
    if message is None and error:
        message = error.message
    match body:
        case write.WriteShareGroupStateRequest():
            result = write.PartitionResult(key.partition, error, message)
            return write.WriteShareGroupStateResponse([write.WriteStateResult(key.topic_id, [result])])
        case read.ReadShareGroupStateRequest():
            return _read_answer(key, read.PartitionResult(key.partition, error, message))
        case summary.ReadShareGroupStateSummaryRequest():
            result = summary.PartitionResult(key.partition, error, message)
            return summary.ReadShareGroupStateSummaryResponse([summary.ReadStateSummaryResult(key.topic_id, [result])])
        case initialize.InitializeShareGroupStateRequest():
            result = initialize.PartitionResult(key.partition, error, message)
            return initialize.InitializeShareGroupStateResponse(
                [initialize.InitializeStateResult(key.topic_id, [result])]
            )
        case delete.DeleteShareGroupStateRequest():
            result = delete.PartitionResult(key.partition, error, message)
            return delete.DeleteShareGroupStateResponse([delete.DeleteStateResult(key.topic_id, [result])])
        case _:
            raise AssertionError(type(body).__name__)


def _refusal(ticket: Ticket, body: Any, error: ErrorCode, message: str | None = None) -> Decision:
    return Decision(answers=(Answer(ticket, refuse(body, error, message)),))


def _read_answer(key: Key, result: read.PartitionResult) -> read.ReadShareGroupStateResponse:
    return read.ReadShareGroupStateResponse([read.ReadStateResult(key.topic_id, [result])])


def _key_of(body: Any) -> Key:
    """The key in a request about one key."""
    topic = body.topics[0]
    return Key(body.group_id, bytes(topic.topic_id), topic.partitions[0].partition)
