"""Simulates administrators: they create and delete topics, change configs and delete records while all other clients
work.

`Admin` makes the topics of the workload and waits until they exist. Then it keeps changing whatever may change without
breaking a promise: configs of any topic, records of topics that are not dense, and topics of its own.
"""

from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.trace import InvariantError

TOPIC_RESOURCE = 2
REPLICAS = 3
"""Replicas of each topic, if there are that many nodes."""
TOPICS_AS_LIST_SINCE = 6
TRANSIENT = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
HARMLESS_CONFIGS = (
    ("segment.ms", ("700", "2000", "100000")),
    ("index.interval.bytes", ("0", "200", "4096")),
    ("flush.messages", ("1", "5", "1000000")),
    ("flush.ms", ("50", "1000", "100000")),
    ("min.cleanable.dirty.ratio", ("0.01", "0.5")),
    ("max.message.bytes", ("50000", "1048588")),
    ("file.delete.delay.ms", ("0", "500", "60000")),
)


class Admin(KafkaClient):
    """Creates the workload's topics, then disturbs."""

    def __init__(self, workload: WorkloadView, name: str) -> None:
        super().__init__(workload, name)
        self.created = False
        self.disturbs = True
        self._own = 0
        self._mine: list[str] = []
        self.connect()

    def ready(self) -> None:
        if not self.created:
            self._create_all()

    # ---- the workload's topics -------------------------------------------------------------------------------------

    def _create_all(self) -> None:
        topics = [
            CreatableTopic(
                name=rule.name,
                num_partitions=rule.partitions,
                replication_factor=min(REPLICAS, len(self.workload.bootstraps)),
                configs=[CreatableTopicConfig(k, v) for k, v in self.workload.configs_of(rule)],
            )
            for rule in self.workload.rules.values()
        ]
        self.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=5_000), self._created_all)

    def _created_all(self, message: Any) -> None:
        if message is None:
            return
        codes = {topic.name: topic.error_code for topic in message.topics}
        self._check("CreateTopics", message.topics)
        if all(code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) for code in codes.values()):
            self.created = True
            self.workload.topics_stand()
            self.after(self.rng.randrange(1_000 * MS), self._disturb)
        else:
            self.after(200 * MS, self._create_again)

    def _create_again(self) -> None:
        if self.connection is not None:
            self._create_all()

    # ---- disturbing ------------------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        if not self.disturbs:
            return
        self.after(self.rng.randrange(200 * MS, 2_500 * MS), self._disturb)
        if self.connection is not None:
            self.rng.choice((self._alter, self._alter, self._delete_records, self._come_and_go, self._come_and_go))()

    def _alter(self) -> None:
        name, values = self.rng.choice(HARMLESS_CONFIGS)
        topic = self.rng.choice(list(self.workload.rules))
        change = AlterableConfig(name, 0, self.rng.choice(values))
        if self.rng.random() < 0.2:
            change = AlterableConfig(name, 1, None)
        resource = AlterConfigsResource(TOPIC_RESOURCE, topic, [change])
        self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource], False), self._altered)

    def _altered(self, message: Any) -> None:
        if message is not None:
            self._check("IncrementalAlterConfigs", message.responses)

    def _delete_records(self) -> None:
        sparse = [rule for rule in self.workload.rules.values() if rule.sparse]
        if not sparse:
            return
        rule = self.rng.choice(sparse)
        index = self.rng.randrange(rule.partitions)
        known = self.history.acknowledged.get((rule.name, index))
        offset = self.rng.choice(list(known)) if known else 0
        part = DeleteRecordsPartition(index, offset if self.rng.random() < 0.9 else -1)
        request = DeleteRecordsRequest([DeleteRecordsTopic(rule.name, [part])], 2_000)
        self.request(ApiKey.DELETE_RECORDS, request, self._records_deleted, rule.name, index, part.offset)

    def _records_deleted(self, message: Any, topic: str, index: int, offset: int) -> None:
        if message is None:
            return
        part = message.topics[0].partitions[0]
        self._check("DeleteRecords", [part])
        if part.error_code == 0 and part.low_watermark < offset:
            raise InvariantError(f"DeleteRecords of {topic}-{index} up to {offset} leaves it at {part.low_watermark}")

    def _come_and_go(self) -> None:
        chance = self.rng.random()
        if chance < 0.5 or not self._mine:
            self._own += 1
            name = f"{self.name}-own-{self._own % 3}"
            topic = CreatableTopic(name, self.rng.randrange(1, 4), 1)
            self.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest([topic], 3_000), self._came, name)
        elif chance < 0.7:
            request = CreatePartitionsRequest([CreatePartitionsTopic(self._mine[0], 5, None)], 3_000, False)
            self.request(ApiKey.CREATE_PARTITIONS, request, self._grew)
        else:
            name = self._mine.pop(0)
            listed = self.versions[ApiKey.DELETE_TOPICS] >= TOPICS_AS_LIST_SINCE
            request = DeleteTopicsRequest(
                topic_names=[] if listed else [name],
                topics=[DeleteTopicState(name=name)] if listed else [],
                timeout_ms=3_000,
            )
            self.request(ApiKey.DELETE_TOPICS, request, self._went)

    def _came(self, message: Any, name: str) -> None:
        if message is not None:
            self._check("CreateTopics", message.topics)
            if message.topics[0].error_code == 0:
                self._mine.append(name)

    def _grew(self, message: Any) -> None:
        if message is not None:
            self._check("CreatePartitions", message.results, also=(ErrorCode.INVALID_PARTITIONS,))

    def _went(self, message: Any) -> None:
        if message is not None:
            self._check("DeleteTopics", message.responses)

    def _check(self, what: str, items: list[Any], also: tuple[int, ...] = ()) -> None:
        for item in items:
            if self.follows and item.error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
                continue  # too few nodes are present now
            if item.error_code not in TRANSIENT and item.error_code not in also:
                raise InvariantError(
                    f"{self.name}: {what} answers {item.error_code}: {getattr(item, 'error_message', '')}"
                )
