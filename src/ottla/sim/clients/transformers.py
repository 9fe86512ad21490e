"""Simulates readers of committed records: scanners of whole topics, and groups that write records derived from them.

A `Transformer` is a group member with a transactional producer of its own. In one transaction, it writes one record for
each record that it has read, and commits its position. If the transaction is aborted, it goes back to the group's
committed offsets.

A rebalance does not wait for an open transaction: the next reader of the group's offsets has to wait for it (KIP-447).
A member ends its own transaction before it continues from the committed offsets, like a consumer that polls between
transactions. If it joins again unchanged, its generation is the same, which fences no request.
"""

from collections.abc import Callable

from ottla.protocol.apis import ApiKey
from ottla.sim.clients.batches import Note, ReadBatch
from ottla.sim.clients.consumers import GROUPS_LIST_SINCE, GroupMember
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.readers import Scanner
from ottla.sim.clients.transaction_history import OrderOfShown, sources_of
from ottla.sim.clients.transactional import TransactionalProducer
from ottla.sim.clients.transactional_states import GroupOffsets, ProducerState
from ottla.sim.clients.workload_view import TransactionWorkloadView
from ottla.sim.kernel.clock import MS, Micros

AT_ONCE_MAX = 12
"""Maximum number of records that one transaction processes."""
AT_ONCE_HURRIED = 400
AT_ONCE_OVER_NODES = 50
"""If each batch must be replicated to followers first, more would take longer than a transaction may."""


class CommittedScanner(Scanner):
    """Reads the committed records of a topic again and again."""

    committed_only = True

    def __init__(self, workload: TransactionWorkloadView, name: str, topic: str) -> None:
        super().__init__(workload, name, topic)
        self._told = workload.told
        self._order = OrderOfShown()

    def reset_to(self, where: TopicPartition, offset: int) -> None:
        super().reset_to(where, offset)
        self._order.begin_again(where)

    def read(self, where: TopicPartition, note: Note, batch: ReadBatch) -> None:
        label = self._told.show(self.world.clock.now_us, f"{self.name} of {where}", note)
        if not self.workload.rules[where[0]].compacted:
            self._order.show(self.name, where, note, batch, label)

    def passed_over(self, where: TopicPartition, batch: ReadBatch) -> None:
        self._told.pass_over(self.world.clock.now_us, f"{self.name} of {where}", batch.notes)


class Emitter(TransactionalProducer):
    """The producer of a transformer, which decides what it writes. `renewals`: called when it has a new epoch."""

    renewals: Callable[[], None] | None = None

    def _work(self) -> None:
        """Writes nothing by itself."""

    def renewed(self) -> None:
        if self.renewals is not None:
            self.renewals()


class Transformer(GroupMember):
    """A member of a group that reads, transforms and writes. See the module."""

    committed_only = True

    def __init__(
        self,
        workload: TransactionWorkloadView,
        name: str,
        group: str,
        topics: tuple[str, ...],
        *,
        instance: str | None = None,
        emitter: Emitter,
    ) -> None:
        super().__init__(workload, name, group, topics, instance=instance)
        self.versions[ApiKey.OFFSET_FETCH] = max(self.versions[ApiKey.OFFSET_FETCH], GROUPS_LIST_SINCE)
        self._told = workload.told
        self._read: list[tuple[TopicPartition, Note]] = []
        self._mine: list[TopicPartition] = []
        self._was_open = False
        """A transaction of its own was open when it was assigned its partitions."""
        self.take(emitter)
        self._loop()

    def take(self, emitter: Emitter) -> None:
        """Use this producer from now on, once it has an epoch."""
        self.emitter = emitter
        emitter.renewals = self._begin_again

    def committed(self, where: TopicPartition) -> int:
        """Return the position, if all read records are committed and no transaction is open; otherwise -1."""
        if self._read or not self.emitter.idle:
            return -1
        return self.positions.get(where, -1)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def assigned(self, mine: list[TopicPartition]) -> None:
        self._mine = mine
        self._was_open = not self.emitter.idle
        self._read.clear()
        super().assigned(mine)

    def read(self, where: TopicPartition, note: Note, batch: ReadBatch) -> None:
        self._told.show(self.world.clock.now_us, f"{self.name} of {where}", note)
        self._read.append((where, note))

    def passed_over(self, where: TopicPartition, batch: ReadBatch) -> None:
        self._told.pass_over(self.world.clock.now_us, f"{self.name} of {where}", batch.notes)

    def found_committed(self, begun_us: Micros, where: TopicPartition, offset: int) -> None:
        super().found_committed(begun_us, where, offset)
        self._told.show_offset(self.world.clock.now_us, self.name, self.group, where, offset)

    def _forget_membership(self) -> None:
        super()._forget_membership()
        self._read.clear()

    def _commit(self, *, again: bool = False) -> None:
        """Commits nothing: only its transactions commit."""

    # ---- transforming ----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        self.after(self.rng.randrange(20 * MS, 300 * MS), self._loop)
        if self.state != "stable" or not self._read or self.emitter.state is not ProducerState.READY:
            return
        hurried = AT_ONCE_OVER_NODES if self.follows else AT_ONCE_HURRIED
        at_once = hurried if self.hurries else AT_ONCE_MAX
        taken, self._read = self._read[:at_once], self._read[at_once:]
        positions = {where: note.offset + 1 for where, note in taken}
        offsets = GroupOffsets(self.group, self.generation, self.member_id, self.instance, positions)
        emitter = self.emitter
        emitter.begin(sources_of(taken), offsets, lambda committed: self._emitted(emitter, committed))
        for where, note in taken:
            lane = emitter.lanes[where[1] % len(emitter.lanes)]
            emitter.put(lane, [emitter.note(lane, f"{where[0]}-{where[1]}-{note.offset}".encode())])
        emitter.go()

    def _emitted(self, emitter: Emitter, committed: bool) -> None:
        """Handle the end of a transaction: after an abort, its input is read again."""
        if emitter is self.emitter and (self._was_open or not committed):
            self._was_open = False
            self._begin_again()

    def _begin_again(self) -> None:
        """Continue from the group's committed offsets."""
        if self.state == "stable" and self._mine:
            self._round += 1  # answers to earlier offset requests are ignored
            self._read.clear()
            self.positions.clear()
            self._fetch_offsets(self._mine)
