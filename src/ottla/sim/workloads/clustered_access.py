"""Changes ACLs and passwords on a simulated cluster, while its nodes die, are cut off and move.

Visitors ask what they may see. Tenants log in with passwords, write and read. Administrators change the rights of both.

Whatever a node answers must be true of the metadata store, or have been so within the time for which a node may trust
what it knows: after that, a node that is cut off must not decide at all. In the end all nodes decide as the store says,
and no log has a record that was denied.
"""

import random

from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.log.answers import Isolation
from ottla.metadata.acls import ACLS
from ottla.metadata.credentials import CREDENTIALS
from ottla.protocol.acls import Operation, ResourceType
from ottla.sim.clients import tenants, visitors
from ottla.sim.clients.batches import decode_batches
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.tenants import OPERATIONS, Landlord, Tenant, topic_of
from ottla.sim.clients.visitors import Rights, Visitor, Warden, guarded
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.clustered_run import ClusteredRun, WorkloadCluster
from ottla.sim.workloads.workload import Plan, Workload

VISITORS = 3
TENANTS = ("tenant-0", "tenant-1")


class AccessWorkload(Workload):
    """Visitors and tenants, with the administrators of each."""

    def __init__(self, cluster: WorkloadCluster, plan: Plan) -> None:
        super().__init__(cluster, plan)
        self.rights = Rights()
        names = [f"visitor-{index}" for index in range(VISITORS)]
        self.visitors = [Visitor(self, name, self.rights) for name in names]
        self.wardens = [Warden(self, f"warden-{index}", name) for index, name in enumerate(names)]
        self._cluster = cluster
        self.landlords = [Landlord(self, f"landlord-of-{name}", name) for name in TENANTS]
        self.tenants = [Tenant(self, each.tenant, each) for each in self.landlords]

    @property
    def clients(self) -> list[KafkaClient]:
        return [*super().clients, *self.visitors, *self.wardens, *self.landlords, *self.tenants]

    def topic_id(self, name: str) -> bytes | None:
        return self._cluster.topic_id(name)

    def node_that_leads(self, topic: str) -> Endpoint | None:
        return self._cluster.believed_leader((topic, 0))

    def note(self) -> None:
        """The metadata store has changed."""
        acls, credentials = self._cluster.image[ACLS], self._cluster.image[CREDENTIALS]
        of_tenants = tenants.facts_of(list(TENANTS), acls, credentials)
        facts = frozenset((*visitors.facts_of(acls, credentials), *of_tenants))
        self.rights.note(self.world.clock.now_us, facts)

    def topics_stand(self) -> None:
        """No other clients start."""

    def wind_down(self) -> None:
        super().wind_down()
        for each in (*self.visitors, *self.wardens, *self.landlords, *self.tenants):
            each.works = False


class ClusteredAccessRun(ClusteredRun):
    """One seed. See the module."""

    topics = tuple(topic_of(name) for name in TENANTS)
    workload: AccessWorkload

    def settings(self, rng: random.Random) -> dict[str, str]:
        return {
            AUTHORIZER: AUTHORIZERS[0],
            "allow.everyone.if.no.acl.found": "true",
            "sasl.enabled.mechanisms": tenants.MECHANISM,
            "connections.max.reauth.ms": rng.choice(("0", "2500")),
        }

    def make_workload(self, plan: Plan) -> AccessWorkload:
        workload = AccessWorkload(self.cluster, plan)
        applied = self.cluster.store.committed

        def committed() -> None:
            if applied is not None:
                applied()
            workload.note()

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
        for tenant in self.workload.tenants:
            self._audit(tenant)

    def _audit(self, tenant: Tenant) -> None:
        """Every node decides about a tenant as the store says, and what was denied is in no log."""
        identity = Identity(Address(-2, "anywhere"), Principal("User", tenant.name))
        for node_id in self.cluster.up:
            for what, operation in OPERATIONS.items():
                allowed = self.cluster.node(node_id).access.allows(
                    identity, operation, ResourceType.TOPIC, tenant.topic
                )
                if allowed is not self.workload.rights.is_now(what, tenant.topic):
                    raise InvariantError(f"node {node_id} says that {tenant.name} {what}: {allowed}")
        for partition in self.cluster.all_led((tenant.topic,)):
            log = partition.log
            at = log.log_start_offset
            while at < log.high_watermark:
                part = log.read(at, 1 << 20, Isolation.HIGH_WATERMARK, True).slice
                assert part is not None, "a committed record is not read"
                for batch in decode_batches(part.read()):
                    at = batch.last_offset + 1
                    for note in batch.notes:
                        if note.value in tenant.denied:
                            raise InvariantError(f"{partition.name} has {note.value!r}, which was denied")
