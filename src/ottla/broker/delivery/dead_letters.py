"""Copies records that a share group gave up into its dead-letter topic before they are archived.

It checks which topic may take dead letters, and writes them with KIP-1191's headers. A record stays ARCHIVING until its
dead letter is committed. Kafka archives it after five failed attempts; here the attempts continue, with a growing
pause, until one succeeds. A circuit breaker pauses the group if it produces more dead letters within a minute than its
configuration allows.

A dead letter carries the record's key, value, headers and timestamp (unless `errors.deadletterqueue.copy.record.enable`
is false) and `__dlq.errors.topic`, `.partition`, `.offset`, `.group`, `.delivery.count`, `.message`. Headers of our own
say when the first and the last delivery failed, which member had the record last, and the last reason that a member
gave (ExplainShareRecords), as far as the leader knows: no state has these. It goes to partition (source partition
modulo partitions). An unreadable batch produces one dead letter, without key and value and
with `__dlq.errors.last.offset`, unless another replica has the batch and leads instead. After a crash a dead letter may
be written twice, but none is lost.

Sources: KIP-1191, KIP-1316 (the breaker's idea); Kafka's ShareGroupDLQStateManager.java.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ottla.broker.cluster.members import NOBODY
from ottla.broker.cluster.metadata import Metadata, NobodyAwaits, Planned
from ottla.broker.cluster.peers import Peers
from ottla.broker.config.key import ConfigRefusedError
from ottla.broker.config.share_groups import PAUSED
from ottla.broker.config.values import topic_value
from ottla.broker.delivery.partitions import HostedShare
from ottla.broker.delivery.sent_letters import MENDABLE, Destination, SentLetters
from ottla.broker.environment import Environment
from ottla.broker.forwarding import Forwarding
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import NODE_REQUEST
from ottla.broker.schedule import KeyedTimers, Timed
from ottla.broker.topics.new_topic import NewTopic
from ottla.log.answers import (
    AppendRefusedError,
    Damage,
    DamagedLogError,
    Isolation,
    OffsetOutOfRangeError,
    StorageError,
)
from ottla.log.files import FileSlice, ReadError
from ottla.machine import Millis, Ticket, WallClock, WallMillis
from ottla.metadata.store import StoreError
from ottla.metadata.topic_names import fault_of
from ottla.protocol.dead_letters import (
    FIRST_FAILURE,
    LAST_CLIENT,
    LAST_FAILURE,
    LAST_MEMBER,
    OWN,
    PREFIX,
    REASON_DELIVERY,
    REJECTED,
    TOO_OFTEN,
    WORKER_REASON,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import HEADER_BYTES, BatchHeader, has_valid_crc, iter_batches, peek
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import PARTS_MAX, Headers, Record, build_batch, can_hold, decode_records
from ottla.share.failures import NO_FAILURE, Failure
from ottla.share.records import Key
from ottla.share.standing import Letter

LETTERS_PER_STEP: Final = 200
READ_BYTES: Final = 1 << 20
BATCH_BYTES: Final = 256 << 10
"""A batch of letters ends once its records are this large."""
RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 30_000
MINUTE_MS: Final = 60_000

SENT_MAX: Final = 4
"""At most this many parts of one group's dead letters are in flight to other nodes at once."""


class TopicUnusableError(Exception):
    """The dead-letter topic can't be written to now; one sentence why."""


class TopicMissingError(Exception):
    """The dead-letter topic is being created."""


@dataclass(slots=True)
class DeadLetterRange:
    """Records [first, end) of one share partition that need dead letters. `last_failed`: when their last delivery
    failed, None if it is not known. `member`, `client_id`: which member had them then, empty if it is not known."""

    hosted: HostedShare
    first: int
    end: int
    delivery_count: int
    rejected: bool
    failure: Failure = NO_FAILURE
    last_failed: Millis | None = None
    member: str = ""
    client_id: str = ""


class GroupQueue:
    """The dead letters of one group that are still to be written."""

    __slots__ = ("key", "minute", "pause_ms", "ranges", "this_minute", "why")

    def __init__(self, number: int, group_id: str) -> None:
        self.key = number, group_id
        """Of its timer."""
        self.ranges: deque[DeadLetterRange] = deque()
        self.pause_ms = 0
        self.minute = 0
        self.this_minute = 0
        self.why = ""
        """The reason for which they wait, as logged."""


