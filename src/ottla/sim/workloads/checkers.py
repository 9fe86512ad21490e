"""Checks the node's internal invariants every few steps, and audits its logs at the end of a run.

`history` checks what clients see. These checks need to look into the node or read the whole of its log:

- Every log: LSTART <= LSO <= HW <= LEO, recovery point <= LEO, and HW does not go back within an incarnation.
- A partition's leader epoch is higher in every incarnation of the node than before, and batches have it in order.
- `check()` of the coordinators and of fetch sessions, which end with their connections. No parked request outlives its
  deadline, by the world's own time.
- After a restart of a resting node: logs, producers, epochs and groups are as before (replay equals live state).
- The audit reads every partition completely. Offsets are dense where no record may go, every acknowledged record
  exists, and an idempotent producer has no record twice. Records are in each producer's order, and the last value of
  each key is kept. Lookups by offset and by time find the same records as a scan.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.log.answers import Isolation
from ottla.machine import Shard, Ticket
from ottla.metadata.configs import GROUP_CONFIGS
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.sim.clients.batches import Note, decode_batches
from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.workload import Workload
from ottla.txn.shard import TransactionShard
from ottla.txn.transaction import Transaction

LOOK_EVERY = 25
"""Steps of the node between two checks of all of its logs and coordinators."""

TICKET_LATE_MAX_MS = 100
LOOKUPS = 12
"""Offsets and timestamps that the audit looks up in each partition."""


class Deadlines:
    """Checks that a node keeps the deadlines of its parked requests. The remaining time of a request when it is first
    seen passes as the world's time does, whatever clocks show."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._life = 0
        self._due_us: dict[Ticket, Micros] = {}

    def look(self, node: Node) -> None:
        if self._life != self._host.lives:
            self._life = self._host.lives
            self._due_us.clear()
        now_us, before, self._due_us = self._host.world.clock.now_us, self._due_us, {}
        for ticket, deadline in node.parking.deadlines():
            left_us = (deadline - self._host.clock.now_ms) * MS
            due_us = before.get(ticket, now_us + left_us)
            self._due_us[ticket] = max(due_us, self._due_us.get(ticket, due_us))  # until then it may be polled often
        for due_us in self._due_us.values():
            if due_us + TICKET_LATE_MAX_MS * MS < now_us:
                raise InvariantError(f"a parked request is {(now_us - due_us) // MS} ms past its deadline")


def look_at_fetch_sessions(life: Life) -> None:
    """Check that fetch sessions are sound, and that each belongs to an open connection."""
    sessions = node_of(life).fetch_sessions
    sessions.check()
    gone = sessions.connections() - life.sides.keys()
    if gone:
        raise InvariantError(f"fetch sessions of connections {sorted(gone)} are kept, which are gone")


class Watch:
    """Checks the node every few steps."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._steps = 0
        self._life: Life | None = None
        self._high_watermarks: dict[Partition, int] = {}
        self._deadlines = Deadlines(host)
        self._epochs: dict[tuple[bytes, int], tuple[int, int]] = {}

    def __call__(self, life: Life) -> None:
        self._steps += 1
        if self._steps % LOOK_EVERY == 0:
            self.look(life)

    def look(self, life: Life) -> None:
        node = node_of(life)
        if life is not self._life:
            self._life = life
            self._high_watermarks.clear()
        for partition in partitions_of(node):
            self._look_at_log(partition)
            self._look_at_epoch(node, partition)
        node.schedule.check()
        node.completions.check()
        node.coordinators.groups.check()
        look_at_fetch_sessions(life)
        self._deadlines.look(node)

    def _look_at_epoch(self, node: Node, partition: Partition) -> None:
        key = (node.image.topics[partition.topic_name].id, partition.index)
        life, epoch = self._epochs.get(key, (0, -1))
        now = (self._host.lives, partition.leader_epoch)
        if now != (life, epoch):
            if partition.leader_epoch <= epoch:
                raise InvariantError(
                    f"{partition.name}: life {now[0]} leads in epoch {now[1]}, life {life} did in {epoch}"
                )
            self._epochs[key] = now

    def _look_at_log(self, partition: Partition) -> None:
        log = partition.log
        start, stable, high, end = (
            log.log_start_offset,
            log.last_stable_offset,
            log.high_watermark,
            log.log_end_offset,
        )
        if not 0 <= start <= stable <= high <= end:
            raise InvariantError(f"{partition.name}: LSTART {start}, LSO {stable}, HW {high}, LEO {end}")
        if log.recovery_point > end:
            raise InvariantError(f"{partition.name}: recovery point {log.recovery_point} beyond the end {end}")
        log.check_parts()
        before = self._high_watermarks.get(partition, 0)
        if high < before:
            raise InvariantError(f"{partition.name}: the high watermark goes back from {before} to {high}")
        self._high_watermarks[partition] = high


def node_of(life: Life | None) -> Node:
    assert life is not None
    assert isinstance(life.node, Node)
    return life.node


def partitions_of(node: Node) -> list[Partition]:
    return [partition for _, topic in sorted(node.replicas.by_name.items()) for partition in topic.partitions.values()]


# ---- replay equals live state --------------------------------------------------------------------------------------


def image_of(node: Node) -> dict[str, Any]:
    """Return the state that must be the same after a restart, as plain values by name."""
    image: dict[str, Any] = {}
    for partition in partitions_of(node):
        log = partition.log
        image[partition.name] = {
            "log_end_offset": log.log_end_offset,
            "producers": sorted(
                (entry.producer_id, entry.epoch, entry.last_sequence, entry.last_data_offset)
                for entry in log.producers.entries.values()
            ),
        }
    for partition, shard in zip(node.coordinators.groups.active(), node.coordinators.groups.shards(), strict=True):
        image[f"groups of partition {partition}"] = durable_image(shard)
    return {name: part for name, part in image.items() if not isinstance(part, list) or any(part)}


def durable_image(shard: Shard) -> list[Any]:
    """Return the part of a shard's state that a replay must restore, as plain values."""
    image = cast(Any, shard).image()
    if isinstance(shard, TransactionShard):
        return [{name: durable(known) for name, known in image.items()}]
    return [_only_durable(part) for part in image] if isinstance(image, tuple) else [image]


