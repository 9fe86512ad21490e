"""Makes the clients of a run of transactions: producers of both versions, transformers in groups, readers of both
isolation levels.

Transactional producers write `ledger`, and so does one without transactions, whose records are between theirs.
`accounts` is compacted. Groups of transformers read `ledger` and write `results`. A transactional id has one client
that may use it, and perhaps zombies. In some runs the epochs of the ids begin near their maximum: the run has written
that to `__transaction_state` and killed the nodes.
"""

from collections.abc import Mapping
from typing import Any

from ottla.machine import WallMillis
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC, partition_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.sim.clients.batches import encode_batch
from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.clients.kafka import OF_TRANSACTIONS, KafkaClient, find_coordinator
from ottla.sim.clients.producers import Producer
from ottla.sim.clients.readers import Scanner
from ottla.sim.clients.transaction_history import TransactionHistory
from ottla.sim.clients.transactional import TransactionalProducer
from ottla.sim.clients.transactional_states import ProducerState
from ottla.sim.clients.transformers import CommittedScanner, Emitter, Transformer
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.workloads.workload import Plan, Site, Workload
from ottla.txn.records import encode
from ottla.txn.transaction import EXHAUSTED_EPOCH, State
from ottla.txn.transaction import Transaction as KnownTransaction

LEDGER, ACCOUNTS, RESULTS = "ledger", "accounts", "results"
TIMEOUTS_MS = (800, 2_500, 6_000)
INTERNAL_TOPICS_CLIENT = "__admin_client"
AGED_CHANCE = 0.3
ABORTS_AT_ONCE_FROM, ABORTS_AT_ONCE_TO = 0.5, 0.85
"""Bounds of the draw by which clients of a run abort at once, so that seeds kept for other bugs keep their traces."""
AGED = ("pay-0", "pay-1", "pay-2")
AGED_ON_CLUSTERS = (*AGED, "loop-0", "loop-1")
"""The aged ids in runs that have any."""


class TransactionWorkload(Workload):
    """See the module."""

    def __init__(self, site: Site, plan: Plan) -> None:
        super().__init__(site, plan)
        rng = self.rng
        rules = (
            TopicRule(LEDGER, rng.randrange(1, 4), dense=True, transactional=True),
            TopicRule(ACCOUNTS, rng.randrange(1, 3), compacted=True, transactional=True),
            TopicRule(RESULTS, rng.randrange(1, 3), dense=True, transactional=True),
        )
        self.rules = {rule.name: rule for rule in rules}
        self.history = self.admin.history = History(rules, groups_vanish=self.history.groups_vanish)
        self.told = TransactionHistory(self.history)
        self.transactional: list[TransactionalProducer] = []
        """The clients that may write under a transactional id, the newest of each; then the zombies."""
        self.transformers: list[Transformer] = []
        self.ager: Ager | None = None
        draw = self.world.stream("aborts-at-once").random()
        self.aborts_at_once = ABORTS_AT_ONCE_FROM <= draw < ABORTS_AT_ONCE_TO
        self._instances = 0

    def configs_of(self, rule: TopicRule) -> list[tuple[str, str]]:
        """In half of the runs, segments of compacted topics are small, so that compaction has many segments to
        merge."""
        configs = dict(super().configs_of(rule))
        if rule.compacted and self.world.stream("short-segments").random() < 0.5:
            configs |= {"segment.index.bytes": "40", "index.interval.bytes": "0"}
        return list(configs.items())

    @property
    def clients(self) -> list[KafkaClient]:
        own = [] if self.ager is None else [self.ager]
        return [*super().clients, *own, *self.transactional]

    @property
    def ids_expire(self) -> bool:
        """Whether transactional ids expire after a few seconds without use."""
        return int(self.plan.settings["transactional.id.expiration.ms"]) < self.plan.safety_ms

    def topics_stand(self) -> None:
        if self.ager is not None:
            return
        chance, ids = self.rng.random(), AGED
        if not isinstance(self.site, Host):
            chance, ids = self.world.stream("old-ids").random(), AGED_ON_CLUSTERS
        if chance < AGED_CHANCE:
            self.ager = Ager(self, ids)
        else:
            self.ids_stand()

    def ids_stand(self) -> None:
        """Start the clients, because the state of the transactional ids is ready."""
        if self.producers:
            return
        rng = self.rng
        gap_us = rng.choice((60, 150)) * MS
        self.producers.append(Producer(self, "plain", LEDGER, idempotent=True, gap_us=4 * gap_us))
        for i in range(rng.randrange(1, 4)):
            topics = (LEDGER, ACCOUNTS) if rng.random() < 0.5 else (LEDGER,)
            self.add_producer(f"pay-{i}", topics)
        for i in range(rng.randrange(1, 3)):
            emitter = self._emitter(f"loop-{i}")
            instance = f"loop-{i}" if rng.random() < 0.3 else None
            member = Transformer(self, f"member-{i}", "loops", (LEDGER,), instance=instance, emitter=emitter)
            self.transformers.append(member)
            self.members.append(member)
        for topic in (LEDGER, ACCOUNTS, RESULTS):
            self.scanners.append(CommittedScanner(self, f"committed-{topic}", topic))
        self.scanners.append(Scanner(self, "all", rng.choice((LEDGER, RESULTS))))
        if self.winding_down:
            self.wind_down()

    def add_producer(self, transactional_id: str, topics: tuple[str, ...]) -> TransactionalProducer:
        """Start a client that takes this transactional id."""
        rng = self.rng
        producer = TransactionalProducer(
            self,
            self._instance_of(transactional_id),
            topics,
            second_version=rng.random() < 0.5,
            timeout_ms=rng.choice(TIMEOUTS_MS),
            gap_us=rng.choice((60, 200)) * MS,
        )
        self.transactional.append(producer)
        return producer

    def _emitter(self, transactional_id: str) -> Emitter:
        rng = self.rng
        emitter = Emitter(
            self,
            self._instance_of(transactional_id),
            (RESULTS,),
            second_version=rng.random() < 0.5,
            timeout_ms=rng.choice(TIMEOUTS_MS),
            gap_us=100 * MS,
        )
        self.transactional.append(emitter)
        return emitter

    def _instance_of(self, transactional_id: str) -> str:
        self._instances += 1
        return f"{transactional_id}.{self._instances}"

    # ---- one after the other ---------------------------------------------------------------------------------------

    def replace_one(self, *, dies: bool) -> None:
        """Give a transactional id to a new client. The previous one dies, or continues as a zombie."""
        alive = [each for each in self.transactional if each.state is not ProducerState.OVER and not each.zombie]
        if not alive:
            return
        before = self.rng.choice(alive)
        self.world.trace.add("faults", f"{before.name} {'dies' if dies else 'becomes a zombie'}")
        if isinstance(before, Emitter):
            member = next(each for each in self.transformers if each.emitter is before)
            member.take(self._emitter(before.transactional_id))
            before.renewals = None
        else:
            self.add_producer(before.transactional_id, before.topics)
        if dies:
            before.retire()
        else:
            before.zombie = True

    def missing(self, ends: Mapping[TopicPartition, int]) -> str | None:
        missing = super().missing(ends)
        if missing is not None:
            return missing
        return next((f"{each.name} is {each.state.value}" for each in self.transactional if not each.idle), None)

    def wind_down(self) -> None:
        super().wind_down()
        for producer in self.transactional:
            producer.makes = isinstance(producer, Emitter) and not producer.zombie
            producer.hurries = True