class UncommittedLetters(ParkedWork):
    """DeadLetters that are appended and not committed yet."""

    __slots__ = ("_letters", "_parcel")

    def __init__(self, letters: DeadLetters, pending: DeadLetterRange) -> None:
        self._letters = letters
        self._parcel = pending

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        self._letters.arrived(now, ticket, self._parcel)

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """The dead-letter topic's partition is lost and the outcome of the writes is unknown: write these dead letters
        again."""
        self._letters.again(now, ticket, self._parcel)

    def abandon(self, ticket: Ticket) -> None:
        raise AssertionError("dead letters have no client that could leave")


class Making:
    """A dead-letter topic that is being created."""

    __slots__ = ("_letters", "_name")

    def __init__(self, letters: DeadLetters, name: str) -> None:
        self._letters = letters
        self._name = name

    def change_ended(self, now: Millis, result: None) -> None:
        self._letters.made(now, self._name, None)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self._letters.made(now, self._name, error)


class DeadLetters:
    """Every dead letter of this node. `settle`: called by code that has stepped a share partition's machine.
    `client_id_of`: the client id of a member, by group and member id; empty if it has no session."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        leadership: Leadership,
        forwarding: Forwarding,
        parking: Parking,
        peers: Peers,
        settle: Callable[[Millis, HostedShare], None],
        client_id_of: Callable[[str, str], str],
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._leadership = leadership
        self._forwarding = forwarding
        self._parking = parking
        self._peers = peers
        self._sent: Counter[str] = Counter()
        """The number of parts of a group's dead letters that are in flight to other nodes."""
        self._settle = settle
        self._client_id_of = client_id_of
        self._queues: dict[str, GroupQueue] = {}
        self._numbers = 0
        self._due = KeyedTimers[tuple[int, str]](environment.schedule, Timed.SHARE, self._write)
        """When the next dead letters of a group are written, by number and name."""
        self._written: dict[Key, int] = {}
        self._making: set[str] = set()
        """Dead-letter topics that are being created."""
        self._unread = -1
        """The end of the last range that could not be copied: it is logged once, not for each part of it."""
        self.failures = 0
        """Attempts that the dead-letter topic refused."""

    def written(self, key: Key) -> int:
        """DeadLetters of this share partition since the node started."""
        return self._written.get(key, 0)

    def _queue_of(self, group_id: str) -> GroupQueue:
        queue = self._queues.get(group_id)
        if queue is None:
            self._numbers += 1
            queue = self._queues[group_id] = GroupQueue(self._numbers, group_id)
        return queue

    def _write(self, now: Millis) -> None:
        """Write some dead letters of every group that is due."""
        due = deque(self._due.pop_all(now))
        try:
            while due:
                queue = self._queues.get(due[0][1])
                if queue is not None and queue.key == due[0]:
                    self._work(now, due[0][1], queue)
                due.popleft()
        finally:
            for key in due:
                self._due.set(key, now)  # those that an exception kept from their turn

    def take(self, now: Millis, hosted: HostedShare, letters: list[Letter]) -> None:
        """These records became ARCHIVING."""
        group_id = hosted.key.group_id
        queue = self._queue_of(group_id)
        for first, end, delivery_count, rejected, failure, member, was_loaded in letters:
            last_failed = None if was_loaded else now
            if delivery_count == 1:
                failure = failure._replace(first_failed=last_failed)
            client_id = self._client_id_of(group_id, member)
            queue.ranges.append(
                DeadLetterRange(hosted, first, end, delivery_count, rejected, failure, last_failed, member, client_id)
            )
            self._count(now, hosted, queue, end - first)
        if queue.key not in self._due:
            self._due.set(queue.key, now)  # on the next tick, to avoid re-entering `settle`

    def again(self, now: Millis, ticket: Ticket, pending: DeadLetterRange) -> None:
        """The append that the ticket waited for is lost."""
        self._parking.take(ticket)
        self._later(now, pending)

    def _later(self, now: Millis, pending: DeadLetterRange) -> GroupQueue:
        """Write these dead letters again after a pause."""
        queue = self._queue_of(pending.hosted.key.group_id)
        queue.ranges.append(pending)
        self._retry_later(now, queue)
        return queue

    def forget(self, hosted: HostedShare) -> None:
        """The share partition is dropped: its next load finds the records that are ARCHIVING."""
        queue = self._queues.get(hosted.key.group_id)
        if queue is not None:
            queue.ranges = deque(pending for pending in queue.ranges if pending.hosted is not hosted)
            if not queue.ranges:
                self._end(hosted.key.group_id)

    def _end(self, group_id: str) -> None:
        """Nothing of this group waits any more."""
        queue = self._queues.pop(group_id, None)
        if queue is not None:
            self._due.cancel(queue.key)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _work(self, now: Millis, group_id: str, queue: GroupQueue) -> None:
        """Write some dead letters of this group; the rest waits for the next tick."""
        left = LETTERS_PER_STEP
        while queue.ranges and left > 0:
            if self._sent[group_id] >= SENT_MAX:
                return  # `_arrived_elsewhere` resumes it
            pending = queue.ranges.popleft()
            if pending.hosted.machine is None:
                continue  # dropped meanwhile: its next load finds these records ARCHIVING
            part = replace(pending, end=self._part_end(pending, left))
            if part.end < pending.end:
                pending.first = part.end
                queue.ranges.appendleft(pending)
            left -= part.end - part.first
            try:
                self._send(now, part)
            except TopicMissingError:
                queue.ranges.appendleft(part)
                return  # `Making` resumes it
            except (TopicUnusableError, AppendRefusedError, StorageError, OSError) as failed:
                if isinstance(failed, ReadError):
                    part.hosted.partition.read_failed(failed)
                self.failures += part.end - part.first
                queue.ranges.appendleft(part)
                self._wait(now, group_id, queue, str(failed))
                return
            queue.pause_ms, queue.why = 0, ""
        if queue.ranges:
            self._due.set(queue.key, now)
        elif not queue.minute:
            self._end(group_id)

    def _part_end(self, pending: DeadLetterRange, left: int) -> int:
        """The end of the next part: after `left` records, or behind a batch whose record count can't be true."""
        end = pending.first + left
        if end >= pending.end:
            return pending.end
        with suppress(OSError, OffsetOutOfRangeError):
            found = pending.hosted.partition.log.read(pending.first, HEADER_BYTES, Isolation.HIGH_WATERMARK).slice
            if found is not None:
                header = peek(found.file.read(found.position, HEADER_BYTES))
                if not can_hold(header):
                    end = max(end, min(header.next_offset, pending.end))
        return end

    def _wait(self, now: Millis, group_id: str, queue: GroupQueue, why: str) -> None:
        """These dead letters can't be written now."""
        self._say(group_id, queue, why)
        self._retry_later(now, queue)

    def _say(self, group_id: str, queue: GroupQueue, why: str) -> None:
        if queue.why != why:
            queue.why = why
            self._environment.notes(f"dead letters of {group_id} wait: {why}")

    def _retry_later(self, now: Millis, queue: GroupQueue) -> None:
        queue.pause_ms = min(max(2 * queue.pause_ms, RETRY_MS_MIN), RETRY_MS_MAX)
        self._due.set(queue.key, now + queue.pause_ms)

    def _send(self, now: Millis, pending: DeadLetterRange) -> None:
        """Append dead letters for the whole range. Raises if no dead letter of it is certain to be written."""
        config = pending.hosted.config
        if not config.dead_letter_topic:
            self._let_go(now, pending)  # the group no longer has a dead-letter topic
            return
        target = self._target(now, config.dead_letter_topic, pending.hosted.partition.index)
        batches = self._batches(now, pending, copy=config.copy_record)
        if isinstance(target, Destination):
            self._send_elsewhere(now, target, list(batches), pending)
            return
        for batch in batches:
            self._append(now, target, batch)
        if target.holding:
            ticket = self._parking.park(NODE_REQUEST, None, UncommittedLetters(self, pending))
            target.wait_for_commit(target.log.log_end_offset, ticket)
        else:
            self._let_go(now, pending)

    def _batches(self, now: Millis, pending: DeadLetterRange, *, copy: bool) -> Iterator[list[Record]]:
        """The dead letters of the whole range, in batches of limited size."""
        batch: list[Record] = []
        size = 0
        for record in self._records(pending):
            letter = _letter(self._environment.wall, now, record, pending, copy)
            length = len(letter.key or b"") + len(letter.value or b"")
            if batch and size + length > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(letter)
            size += length
        if batch:
            yield batch

    def _send_elsewhere(
        self, now: Millis, destination: Destination, batches: list[list[Record]], pending: DeadLetterRange
    ) -> None:
        """Another node leads the partition: it answers once these dead letters are committed there."""
        if not batches:
            self._let_go(now, pending)
            return
        self._sent[pending.hosted.key.group_id] += 1
        done = partial(self._arrived_elsewhere, pending)
        completions = self._environment.completions
        SentLetters(self._peers, completions, destination, batches, self._mended, done).send(now)

    def _mended(self, now: Millis, letter: Record, error: ErrorCode) -> list[Record]:
        return _mended(self._environment.wall.at(now), letter, error)

    def _arrived_elsewhere(self, pending: DeadLetterRange, now: Millis, why_not: str | None) -> None:
        """Another node has committed these dead letters, or the outcome is unknown."""
        group_id = pending.hosted.key.group_id
        self._sent[group_id] -= 1
        if why_not is None:
            self._let_go(now, pending)
        elif pending.hosted.machine is not None:
            self.failures += pending.end - pending.first
            self._say(group_id, self._later(now, pending), why_not)
        queue = self._queues.get(group_id)
        if queue is not None and queue.ranges and queue.key not in self._due:
            self._due.set(queue.key, now)

    def _append(self, now: Millis, target: Partition, letters: list[Record]) -> None:
        try:
            target.append(now, memoryview(bytearray(build_batch(letters))))
        except AppendRefusedError as refused:
            mended = letters
            if len(letters) == 1:
                mended = _mended(self._environment.wall.at(now), letters[0], refused.error_code)
            if refused.error_code not in MENDABLE or not mended:
                raise
            for letter in mended:
                self._append(now, target, [letter])

    def arrived(self, now: Millis, ticket: Ticket, pending: DeadLetterRange) -> None:
        """The dead letters that the ticket waited for are committed."""
        self._parking.take(ticket)
        self._let_go(now, pending)

    def _let_go(self, now: Millis, pending: DeadLetterRange) -> None:
        """The dead letters are committed: archive the records."""
        hosted = pending.hosted
        machine = hosted.machine
        if machine is not None:
            self._written[hosted.key] = self._written.get(hosted.key, 0) + pending.end - pending.first
            machine.dead_lettered(pending.first, pending.end)
            self._settle(now, hosted)

    def _target(self, now: Millis, name: str, source_index: int) -> Partition | Destination:
        """The partition for the dead letters, here or on another node. Raises TopicMissingError, TopicUnusableError."""
        settings = self._environment.settings
        prefix: str = settings["errors.deadletterqueue.topic.name.prefix"]
        if not name.startswith(prefix):
            raise TopicUnusableError(f"the name of the dead-letter topic {name} does not begin with {prefix}")
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            if not settings["errors.deadletterqueue.auto.create.topics.enable"]:
                raise TopicUnusableError(f"there is no dead-letter topic {name}")
            fault = fault_of(name)
            if fault is not None:
                raise TopicUnusableError(fault)
            overrides = {"errors.deadletterqueue.group.enable": "true"}
            factor = settings["default.replication.factor"]
            wanted = NewTopic(name, settings["num.partitions"], overrides, replication_factor=factor)
            self._make(now, wanted)
            raise TopicMissingError(f"the dead-letter topic {name} is being made")
        if not topic_value(settings, topic.configs, "errors.deadletterqueue.group.enable"):
            raise TopicUnusableError(f"{name} does not have errors.deadletterqueue.group.enable=true")
        index = source_index % len(topic.partitions)
        partition = self._leadership.led(name, index)
        leader = self._leadership.leader_of(name, index)
        if leader is not None and leader[0] not in (NOBODY, self._environment.node_id):
            return Destination(leader[0], name, index)
        if isinstance(partition, ErrorCode):
            raise TopicUnusableError(f"{name}-{index} accepts no dead letters now: {partition.name}")
        return partition

    def _make(self, now: Millis, wanted: NewTopic) -> None:
        """Create a dead-letter topic, unless that is in progress."""
        if wanted.name not in self._making:
            self._making.add(wanted.name)
            self._forwarding.make(now, wanted, Making(self, wanted.name))

    def made(self, now: Millis, name: str, error: Exception | None) -> None:
        """The dead-letter topic of this name exists now, or can't be created; resume the groups that wait for it."""
        self._making.discard(name)
        for group_id, queue in self._queues.items():
            if queue.ranges and queue.key not in self._due:
                if error is None:
                    self._due.set(queue.key, now)
                else:
                    self.failures += 1
                    self._wait(now, group_id, queue, str(error))
        if error is not None and not isinstance(error, StoreError):
            self._environment.fault(f"making the dead-letter topic {name} failed", error)

    def _records(self, pending: DeadLetterRange) -> list[Record]:
        """The records of the pending that the log still has, in order. Raises TopicUnusableError, also if another
        replica has the damaged ones and can lead; OSError."""
        log = pending.hosted.partition.log
        if log.high_watermark < min(pending.end, log.log_end_offset):  # of a new leader, which may not know it yet
            raise TopicUnusableError(f"{pending.hosted.partition.name} has yet to learn how far it is committed")
        found: list[Record] = []
        offset = max(pending.first, log.log_start_offset)
        while offset < pending.end:
            try:
                result = log.read(offset, READ_BYTES, Isolation.HIGH_WATERMARK)
                if result.slice is None:
                    break
                read_from, raw = offset, result.slice.read()
                for header, position in iter_batches(raw):
                    if header.base_offset >= pending.end:
                        return found
                    if not has_valid_crc(raw, position, header):
                        self._met_damage(pending, _damage(result.slice, position, header.base_offset))
                    if not header.is_control:
                        found += self._readable(pending, header, raw, position)
                    offset = max(offset, header.next_offset)
                if offset == read_from:
                    self._met_damage(pending, _damage(result.slice, 0, offset))
                    raise CorruptRecordsError(f"no batch leads on from offset {offset}")
            except OffsetOutOfRangeError:
                break
            except (CorruptRecordsError, DamagedLogError) as error:
                if isinstance(error, DamagedLogError) and error.damage is not None:
                    self._met_damage(pending, error.damage)
                return [*found, self._unreadable(pending, offset, pending.end, error)]
        return found

    def _met_damage(self, pending: DeadLetterRange, damage: Damage) -> None:
        """Report damage. Raises TopicUnusableError if another replica has the records and can lead."""
        partition = pending.hosted.partition
        partition.found_damage(damage)
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if placed is not None and {*placed.isr, *placed.elr} > {self._environment.node_id}:
            raise TopicUnusableError(f"{partition.name} is damaged, until another replica leads")

    def _readable(self, pending: DeadLetterRange, header: BatchHeader, raw: bytes, position: int) -> list[Record]:
        """The pending records of this batch, or a dead letter in their place."""
        try:
            records = decode_records(raw, position, parts_max=PARTS_MAX)
        except CorruptRecordsError as error:
            first, end = max(header.base_offset, pending.first), min(header.next_offset, pending.end)
            return [self._unreadable(pending, first, end, error)] if first < end else []
        return [record for record in records if pending.first <= record.offset < pending.end]

    def _unreadable(self, pending: DeadLetterRange, first: int, end: int, error: Exception) -> Record:
        """One dead letter for a range of records that can't be read: it is unknown how many there were."""
        if first != self._unread:
            self._environment.notes(f"{pending.hosted.partition.name}: offset {first} can't be copied: {error}")
        self._unread = end
        return Record(first, headers=[(PREFIX + "last.offset", str(end - 1).encode())])

    # ---- the circuit breaker ---------------------------------------------------------------------------------------

    def _count(self, now: Millis, hosted: HostedShare, queue: GroupQueue, letters: int) -> None:
        """Pause the group if it gives up more records within a minute than it may."""
        limit = hosted.config.dead_letters_per_minute_max
        if not limit:
            queue.minute = 0
            return
        if queue.minute != now // MINUTE_MS:
            queue.minute, queue.this_minute = now // MINUTE_MS, 0
        queue.this_minute += letters
        if queue.this_minute <= limit or hosted.config.paused:
            return
        queue.this_minute = 0
        why = f"more than {limit} dead letters within a minute"
        self._environment.notes(f"share group {hosted.key.group_id} is paused: {why}")
        pausing = partial(self._pausing, hosted.key.group_id, f"the breaker: {why}")
        self._metadata.change(now, pausing, NobodyAwaits("pausing a share group", self._environment.fault))

    def _pausing(self, group_id: str, by: str, now: Millis) -> Planned:
        """The plan to pause a group."""
        settings = self._environment.settings
        configs = settings.of_group(group_id)
        if configs.get(PAUSED) == "true":
            return
        try:
            yield from settings.altering_group(now, group_id, {**configs, PAUSED: "true"}, by)
        except (ConfigRefusedError, StoreError) as failed:
            self._environment.notes(f"share group {group_id} could not be paused: {failed}")