def durable(known: Transaction) -> tuple[object, ...]:
    """Return the part of a transactional id's state that is written to the log."""
    return (known.producer_id, known.producer_epoch, known.state, known.partitions, known.previous_producer_id)


def _only_durable(part: Any) -> Any:
    """Return a part of a shard's image without transient state: empty tables, groups without a record."""
    if isinstance(part, dict):
        items = cast(dict[Any, Any], part).items()
        return {name: kept for name, value in items if (kept := _only_durable(value)) not in (None, {}, ())}
    if isinstance(part, tuple):
        kept_all = tuple(_only_durable(each) for each in cast(tuple[Any, ...], part))
        return kept_all if any(kept_all) else ()
    return part


def compare_images(before: dict[str, Any], after: dict[str, Any]) -> None:
    if before == after:
        return
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise InvariantError(f"{name} was {before.get(name)} and is {after.get(name)} after the restart")


# ---- the audit -----------------------------------------------------------------------------------------------------


Replicas: TypeAlias = Callable[[str, int], Partition | None]
"""Gives the replica of a partition that is to be read."""


def audited(workload: Workload, replicas: Replicas) -> Iterator[tuple[TopicRule, Partition]]:
    """Every partition of the workload."""
    for rule in workload.rules.values():
        for index in range(rule.partitions):
            partition = replicas(rule.name, index)
            if partition is None:
                raise InvariantError(f"{rule.name}-{index} is gone")
            yield rule, partition


def audit(workload: Workload, replicas: Replicas) -> None:
    """Read every partition of the workload from its start to its end."""
    for rule, partition in audited(workload, replicas):
        notes = _read_whole(workload, partition, dense=workload.history.is_dense(rule.name))
        _audit_acknowledged(workload, partition, notes)
        if rule.transactional:
            continue  # markers have offsets and timestamps too
        _audit_lookups(partition, notes, workload.world.stream(f"audit-{partition.name}"))
        if not workload.history.losses or not _has_holes(partition, notes):
            _audit_producers(workload, (rule.name, partition.index), notes)


def audit_races(workload: Workload, host: Host, node: Node) -> None:
    """Compare the metadata with the answers that the racers received."""
    store = host.store
    assert store is not None
    made = {key.removeprefix(TOPIC_PREFIX): count for key, count in store.made_by_rivals.items()}
    workload.races.check(node.image.topics, made)
    for racer in workload.racers:
        racer.check_number(node.image[GROUP_CONFIGS].get(racer.name, {}))


def _read_whole(workload: Workload, partition: Partition, *, dense: bool) -> dict[int, Note]:
    log = partition.log
    notes: dict[int, Note] = {}
    epoch = -1
    position = log.log_start_offset
    if dense and position != 0:
        raise InvariantError(f"{partition.name} starts at {position}, and nobody deleted anything")
    while position < log.log_end_offset:
        result = log.read(position, 1 << 20, Isolation.HIGH_WATERMARK, True)
        batches = decode_batches(result.slice.read()) if result.slice is not None else []
        if not batches:
            if dense:
                raise InvariantError(f"{partition.name} shows nothing at {position}, its end is {log.log_end_offset}")
            break
        for batch in batches:
            if dense and batch.base_offset != position:
                raise InvariantError(f"{partition.name}: after {position - 1} comes {batch.base_offset}")
            whole = batch.commits is not None or len(batch.notes) == batch.last_offset + 1 - position
            if dense and not whole:
                raise InvariantError(f"{partition.name}: the batch at {position} has a gap")
            if batch.leader_epoch < epoch:
                raise InvariantError(
                    f"{partition.name}: epoch {batch.leader_epoch} at {batch.base_offset} follows {epoch}"
                )
            epoch = batch.leader_epoch
            workload.history.see("audit", (partition.topic_name, partition.index), batch)
            notes.update((note.offset, note) for note in batch.notes)
            position = batch.last_offset + 1
    return notes


