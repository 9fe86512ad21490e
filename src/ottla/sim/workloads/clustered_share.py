"""Runs share groups on a simulated cluster: leaders and coordinators of their state move and die.

In addition to the checks of every run on a cluster, it checks the promises of `share_history` at every step. They apply
to each leadership of a partition, instead of each incarnation of the node. It also checks the share partitions' own
invariants. In the end every queue is drained, and every record is accepted or in the dead-letter topic.
"""

import random
from dataclasses import replace

from ottla.broker.node import Node
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.share_clients import LETTERS
from ottla.sim.kernel.network import Endpoint
from ottla.sim.workloads.clustered_run import ClusteredRun, ClusterWatch, WorkloadCluster
from ottla.sim.workloads.run import SeedResult
from ottla.sim.workloads.share_run import audit_share, missing_of_share, share_settings
from ottla.sim.workloads.share_workload import JOBS, ShareWorkload
from ottla.sim.workloads.workload import Plan


class ClusteredShareWorkload(ShareWorkload):
    """The same clients, which send their requests to the leaders."""

    def __init__(self, cluster: WorkloadCluster, plan: Plan) -> None:
        super().__init__(cluster, plan)
        self._cluster = cluster

    def leadership(self, at: Endpoint | None, where: TopicPartition) -> int | None:
        for node_id in self._cluster.up:
            if self._cluster.hosts[node_id].endpoint == at:
                partition = self._cluster.node(node_id).replicas.get(*where)
                return partition.leader_epoch if partition is not None and partition.leads else None
        return None


class ClusteredShareWatch(ClusterWatch):
    """Checks the share partitions too."""

    def look(self, node_id: int, node: Node) -> None:
        super().look(node_id, node)
        node.coordinators.share.check()


class ClusteredShareRun(ClusteredRun):
    """One seed. See the module."""

    topics = (JOBS, LETTERS)
    workload: ClusteredShareWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return share_settings(rng)

    def make_workload(self, plan: Plan) -> ClusteredShareWorkload:
        return ClusteredShareWorkload(self.cluster, plan)

    def make_watch(self) -> ClusterWatch:
        return ClusteredShareWatch(self.cluster)

    def missing(self) -> str | None:
        workload, cluster = self.workload, self.cluster
        missing = super().missing()
        if missing is not None:
            return missing
        if workload.share_admin is None or not workload.share_admin.at_rest:
            return "the groups are not configured"
        nodes = [(cluster.node(node_id), host.clock.now_ms) for node_id, host in cluster.hosts.items()]
        led = cluster.all_led([JOBS])
        described = [
            each
            for node, now in nodes
            for each in node.coordinators.share.describe(now)
            if node.replicas.get(each.topic, each.partition) in led
        ]
        return missing_of_share(workload, described, led)

    def audit(self) -> None:
        super().audit()
        letters = self.cluster.led(LETTERS, 0)
        assert letters is not None
        audit_share(self.workload, self.cluster.all_led([JOBS]), letters)

    def outcome(self) -> SeedResult:
        outcome = super().outcome()
        return replace(outcome, deliveries=sum(shares.deliveries for shares in self.workload.shares.values()))
