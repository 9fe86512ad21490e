"""Runs groups of both protocols on a simulated cluster: members follow their coordinator, which moves and dies.

In addition to the checks of every run on a cluster, it checks the promises of `ownership` and of committed offsets (12)
at every step. In the end, each partition that a group reads has one owner, which has read and committed all of it.
"""

import random

from ottla.sim.workloads.clustered_run import ClientTrouble, ClusteredRun
from ottla.sim.workloads.groups import EVENTS, GROWN, ORDERS, GroupsWorkload
from ottla.sim.workloads.groups_run import GroupsClientFaults, groups_settings
from ottla.sim.workloads.workload import Plan


class ClusteredGroupsRun(ClusteredRun):
    """One seed. See the module."""

    topics = (EVENTS, ORDERS, GROWN)
    workload: GroupsWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return groups_settings(rng)

    def make_workload(self, plan: Plan) -> GroupsWorkload:
        return GroupsWorkload(self.cluster, plan)

    def make_trouble(self) -> ClientTrouble:
        faults = GroupsClientFaults(self.workload, self.cluster.world.stream("client-trouble"))
        return ClientTrouble(self.cluster, faults)