def _audit_lookups(partition: Partition, notes: dict[int, Note], rng: random.Random) -> None:
    """Check that the indexes, some rebuilt after a power cut, lead to every record."""
    log = partition.log
    readable = sorted(offset for offset in notes if offset >= log.log_start_offset)
    for offset in rng.sample(readable, min(LOOKUPS, len(readable))):
        file_slice = log.read(offset, 1, Isolation.HIGH_WATERMARK, True).slice
        found = decode_batches(file_slice.read()) if file_slice is not None else []
        if not found or not found[0].base_offset <= offset <= found[0].last_offset:
            raise InvariantError(
                f"{partition.name}: {found[0].base_offset if found else 'nothing'} is found at {offset}"
            )
        wanted_ms = notes[offset].timestamp_ms + rng.randrange(-1, 2)
        expected = next((at for at in readable if notes[at].timestamp_ms >= wanted_ms), None)
        answer = log.offset_for_timestamp(wanted_ms)
        if (None if answer is None else answer.offset) != expected:
            raise InvariantError(f"{partition.name}: {wanted_ms} is found at {answer}, it stands at {expected}")


def _has_holes(partition: Partition, notes: dict[int, Note]) -> bool:
    """Whether the log has holes. A power cut without fsync may remove a segment from the middle; then producers'
    numbers cannot be checked."""
    return len(notes) != partition.log.log_end_offset - partition.log.log_start_offset


def _audit_acknowledged(workload: Workload, partition: Partition, notes: dict[int, Note]) -> None:
    where = (partition.topic_name, partition.index)
    rule = workload.rules[where[0]]
    acknowledged = workload.history.acknowledged.get(where, {})
    if rule.compacted and rule.transactional:
        return
    if rule.compacted:
        audit_keys(where, workload.history, notes)
        return
    start = 0 if rule.dense else partition.log.log_start_offset
    for offset in acknowledged:
        if offset >= start and offset not in notes:
            raise InvariantError(f"{partition.name}: the acknowledged record at {offset} is lost")
    for offset in workload.history.seen.get(where, ()):
        if workload.history.is_dense(rule.name) and offset not in notes:
            raise InvariantError(f"{partition.name}: the record at {offset} is lost, and a consumer was given it")


def audit_keys(where: TopicPartition, history: History, notes: dict[int, Note]) -> None:
    """Check that compaction has kept the last value of each key, unless a tombstone that may have survived a power cut
    comes after it."""
    acknowledged, tombstones = history.acknowledged.get(where, {}), history.uncertain_tombstones.get(where, {})
    last: dict[bytes | None, int] = {}
    for offset in sorted(acknowledged):
        last[acknowledged[offset][0]] = offset
    newest: dict[bytes | None, int] = {}
    for offset in sorted(notes):
        newest[notes[offset].key] = offset
    for key, offset in last.items():
        found = newest.get(key, -1)
        if max(found, tombstones.get(key, -1)) < offset and acknowledged[offset][1] is not None:
            raise InvariantError(f"{where}: key {key!r} was last acknowledged at {offset}, the log has it at {found}")


def _audit_producers(workload: Workload, where: TopicPartition, notes: dict[int, Note]) -> None:
    """Check that no record of an idempotent producer appears twice, and that first appearances are in the order of
    sending."""
    producers = [producer for producer in workload.producers if where[1] not in producer.forgotten]
    idempotent = {producer.name for producer in producers if producer.idempotent}
    ordered = {producer.name for producer in producers if producer.acks != 0}
    newest: dict[str, int] = {}
    seen: set[bytes] = set()
    for offset in sorted(notes):
        note = notes[offset]
        if note.value is None:
            continue  # a tombstone has no number
        label = note.value.rstrip(b".")
        name, index, number_text, _ = label.decode().split(":")
        if int(index) != where[1]:
            raise InvariantError(f"{where}: the record at {offset} was sent to partition {index}")
        if label in seen:
            if name in idempotent:
                raise InvariantError(
                    f"{where}: {label.decode()} of an idempotent producer is there twice, again at {offset}"
                )
            continue
        seen.add(label)
        number = int(number_text)
        if name in ordered and number < newest.get(name, -1):
            raise InvariantError(f"{where}: {label.decode()} at {offset} comes after number {newest[name]}")
        newest[name] = number