class Ager(KafkaClient):
    """An operator who writes that transactional ids have come near the end of their epochs, and kills every node. The
    restarted coordinators read that."""

    def __init__(self, workload: TransactionWorkload, ids: tuple[str, ...]) -> None:
        super().__init__(workload, INTERNAL_TOPICS_CLIENT)
        self._for = workload
        self._ids = list(ids)
        self.versions[ApiKey.FIND_COORDINATOR] = max(1, self.versions[ApiKey.FIND_COORDINATOR])
        self.versions[ApiKey.PRODUCE] = 12
        self.connect()

    def ready(self) -> None:
        if self._ids:
            self.request(ApiKey.FIND_COORDINATOR, find_coordinator(OF_TRANSACTIONS, self._ids[0]), self._found)

    def _found(self, message: Any) -> None:
        if message is None:
            return
        if self.note_coordinator(OF_TRANSACTIONS, self._ids[0], message):
            self.after(100 * MS, self._again)
        else:
            self.request(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), self._write)

    def _again(self) -> None:
        if self.connection is not None:
            self.ready()

    def _write(self, message: Any) -> None:
        """Write one record for each id in turn, with a new producer id."""
        if message is None:
            return
        if message.error_code:
            self.after(100 * MS, self._again)
            return
        self._for.check_new_producer_id(message.producer_id)
        name = self._ids[0]
        self._for.told.belongs(message.producer_id, name)
        known = KnownTransaction(
            message.producer_id,
            EXHAUSTED_EPOCH - self.rng.randrange(5),
            1_000,
            self.rng.choice((State.EMPTY, State.COMPLETE_COMMIT)),
            last_update_ms=WallMillis(self.world.clock.wall_ms),
            client_version=self.rng.choice((0, 2)),
        )
        record = encode(name, known)
        batch = encode_batch([(record.key, record.value)], self.world.clock.wall_ms)
        partitions = int(self._for.plan.settings["transaction.state.log.num.partitions"])
        part = PartitionProduceData(partition_of(name, partitions), batch)
        topic = TopicProduceData(TRANSACTION_STATE_TOPIC, partition_data=[part])
        coordinator = self.coordinators[OF_TRANSACTIONS, name]
        self.request(ApiKey.PRODUCE, ProduceRequest(None, -1, 3_000, [topic]), self._written, at=coordinator)

    def _written(self, message: Any) -> None:
        if message is None:
            return
        code = message.responses[0].partition_responses[0].error_code
        if code != ErrorCode.NONE:
            self.after(100 * MS, self._again)
            return
        self._ids.pop(0)
        if self._ids:
            self.ready()
            return
        self.world.trace.add("faults", "the transactional ids are old now")
        self.running = False
        self.hang_up()
        for host in self._for.site.every_host:
            host.kill(power_cut=False)
        self._for.ids_stand()
