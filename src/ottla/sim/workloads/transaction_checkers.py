"""Checks the internal effects of transactions: at every check, at rest, and in all logs at the end.

- The last stable offset of a partition does not fall within an incarnation, and the state of its producers is sound.
- A transaction that is open in a partition is open, or being ended, at its coordinator, which knows of the partition.
- EndTxn's answer is the coordinator's state, until the next request, also after a restart.
- The index of aborted transactions of each log agrees with its markers; no transaction has markers of both kinds.
- A reader of committed records sees all of a committed transaction and nothing of any other, in order.
- Every committed input record has its effect.
- Compaction removes everything of this that it may, and no more (`compaction_checkers`).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.log.answers import Isolation
from ottla.log.index.transactions import AbortedTransaction
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.sim.clients.batches import Note, ReadBatch, decode_batches
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.readers import AbortedProducers
from ottla.sim.clients.transaction_history import OrderOfShown, Source, label_of
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.checkers import Replicas, Watch, audited, node_of, partitions_of
from ottla.sim.workloads.compaction_checkers import audit_compaction
from ottla.sim.workloads.transactions import LEDGER, RESULTS, TransactionWorkload
from ottla.txn.shard import TransactionShard
from ottla.txn.transaction import Transaction as KnownTransaction


def known_transactions(node: Node) -> dict[str, KnownTransaction]:
    """Return the state of the loaded coordinators, by transactional id."""
    known: dict[str, KnownTransaction] = {}
    for shard in node.coordinators.transactions.shards():
        assert isinstance(shard, TransactionShard)
        known.update(shard.image())
    return known


def missing_of_transactions(known: Mapping[str, KnownTransaction], led: Iterable[Partition]) -> str | None:
    """Describe in a sentence which transaction is still open, by the coordinators' state and the leaders' partitions;
    None if there is none."""
    for transactional_id, each in known.items():
        if not each.is_idle:
            return f"{transactional_id} is {each.state.name}"
    for partition in led:
        log = partition.log
        if not log.last_stable_offset == log.high_watermark == log.log_end_offset:
            return (
                f"{partition.name} has last stable offset {log.last_stable_offset}, high watermark "
                f"{log.high_watermark}, log end {log.log_end_offset}"
            )
    return None


class TransactionWatch(Watch):
    """Checks transactions too."""

    def __init__(self, host: Host, workload: TransactionWorkload) -> None:
        super().__init__(host)
        self._workload = workload
        self._stable: dict[Partition, int] = {}

    def look(self, life: Life) -> None:
        if life is not self._life:
            self._stable.clear()
        super().look(life)
        node = node_of(life)
        node.coordinators.transactions.check()
        known = {each.producer_id: each for each in known_transactions(node).values()}
        all_loaded = _all_loaded(node)
        for partition in partitions_of(node):
            log = partition.log
            log.producers.check()
            if log.last_stable_offset < self._stable.get(partition, 0):
                raise InvariantError(
                    f"{partition.name}: the last stable offset goes back from {self._stable[partition]} to "
                    f"{log.last_stable_offset}"
                )
            self._stable[partition] = log.last_stable_offset
            if all_loaded:
                for offset, producer_id in log.producers.open.items():
                    look_at_open(partition, offset, known.get(producer_id))
        if all_loaded:
            look_at_ends(self._workload, known_transactions(node))


def _all_loaded(node: Node) -> bool:
    """Whether every transaction coordinator whose log is not empty is loaded."""
    loaded = {partition for partition, _ in node.coordinators.transactions.loaded()}
    topic = node.image.topics.get(TRANSACTION_STATE_TOPIC)
    for index in range(0 if topic is None else len(topic.partitions)):
        partition = node.leadership.led(TRANSACTION_STATE_TOPIC, index)
        if isinstance(partition, ErrorCode) or (partition.log.log_end_offset and partition not in loaded):
            return False
    return True


def look_at_open(partition: Partition, offset: int, known: KnownTransaction | None) -> None:
    """Compare the open transactions of a partition, from this offset on, with the state of their coordinators."""
    where = (partition.topic_name, partition.index)
    if known is None or known.is_idle or where not in known.partitions:
        raise InvariantError(
            f"{partition.name}: the transaction that is open from {offset} on nobody will end: {known}"
        )


def look_at_ends(workload: TransactionWorkload, known: Mapping[str, KnownTransaction]) -> None:
    """Compare the coordinators' state, by transactional id, with EndTxn's answers."""
    for name, ended in workload.told.ends.standing.items():
        found = known.get(name)
        if found is None and workload.ids_expire:
            continue
        is_so = (
            found is not None
            and (found.state.is_prepared or found.state.is_complete)
            and (found.state.commits, found.successor) == (ended.committed, ended.successor)
        )
        if not is_so:
            how = "committed" if ended.committed else "aborted"
            raise InvariantError(
                f"{ended.who} was told that it {how}, and {ended.successor} goes on; its coordinator has {found}"
            )


# ---- the audit -----------------------------------------------------------------------------------------------------


def audit_transactions(workload: TransactionWorkload, replicas: Replicas) -> None:
    """Read every partition at both isolation levels and compare the records with the answers that clients received."""
    shown: dict[TopicPartition, dict[int, Note]] = {}
    for rule, partition in audited(workload, replicas):
        notes = shown[rule.name, partition.index] = _read_committed(workload, partition)
        _audit_markers(workload, partition, notes, compacted=rule.compacted)
    _audit_whole(workload, shown)
    _audit_accounts(workload, shown)
    _audit_effects(workload, shown)


def compact_all(workload: TransactionWorkload, replicas: Replicas) -> None:
    """Compact every compacted log completely, and check the result: see `audit_compaction`."""
    for rule, partition in audited(workload, replicas):
        if rule.compacted:
            _compact(workload, partition)


def _compact(workload: TransactionWorkload, partition: Partition) -> None:
    audit_compaction(
        partition,
        workload.world.clock.now_us // MS,
        partial(_read_committed, workload),
        lambda partition: [batch for batch, _ in batches_of(partition, Isolation.HIGH_WATERMARK)],
    )


def compact_replicas(workload: TransactionWorkload, nodes: Iterable[Node]) -> None:
    """Compact each replica on every node of a cluster by itself, and check that all show the same in the end."""
    committed: dict[TopicPartition, tuple[int, dict[int, Note]]] = {}
    for node in nodes:
        mine = {
            (rule.name, index): partition
            for rule in workload.rules.values()
            for index in range(rule.partitions)
            if rule.compacted and (partition := node.replicas.get(rule.name, index)) is not None
        }
        for where, partition in mine.items():
            _compact(workload, partition)
            shown = _read_committed(workload, partition)
            other, there = committed.setdefault(where, (node.node_id, shown))
            if shown != there:
                raise InvariantError(
                    f"{partition.name}: node {node.node_id} shows {shown} once compacted, {other} {there}"
                )


def batches_of(partition: Partition, isolation: Isolation) -> Iterator[tuple[ReadBatch, bool]]:
    """Yield every batch at this isolation level, and whether its reader skips it as aborted."""
    log = partition.log
    position = log.log_start_offset
    while position < log.log_end_offset:
        result = log.read(position, 1 << 20, isolation, True)
        batches = decode_batches(result.slice.read()) if result.slice is not None else []
        if not batches:
            break
        aborted = AbortedProducers(list(result.aborted or ()))
        for batch in batches:
            hidden = aborted.hide(batch)
            if batch.base_offset >= position:
                yield batch, hidden
        position = batches[-1].last_offset + 1


def aborted_with_data(partition: Partition) -> list[AbortedTransaction]:
    """Return the entries of the index of aborted transactions that cause batches to be skipped. Compaction removes an
    entry once it finds none of its data; a recovery may add it again, from its marker."""
    data = [batch for batch, _ in batches_of(partition, Isolation.LOG_END) if batch.transactional and batch.notes]
    return [
        entry
        for segment in partition.log.segments
        for entry in segment.txn_index.aborted()
        if any(
            batch.producer_id == entry.producer_id and entry.first_offset <= batch.base_offset < entry.last_offset
            for batch in data
        )
    ]


def _read_committed(workload: TransactionWorkload, partition: Partition) -> dict[int, Note]:
    """Read by the index of aborted transactions, as the answer to a fetch does."""
    now_us, where = workload.world.clock.now_us, (partition.topic_name, partition.index)
    who = f"the audit of {partition.name}"
    order = OrderOfShown()
    shown: dict[int, Note] = {}
    for batch, hidden in batches_of(partition, Isolation.TXN_COMMITTED):
        if hidden:
            workload.told.pass_over(now_us, who, batch.notes)
            continue
        for note in batch.notes:
            label = workload.told.show(now_us, who, note)
            shown[note.offset] = note
            if not workload.rules[partition.topic_name].compacted:
                order.show(who, where, note, batch, label)
    return shown


def _audit_markers(
    workload: TransactionWorkload, partition: Partition, shown: dict[int, Note], *, compacted: bool
) -> None:
    """Check the batches by the markers alone, which follow the data of their transactions."""
    now_us = workload.world.clock.now_us
    open_notes: dict[int, list[Note]] = {}
    committed: set[int] = set()
    for batch, _ in batches_of(partition, Isolation.HIGH_WATERMARK):
        if batch.transactional and batch.commits is None:
            open_notes.setdefault(batch.producer_id, []).extend(batch.notes)
        elif batch.commits is not None:
            ended = open_notes.pop(batch.producer_id, [])
            names = {label_of(note).transaction for note in ended}
            if len(names) > 1:
                raise InvariantError(f"{partition.name}: the marker at {batch.base_offset} ends transactions {names}")
            for number in names:
                assert number is not None
                transaction = workload.told.transactions[number]
                who = f"the marker at {batch.base_offset} of {partition.name}"
                workload.told.conclude(now_us, who, transaction, committed=batch.commits)
            if batch.commits:
                committed.update(note.offset for note in ended)
        else:
            committed.update(note.offset for note in batch.notes)
    left = [producer_id for producer_id, notes in open_notes.items() if notes]
    if left and not compacted:
        raise InvariantError(f"{partition.name}: the transactions of producers {left} have no marker")
    if not compacted and committed != shown.keys():
        raise InvariantError(
            f"{partition.name}: shown and not committed, or the other way round: {committed ^ shown.keys()}"
        )


def _audit_whole(workload: TransactionWorkload, shown: dict[TopicPartition, dict[int, Note]]) -> None:
    """Check that all of each transaction is shown, or nothing."""
    seen: dict[int, set[tuple[TopicPartition, int]]] = {}
    for where, notes in shown.items():
        for note in notes.values():
            label = label_of(note)
            if label.transaction is not None:
                found = seen.setdefault(label.transaction, set())
                if (where, label.number) in found:
                    raise InvariantError(f"{where}: record {label} is there twice")
                found.add((where, label.number))
    for transaction in workload.told.transactions:
        found = seen.get(transaction.number, set())
        lasting = {place for place in transaction.sent if not workload.rules[place[0][0]].compacted}
        missing = lasting - found
        if transaction.committed and missing:
            raise InvariantError(f"{transaction} is committed ({transaction.told_by}), and lacks {sorted(missing)}")


def _audit_accounts(workload: TransactionWorkload, shown: dict[TopicPartition, dict[int, Note]]) -> None:
    """Check that the last committed value of each key of a compacted topic exists."""
    for where, contents in workload.history.acknowledged.items():
        if not workload.rules[where[0]].compacted:
            continue
        newest = {note.key: offset for offset, note in sorted(shown[where].items())}
        for offset, (key, value) in sorted(contents.items()):
            number = label_of(Note(offset, 0, key, value)).transaction
            assert number is not None
            if workload.told.transactions[number].committed and newest.get(key, -1) < offset:
                raise InvariantError(f"{where}: key {key!r} was committed at {offset}, the newest is {newest.get(key)}")


def _audit_effects(workload: TransactionWorkload, shown: dict[TopicPartition, dict[int, Note]]) -> None:
    """Check that each committed input record has one result."""
    results: dict[bytes | None, int] = {}
    for where, notes in shown.items():
        if where[0] == RESULTS:
            for note in notes.values():
                results[note.key] = results.get(note.key, 0) + 1
    for where, notes in shown.items():
        if where[0] != LEDGER:
            continue
        for offset in notes:
            source: Source = (*where, offset)
            count = results.get(f"{where[0]}-{where[1]}-{offset}".encode(), 0)
            if count != 1 or source not in workload.told.effects:
                raise InvariantError(f"{source} has its effect {count} times")
