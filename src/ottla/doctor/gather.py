"""Makes a snapshot of a cluster, on Ottla and on any Kafka, with Kafka's protocol alone.

It never joins a group, commits an offset, or creates a topic. The number of requests depends on the number of nodes,
not on that of topics or groups: about fifteen a node, and a few for each of at most 20 share groups.
`Snapshot.unseen` names the facts that the cluster does not serve, or that the user may not see.

Sources: ListOffsets with replica id -2 (Kafka's debugging consumer, ReplicaManager.fetchOffset) returns a follower's
log end; KIP-827 (disk sizes), KIP-664 (transactions), KIP-709 (offsets of many groups).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from ottla.client.client import EARLIEST, LATEST, MAX_TIMESTAMP, Client
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, UnsupportedVersionError, check
from ottla.client.observations import observations
from ottla.client.transactions import READ_COMMITTED, UNDER_WAY
from ottla.doctor.deliveries import with_deliveries
from ottla.doctor.groups import groups_on
from ottla.doctor.history import ROUND_BYTES, ROUNDS_MAX, History, frozen, windows
from ottla.doctor.observed import Observed
from ottla.doctor.remembered import observed
from ottla.doctor.snapshot import (
    SHARE,
    UNSEEN_TOPIC,
    Disk,
    Node,
    OpenTransaction,
    Partition,
    Snapshot,
    Topic,
    TopicPartition,
)
from ottla.doctor.words import count, size
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.list_transactions import ListTransactionsRequest

TOPIC, GROUP = 2, 32
"""Resource types of DescribeConfigs."""
SET_ON_TOPIC: Final = 1
"""The config source of a topic's own config (ConfigSource.DYNAMIC_TOPIC_CONFIG)."""
CONSUMER_REPLICA, DEBUGGING_REPLICA = -1, -2
FIRST_RECORD: Final = 0
"""As a time: the first record since 1970, with its timestamp."""
TRANSACTIONS_MAX: Final = 1_000
T = TypeVar("T")


def gather(client: Client, *, history_ms: int = 0) -> Snapshot:
    """A snapshot of the cluster, with the commits and generations of so many milliseconds. Raises ClientError if no
    broker answers."""
    return _Gathering(client).snapshot(history_ms)


