"""Runs transactions and share groups on a cluster whose disks lie: the clients and checks of `clustered_transactions`
and `clustered_share`, and the faults of `spoiled_run`.

The disk of one node lies. No committed transaction or acknowledgement may be lost, and none may be half there: the
promises are those of the same workloads on sound disks.

A restored store lacks what no log shows, and an operator has to create it again: the configs of share groups, and
partitions without records. So the store is backed up once the groups have their configs, and one without topics is
restored once every partition has records.
"""

import random
from functools import partial

from ottla.broker.partitions.partition import Partition
from ottla.sim.workloads.clustered_run import ClientTrouble, WorkloadCluster
from ottla.sim.workloads.clustered_share import ClusteredShareRun
from ottla.sim.workloads.clustered_transactions import ClusteredTransactionsRun, TransactionTrouble
from ottla.sim.workloads.faults import ClientFaults
from ottla.sim.workloads.share_workload import ShareWorkload
from ottla.sim.workloads.spoiled_run import SCRUBBING, SpoilingTrouble
from ottla.sim.workloads.transaction_checkers import audit_transactions


class SpoilingTransactionTrouble(SpoilingTrouble, TransactionTrouble):
    """The faults of both. The store has no topics yet when they begin."""

    def begin(self) -> None:
        self.back_up_without_topics()
        super().begin()

    def _restore_store(self) -> None:
        rules, known = self._workload.rules.values(), self._workload.history.acknowledged
        if all(known.get((rule.name, index)) for rule in rules for index in range(rule.partitions)):
            super()._restore_store()


class SpoiledTransactionsRun(ClusteredTransactionsRun):
    """One seed. See the module."""

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {**super().settings(rng), **SCRUBBING}

    def make_trouble(self) -> SpoilingTransactionTrouble:
        self.workload.history.disks_lie = True
        return SpoilingTransactionTrouble(self.cluster, self.workload)

    def audit(self) -> None:
        """Check every replica, because any may lead later."""
        super().audit()
        for node_id in self.cluster.hosts:
            audit_transactions(self.workload, partial(self._replica, node_id))

    def _replica(self, node_id: int, topic: str, index: int) -> Partition | None:
        return self.cluster.node(node_id).replicas.get(topic, index) or self.cluster.led(topic, index)


class SpoilingShareTrouble(SpoilingTrouble, ClientTrouble):
    """The faults of both."""

    def __init__(self, cluster: WorkloadCluster, workload: ShareWorkload) -> None:
        super().__init__(cluster, ClientFaults(workload, cluster.world.stream("client-trouble")))
        self._workload = workload

    def _back_up_store(self) -> None:
        if self._workload.share_members:
            super()._back_up_store()


class SpoiledShareRun(ClusteredShareRun):
    """One seed. See the module."""

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {**super().settings(rng), **SCRUBBING}

    def make_trouble(self) -> SpoilingShareTrouble:
        self.workload.history.disks_lie = True
        return SpoilingShareTrouble(self.cluster, self.workload)
