"""Runs administrators on a simulated cluster, whose controllers move and die during their requests.

The administrators race for the same topics and change the same metadata, each through any node. In the end, the
metadata must agree with their answers: an acknowledged change is in effect, and a refused request changed nothing.
Either may be true only after no answer or REQUEST_TIMED_OUT. An answer that a topic to delete is unknown counts as one
of those if the forwarding node may have forwarded the request twice, as Kafka's do. Such a request may also succeed
twice: a deletion also deletes the topic that another client has made between the two.
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
    """Administrators alone, without readers or writers."""

    def __init__(self, cluster: WorkloadCluster, plan: Plan) -> None:
        super().__init__(cluster, plan)
        self.racers = [Racer(self, f"racer-{index}", self.races) for index in range(RACERS)]

    def topics_stand(self) -> None:
        """No other clients start."""


class ClusteredAdminsRun(ClusteredRun):
    """One seed. See the module."""

    topics = ()
    workload: AdminsWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {"ottla.partitions.max": "2000"}

    def make_workload(self, plan: Plan) -> AdminsWorkload:
        return AdminsWorkload(self.cluster, plan)

    def audit(self) -> None:
        """Compare the metadata with the answers that the racers received."""
        image = self.cluster.image
        rivals = sum((way.made_by_rivals for way in self.cluster.ways.values()), Counter[str]())
        by_others = {key.removeprefix(PREFIX): count for key, count in rivals.items()}
        self.workload.races.check(image.topics, by_others)
        for racer in self.workload.racers:
            racer.check_number(image[GROUP_CONFIGS].get(racer.name, {}))
