"""Changes ACLs and passwords on a simulated cluster, while its nodes die, are cut off and move.

Whatever a node answers must be true of the metadata store, or have been so within the time for which a node may trust
what it knows: after that, a node that is cut off must not decide at all. In the end all nodes decide as the store says.
"""

import random

from ottla.broker.client_identity import Address, Identity
from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.metadata.acls import ACLS
from ottla.metadata.credentials import CREDENTIALS
from ottla.protocol.acls import Operation, ResourceType
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.visitors import Rights, Visitor, Warden, guarded
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.clustered_run import ClusteredRun, WorkloadCluster
from ottla.sim.workloads.workload import Plan, Workload

VISITORS = 3


class AccessWorkload(Workload):
    """Visitors and their wardens alone."""

    def __init__(self, cluster: WorkloadCluster, plan: Plan) -> None:
        super().__init__(cluster, plan)
        self.rights = Rights()
        names = [f"visitor-{index}" for index in range(VISITORS)]
        self.visitors = [Visitor(self, name, self.rights) for name in names]
        self.wardens = [Warden(self, f"warden-{index}", name) for index, name in enumerate(names)]

    @property
    def clients(self) -> list[KafkaClient]:
        return [*super().clients, *self.visitors, *self.wardens]

    def topics_stand(self) -> None:
        """No other clients start."""

    def wind_down(self) -> None:
        super().wind_down()
        for each in (*self.visitors, *self.wardens):
            each.works = False


class ClusteredAccessRun(ClusteredRun):
    """One seed. See the module."""

    topics = ()
    workload: AccessWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {AUTHORIZER: AUTHORIZERS[0], "allow.everyone.if.no.acl.found": "true"}

    def make_workload(self, plan: Plan) -> AccessWorkload:
        workload = AccessWorkload(self.cluster, plan)
        applied = self.cluster.store.committed

        def committed() -> None:
            if applied is not None:
                applied()
            image = self.cluster.image
            workload.rights.note(self.cluster.world.clock.now_us, image[ACLS], image[CREDENTIALS])

        self.cluster.store.committed = committed
        return workload

    def audit(self) -> None:
        """Every node decides by what the store says, and knows the same users."""
        rights = self.workload.rights
        for node_id in self.cluster.up:
            node = self.cluster.node(node_id)
            for visitor in self.workload.visitors:
                name = visitor.name
                identity = Identity(Address(-2, name))
                allowed = node.access.allows(identity, Operation.DESCRIBE, ResourceType.TOPIC, guarded(name))
                if allowed is rights.is_now("denied", guarded(name)):
                    raise InvariantError(f"node {node_id} allows {name}: {allowed}, and the store says otherwise")
                if (name in node.image[CREDENTIALS]) is not rights.is_now("known", name):
                    raise InvariantError(f"node {node_id} knows other users than the store has: {name}")
