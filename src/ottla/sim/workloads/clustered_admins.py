"""Runs administrators on a simulated cluster, whose controllers move and die under what they ask for.

They race for the same topics and change the same metadata, each asking any node. In the end what there is agrees with
what they were told: what was acknowledged is so, what was refused was not done by that request, and only where nobody
answered, or REQUEST_TIMED_OUT, either may be true. A topic that was to be deleted and is unknown may be one of those:
the node that handed the request on may have asked twice, as Kafka's do.
"""

import random
from collections import Counter

from ottla.metadata.configs import GROUP_CONFIGS
from ottla.metadata.topics import PREFIX
from ottla.sim.clients.racers import Racer
from ottla.sim.workloads.clustered_run import ClusteredRun, WorkloadCluster
from ottla.sim.workloads.workload import Plan, Workload

RACERS = 4


class AdminsWorkload(Workload):
    """Administrators alone: nobody reads or writes."""

    def __init__(self, cluster: WorkloadCluster, plan: Plan) -> None:
        super().__init__(cluster, plan)
        self.racers = [Racer(self, f"racer-{index}", self.races) for index in range(RACERS)]

    def topics_stand(self) -> None:
        """Nobody else comes."""


class ClusteredAdminsRun(ClusteredRun):
    """One seed. See the module."""

    topics = ()
    workload: AdminsWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {"ottla.partitions.max": "2000"}

    def make_workload(self, plan: Plan) -> AdminsWorkload:
        return AdminsWorkload(self.cluster, plan)

    def audit(self) -> None:
        """Hold the metadata against what was told of it."""
        image = self.cluster.image
        rivals = sum((way.made_by_rivals for way in self.cluster.ways.values()), Counter[str]())
        by_others = {key.removeprefix(PREFIX): count for key, count in rivals.items()}
        self.workload.races.check(image.topics, by_others)
        for racer in self.workload.racers:
            racer.check_number(image[GROUP_CONFIGS].get(racer.name, {}))