def _damage(batches: FileSlice, position: int, offset: int) -> Damage:
    """The damage of the batch at this position of a slice."""
    return Damage(batches.file.path, batches.position + position, offset, -1, "the batch does not match its checksum")


def _letter(wall: WallClock, now: Millis, record: Record, pending: DeadLetterRange, copy: bool) -> Record:
    """KIP-1191's dead letter for this record."""
    partition = pending.hosted.partition
    said: list[tuple[str | bytes, bytes | None]] = [
        (PREFIX + "topic", partition.topic_name.encode()),
        (PREFIX + "partition", str(partition.index).encode()),
        (PREFIX + "offset", str(record.offset).encode()),
        (PREFIX + "group", pending.hosted.key.group_id.encode()),
        (PREFIX + "delivery.count", str(pending.delivery_count).encode()),
        (PREFIX + "message", (REJECTED if pending.rejected else TOO_OFTEN).encode()),
    ]
    for name, time in ((FIRST_FAILURE, pending.failure.first_failed), (LAST_FAILURE, pending.last_failed)):
        if time is not None:
            said.append((name, str(wall.at(time)).encode()))
    for name, text in ((LAST_MEMBER, pending.member), (LAST_CLIENT, pending.client_id)):
        if text:
            said.append((name, text.encode("utf-8", "replace")))
    if pending.failure.reason is not None:
        said.append((WORKER_REASON, pending.failure.reason.text.encode("utf-8", "replace")))
        said.append((REASON_DELIVERY, str(pending.failure.reason.delivery_count).encode()))
    if not copy:
        return Record(-1, wall.at(now), None, None, said)
    timestamp = record.timestamp_ms if record.timestamp_ms >= 0 else wall.at(now)
    return Record(-1, timestamp, record.key, record.value, [*record.headers, *said])


def _mended(wall_ms: WallMillis, letter: Record, error: ErrorCode) -> list[Record]:
    """The dead letter in a form that may suit a topic that refused it; empty if there is no such form."""
    if error is ErrorCode.INVALID_TIMESTAMP:  # the wall clock was set since the record was written
        return [] if letter.timestamp_ms == wall_ms else [Record(-1, wall_ms, letter.key, letter.value, letter.headers)]
    # The topic accepts only smaller records than the source topic: at least identify the record.
    if letter.value is not None:
        return [Record(-1, wall_ms, letter.key, None, _provenance(letter.headers))]
    extras = WORKER_REASON, REASON_DELIVERY, LAST_MEMBER, LAST_CLIENT
    shorter = [each for each in letter.headers if each[0] not in extras]
    return [Record(-1, wall_ms, letter.key, None, shorter)] if len(shorter) < len(letter.headers) else []


def _provenance(headers: Headers) -> Headers:
    """Only the headers that a dead letter itself adds."""
    return [(name, value) for name, value in headers if isinstance(name, str) and name.startswith(OWN)]
