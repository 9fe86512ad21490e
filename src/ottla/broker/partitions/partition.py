"""One partition on this node: its log, its leadership, and who waits for its high watermark.

Knows: which offsets are committed, and therefore which parked requests may be answered. Does not know: sockets, the
bytes of a request, other partitions.

Invariants: requests in `committed_waiters` stand in the order of the offset they wait for; they were parked under the
leader epoch that still holds (a change of leadership answers them all first, cluster rule 8).

Sources: Kafka's Partition.scala and DelayedProduce; KIP-101 for the epochs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ottla.log.answers import Appended, Origin
from ottla.log.log import Log
from ottla.machine import Answer, Millis, Ticket

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.topics.topics import Topic


class Partition:
    """A partition this node leads.

    `holding`: records were appended that are not committed before an fsync covers them, because the node's durability
    is fsync or flush.messages asks for it. Otherwise an append is committed at once: the page cache is enough.
    """

    __slots__ = (
        "committed_waiters",
        "fetch_waiters",
        "holding",
        "index",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "node",
        "partition_epoch",
        "replicas",
        "topic",
        "traffic",
    )

    def __init__(self, node: Node, topic: Topic, index: int, log: Log, leader_epoch: int, partition_epoch: int) -> None:
        self.node = node
        self.topic = topic
        self.traffic = node.metrics.traffic(topic.name)
        self.index = index
        self.log = log
        self.leader = node.node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.replicas = [node.node_id]
        self.isr = [node.node_id]
        self.committed_waiters: deque[tuple[int, Ticket, object | None]] = deque()
        self.holding = False
        self.fetch_waiters: dict[Ticket, None] = {}

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.index}"

    def append(self, now: Millis, batch: memoryview, origin: Origin = Origin.CLIENT) -> Appended:
        """Append one batch as the leader; it is committed at once, or when the fsync that covers it ends.

        Raises AppendRefused and StorageFailed as `Log.append_as_leader` does.
        """
        log = self.log
        appended = log.append_as_leader(batch, now=now, leader_epoch=self.leader_epoch, origin=origin)
        if not appended.duplicate:
            node = self.node
            if node.group_commit or self.holding or log.config.flush_messages <= log.unflushed:
                self.holding = True
                node.sync_soon(self)
            else:
                log.advance_high_watermark(appended.last_offset + 1)
                if self.fetch_waiters:
                    self.wake_fetches(len(batch))
            traffic = self.traffic
            traffic.bytes_in += len(batch)
            traffic.messages_in += appended.last_offset - appended.base_offset + 1
            traffic.produce_requests += 1
            upkeep = node.upkeep
            if self not in upkeep.touched:
                upkeep.touch(now, self)
        return appended

    def commit_up_to(self, offset: int, size: int) -> None:
        """The high watermark reaches `offset`, `size` bytes further on: answer and wake whoever waited for it."""
        if not self.log.advance_high_watermark(offset):
            return
        self.holding = offset < self.log.log_end_offset
        node, waiters = self.node, self.committed_waiters
        while waiters and waiters[0][0] <= offset:
            _, ticket, reply = waiters.popleft()
            node.committed(ticket, self, reply)
        if self.fetch_waiters:
            self.wake_fetches(size)

    def when_committed(self, answers: tuple[Answer, ...]) -> None:
        """Send these answers once all that the log holds now is committed (rule 7 of the design)."""
        required_offset = self.log.log_end_offset
        if self.log.high_watermark >= required_offset:
            for answer in answers:
                self.node.answer(answer.ticket, answer.reply)
        else:
            self.committed_waiters.extend((required_offset, answer.ticket, answer.reply) for answer in answers)

    def wake_fetches(self, size: int) -> None:
        """`size` more bytes are readable: fetches whose min_bytes that fills are answered before the node rests."""
        for ticket in self.fetch_waiters:
            self.node.fetch_grew(ticket, size)

    def wake_all_fetches(self) -> None:
        """Something but new records happened (the log start moved, the partition goes away): all look again."""
        for ticket in self.fetch_waiters:
            self.node.fetch_grew(ticket, 1 << 62)

    def resign(self) -> list[Ticket]:
        """Leadership or the partition itself ends: whoever waited for a commit must be told; fetches look again."""
        tickets = [ticket for _, ticket, _ in self.committed_waiters]
        self.committed_waiters.clear()
        self.wake_all_fetches()
        return tickets
