"""Runs transactions on a simulated cluster: the workload of one node, with clients that follow leaders and
coordinators.

Nodes die at every step of ending a transaction, and leaders and coordinators move. In addition to the checks of every
run on a cluster, it checks:

- The promises of `transaction_history` hold at every step.
- The last stable offset of a partition does not fall under one leadership.
- A transaction that is open at a partition's leader is open, or being ended, at its coordinator, on whichever node.
- In the end no transaction is open, and the audit of every log passes.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.clustered_run import (
    INTERNAL_TOPICS,
    ClientTrouble,
    ClusteredRun,
    ClusterWatch,
    WorkloadCluster,
    transactions_of,
)
from ottla.sim.workloads.run import SeedResult
from ottla.sim.workloads.transaction_checkers import (
    audit_transactions,
    compact_replicas,
    known_transactions,
    look_at_ends,
    look_at_open,
    missing_of_transactions,
)
from ottla.sim.workloads.transactions import ACCOUNTS, LEDGER, RESULTS, TransactionWorkload
from ottla.sim.workloads.transactions_run import (
    STEPS_FROM_PREPARE_MAX,
    TransactionClientFaults,
    transaction_settings,
)
from ottla.sim.workloads.workload import Plan
from ottla.txn.shard import TransactionShard
from ottla.txn.transaction import NO_ID, Transaction


def transactions_known(cluster: WorkloadCluster) -> dict[str, Transaction]:
    """Return the state of all coordinators of a cluster, by transactional id."""
    known: dict[str, Transaction] = {}
    for _, shard in cluster.coordinators(transactions_of):
        assert isinstance(shard, TransactionShard)
        known.update(shard.image())
    return known


class ClusteredTransactionWatch(ClusterWatch):
    """Checks transactions too, on the nodes of their coordinators."""

    def __init__(self, cluster: WorkloadCluster, workload: TransactionWorkload) -> None:
        super().__init__(cluster)
        self._workload = workload
        self._stable: dict[tuple[int, Partition], tuple[int, int]] = {}
        """By node and partition: the epoch in which the node leads it, and its last stable offset."""

    def look(self, node_id: int, node: Node) -> None:
        super().look(node_id, node)
        cluster = self.cluster
        all_loaded = cluster.all_loaded(TRANSACTION_STATE_TOPIC)
        by_name = transactions_known(cluster) if all_loaded else {}
        known = {each.producer_id: each for each in by_name.values()}
        if all_loaded:
            look_at_ends(self._workload, by_name)
        for partition in cluster.all_led((*cluster.topics, *INTERNAL_TOPICS)):
            if node.replicas.get(partition.topic_name, partition.index) is not partition:
                continue
            log = partition.log
            log.producers.check()
            epoch, stable = self._stable.get((node_id, partition), (-1, 0))
            if epoch == partition.leader_epoch and log.last_stable_offset < stable:
                raise InvariantError(
                    f"{partition.name} on node {node_id}: the last stable offset goes back from {stable} to "
                    f"{log.last_stable_offset} in epoch {epoch}"
                )
            self._stable[node_id, partition] = partition.leader_epoch, log.last_stable_offset
            if all_loaded:
                for offset, producer_id in log.producers.open.items():
                    look_at_open(partition, offset, known.get(producer_id))


class TransactionTrouble(ClientTrouble):
    """In addition to the other faults, a node dies while a transaction is being ended. If that end uses up a producer
    id, the node is its coordinator."""

    def __init__(self, cluster: WorkloadCluster, workload: TransactionWorkload) -> None:
        super().__init__(cluster, TransactionClientFaults(workload, cluster.world.stream("client-trouble")))
        self._steps_from_prepare: int | None = None
        """Steps, of nodes that have a prepared transaction, until one of the nodes that matter dies."""
        self._workload = workload
        self._used_up: set[int] = set()
        """Producer ids whose last transaction was seen to be prepared."""
        self._chance = cluster.world.stream("used-up")

    def kinds(self) -> list[Callable[[], None]]:
        return [*super().kinds(), *(self.die_while_ending,) * 4]

    def die_while_ending(self) -> None:
        self._steps_from_prepare = self.rng.randrange(STEPS_FROM_PREPARE_MAX)

    def stepped(self, node: Node) -> None:
        """A node has made a step."""
        if not self.active or (self._steps_from_prepare is None and self._workload.ager is None):
            return
        prepared = [each for each in known_transactions(node).values() if each.state.is_prepared]
        for each in prepared:
            if each.next_producer_id != NO_ID and each.producer_id not in self._used_up:
                self._used_up.add(each.producer_id)
                if self._chance.random() < 0.5:
                    self.cluster.world.agenda.after(self._chance.randrange(20 * MS), self.cluster.kill, node.node_id)
        if prepared and self._steps_from_prepare is not None:
            self._steps_from_prepare -= 1
            if self._steps_from_prepare < 0:
                self._steps_from_prepare = None
                self.cluster.world.agenda.after(0, self.kill_any)


class ClusteredTransactionsRun(ClusteredRun):
    """One seed. See the module."""

    topics = (LEDGER, ACCOUNTS, RESULTS)
    compacted = (ACCOUNTS,)
    workload: TransactionWorkload
    trouble: TransactionTrouble

    def settings(self, rng: random.Random) -> dict[str, str]:
        return transaction_settings(rng)

    def make_workload(self, plan: Plan) -> TransactionWorkload:
        return TransactionWorkload(self.cluster, plan)

    def make_trouble(self) -> TransactionTrouble:
        return TransactionTrouble(self.cluster, self.workload)

    def make_watch(self) -> ClusterWatch:
        return ClusteredTransactionWatch(self.cluster, self.workload)

    def stepped(self, node_id: int) -> None:
        super().stepped(node_id)
        self.trouble.stepped(self.cluster.node(node_id))

    def missing(self) -> str | None:
        missing = super().missing()
        if missing is not None:
            return missing
        led = self.cluster.all_led((*self.topics, *INTERNAL_TOPICS))
        return missing_of_transactions(transactions_known(self.cluster), led)

    def audit(self) -> None:
        super().audit()
        look_at_ends(self.workload, transactions_known(self.cluster))
        audit_transactions(self.workload, self.cluster.led)

    def go(self) -> None:
        super().go()
        compact_replicas(self.workload, [self.cluster.node(node_id) for node_id in self.cluster.hosts])

    def outcome(self) -> SeedResult:
        return replace(super().outcome(), transactions=self.workload.told.committed_count)