class _Gathering:
    """The state of one snapshot in the making."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.unseen: dict[str, None] = {}
        self.reached: dict[int, Connection] = {}
        self.sizes: dict[tuple[int, TopicPartition], int] = {}

    def snapshot(self, history_ms: int) -> Snapshot:
        since_ms = int(time.time() * 1000) - history_ms
        self.client.forget_topics()
        metadata = self.client.metadata(None)
        nodes = self._nodes(metadata)
        described = self._described(metadata)
        led = {(topic.name, each.partition_index): each.leader_id for topic in described for each in topic.partitions}
        # Positions between starts and ends: a position below its start, or beyond its end, is no question of order.
        starts, _ = self._offsets(led, EARLIEST)
        groups = [
            group
            for node_id, connection in self.reached.items()
            for group in self._tried(f"groups of node {node_id}", lambda c=connection: groups_on(c), [])
        ]
        topics = self._topics(described, led, starts)
        held = [
            (topic.name, each.index)
            for topic in topics
            for each in topic.partitions
            if each.stable is not None and each.end is not None and each.stable < each.end
        ]
        transactions = self._transactions(held, led)
        configs = self._configs(GROUP, [each.name for each in groups if each.type == SHARE])
        groups = [replace(each, configs=configs.get(each.name, ({}, frozenset()))[0]) for each in groups]
        groups = with_deliveries(self.client, groups, self.unseen)
        history = self._history(since_ms, topics, led) if history_ms else History()
        remembered = tuple(self._observed())
        return Snapshot(
            int(time.time() * 1000),
            metadata.cluster_id or "",
            tuple(nodes),
            tuple(topics),
            tuple(sorted(groups, key=lambda each: each.name)),
            tuple(transactions),
            tuple(self.unseen),
            frozen(history.commits),
            frozen(history.generations),
            remembered,
        )

    def _tried(self, what: str, ask: Callable[[], T], otherwise: T) -> T:
        """The answer, or `otherwise` with a note that it could not be seen."""
        try:
            return ask()
        except ClientError as failure:
            self.unseen[f"{what}: {failure}"] = None
            return otherwise

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _nodes(self, metadata: Any) -> list[Node]:
        found: list[Node] = []
        for broker in sorted(metadata.brokers, key=lambda each: each.node_id):
            node = Node(broker.node_id, broker.host, broker.port, broker.rack)
            try:
                self.reached[node.id] = self.client.broker(node.id)
            except ClientError as failure:
                found.append(replace(node, unreachable=str(failure).rstrip(".")))
            else:
                disks = self._tried(f"disks of node {node.id}", lambda n=node: self._disks(n.id), ())
                found.append(replace(node, disks=disks))
        return found

    def _disks(self, node_id: int) -> tuple[Disk, ...]:
        """The log directories of a node; keeps the sizes of the partitions in them."""
        answer = self.reached[node_id].send(DescribeLogDirsRequest(None))
        check(answer.error_code, "DescribeLogDirs")
        for directory in answer.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        self.sizes[node_id, (topic.name, part.partition_index)] = part.partition_size
        return tuple(
            Disk(
                each.log_dir,
                each.total_bytes if each.total_bytes >= 0 else None,
                each.usable_bytes if each.usable_bytes >= 0 else None,
                ErrorCode(each.error_code).message.rstrip(".") if each.error_code else None,
            )
            for each in answer.results
        )

    # ---- topics ----------------------------------------------------------------------------------------------------

    def _described(self, metadata: Any) -> list[Any]:
        """The topics that the broker describes; notes the others."""
        for each in metadata.topics:
            if each.error_code:
                self.unseen[f"{UNSEEN_TOPIC}{each.name}: {ErrorCode(each.error_code).name}"] = None
        return [each for each in metadata.topics if not each.error_code]

    def _topics(
        self, described: list[Any], leaders: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
    ) -> list[Topic]:
        ends, _ = self._offsets(leaders, LATEST)
        stable, _ = self._offsets(leaders, LATEST, isolation=READ_COMMITTED)
        _, newest = self._offsets(leaders, MAX_TIMESTAMP)
        _, oldest = self._offsets(leaders, FIRST_RECORD)
        replicas: dict[TopicPartition, dict[int, int]] = {}
        for node_id in self.reached:
            hosted = {
                (topic.name, each.partition_index): node_id
                for topic in described
                for each in topic.partitions
                if node_id in each.replica_nodes and node_id != each.leader_id
            }
            for where, end in self._offsets(hosted, LATEST, replica=DEBUGGING_REPLICA)[0].items():
                replicas.setdefault(where, {})[node_id] = end
        configs = self._configs(TOPIC, [topic.name for topic in described])
        found: list[Topic] = []
        for topic in sorted(described, key=lambda each: each.name):
            partitions = [
                Partition(
                    each.partition_index,
                    each.leader_id,
                    tuple(each.replica_nodes),
                    tuple(each.isr_nodes),
                    each.leader_epoch,
                    starts.get(where),
                    ends.get(where),
                    stable.get(where),
                    replicas.get(where, {}),
                    oldest.get(where),
                    newest.get(where),
                    self.sizes.get((each.leader_id, where)),
                )
                for each in sorted(topic.partitions, key=lambda each: each.partition_index)
                for where in [(topic.name, each.partition_index)]
            ]
            effective, own = configs.get(topic.name, ({}, frozenset()))
            found.append(Topic(topic.name, tuple(partitions), topic.is_internal, effective, own))
        return found

    def _offsets(
        self, on: Mapping[TopicPartition, int], time_ms: int, *, isolation: int = 0, replica: int = CONSUMER_REPLICA
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Offsets and timestamps of partitions on nodes, by place; without those that a node does not report."""
        by_node: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        for (topic, index), node_id in on.items():
            if node_id in self.reached:
                rows = by_node.setdefault(node_id, {}).setdefault(topic, [])
                rows.append(ListOffsetsPartition(index, timestamp=time_ms))
        offsets: dict[TopicPartition, int] = {}
        times: dict[TopicPartition, int] = {}
        for node_id, topics in by_node.items():
            request = ListOffsetsRequest(
                replica, isolation, [ListOffsetsTopic(name, rows) for name, rows in topics.items()], 30_000
            )
            answer = self._tried(
                f"offsets on node {node_id}", lambda n=node_id, r=request: self.reached[n].send(r), None
            )
            for topic in () if answer is None else answer.topics:
                for part in topic.partitions:
                    if not part.error_code:
                        offsets[topic.name, part.partition_index] = part.offset
                        if part.timestamp >= 0:
                            times[topic.name, part.partition_index] = part.timestamp
        return offsets, times

    def _configs(self, kind: int, names: Iterable[str]) -> dict[str, tuple[dict[str, str], frozenset[str]]]:
        """The configs of resources, and the names of those that are set on the resource itself."""
        asked = [DescribeConfigsResource(kind, name, None) for name in names]
        if not asked or not self.reached:
            return {}
        connection = next(iter(self.reached.values()))
        answer = self._tried("configs", lambda: connection.send(DescribeConfigsRequest(asked)), None)
        found: dict[str, tuple[dict[str, str], frozenset[str]]] = {}
        for result in () if answer is None else answer.results:
            if result.error_code:
                self.unseen[f"configs of {result.resource_name}: {ErrorCode(result.error_code).name}"] = None
                continue
            values = {each.name: each.value for each in result.configs if each.value is not None}
            own = frozenset(each.name for each in result.configs if each.config_source == SET_ON_TOPIC)
            found[result.resource_name] = values, own
        return found

    # ---- what nodes remember ---------------------------------------------------------------------------------------

    def _observed(self) -> Iterator[Observed]:
        """The memory of each of Ottla's nodes; notes the nodes that do not report it."""
        silent: list[int] = []
        for node_id, answer in observations(self.client, self.reached).items():
            if isinstance(answer, UnsupportedVersionError):
                silent.append(node_id)
            elif isinstance(answer, ClientError):
                self.unseen[f"what node {node_id} remembers of its clients: {answer}"] = None
            else:
                yield observed(node_id, answer)
        if silent:
            checks = "the checks that need it (docs/doctor.md) cannot know"
            self.unseen[f"what {count(len(silent), 'node')} saw of clients, which only Ottla remembers: {checks}"] = (
                None
            )

    # ---- groups' past ----------------------------------------------------------------------------------------------

    def _history(self, since_ms: int, topics: list[Topic], leaders: Mapping[TopicPartition, int]) -> History:
        """The commits and generations since a time, up to the log ends of the topics."""
        history = History()
        own = {where: leader for where, leader in leaders.items() if where[0] == CONSUMER_OFFSETS_TOPIC}
        starts, _ = self._offsets(own, since_ms)
        ends = {
            (each.name, part.index): part.end for each in topics for part in each.partitions if part.end is not None
        }
        self._tried("groups' past", lambda: history.read(self.client, self.reached, windows(starts, ends, own)), None)
        if not history.is_whole:
            self.unseen[f"groups' past: more than {size(ROUNDS_MAX * ROUND_BYTES)}, or damaged"] = None
        return history

    # ---- transactions ----------------------------------------------------------------------------------------------

    def _transactions(
        self, held: Iterable[TopicPartition], leaders: Mapping[TopicPartition, int]
    ) -> list[OpenTransaction]:
        """The open transactions in partitions that hold readers of committed records back."""
        by_node: dict[int, dict[str, list[int]]] = {}
        for topic, index in held:
            if leaders[topic, index] in self.reached:
                by_node.setdefault(leaders[topic, index], {}).setdefault(topic, []).append(index)
        opened: list[OpenTransaction] = []
        for node_id, topics in by_node.items():
            request = DescribeProducersRequest([TopicRequest(name, rows) for name, rows in topics.items()])
            answer = self._tried(
                f"producers on node {node_id}", lambda n=node_id, r=request: self.reached[n].send(r), None
            )
            opened += [
                OpenTransaction(
                    (topic.name, part.partition_index),
                    each.producer_id,
                    each.current_txn_start_offset,
                    each.last_timestamp,
                )
                for topic in (() if answer is None else answer.topics)
                for part in topic.partitions
                if not part.error_code
                for each in part.active_producers
                if each.current_txn_start_offset >= 0
            ]
        if not opened:
            return []
        known = self._coordinated(sorted({each.producer_id for each in opened}))
        if known is None:
            return []
        return [
            replace(
                each,
                name=state.transactional_id,
                started_ms=state.transaction_start_time_ms,
                timeout_ms=state.transaction_timeout_ms,
            )
            if (state := known.get((each.producer_id, each.place))) is not None
            else each
            for each in opened
        ]

    def _coordinated(self, producer_ids: list[int]) -> dict[tuple[int, TopicPartition], Any] | None:
        """The states of transactions that coordinators know, by producer and partition; None if a coordinator does
        not answer: then nothing can be said about the others."""
        known: dict[tuple[int, TopicPartition], Any] = {}
        for node_id, connection in self.reached.items():

            def ask(connection: Connection = connection) -> list[Any]:
                listed = connection.send(ListTransactionsRequest(list(UNDER_WAY), producer_ids, -1))
                check(listed.error_code, "ListTransactions")
                names = [each.transactional_id for each in listed.transaction_states][:TRANSACTIONS_MAX]
                return connection.send(DescribeTransactionsRequest(names)).transaction_states if names else []

            states = self._tried(f"transactions of node {node_id}", ask, None)
            if states is None:
                return None
            for state in states:
                for topic in state.topics:
                    for index in topic.partitions:
                        known[state.producer_id, (topic.topic, index)] = state
        return known
