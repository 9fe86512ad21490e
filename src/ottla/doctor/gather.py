"""Makes a snapshot of a cluster, on Ottla and on any Kafka, with Kafka's protocol alone.

It never joins a group, commits an offset, or creates a topic. The number of requests depends on the number of nodes,
not on that of topics or groups: up to six a node of Ottla, which answers several questions in one request, and up to
twenty a node of another Kafka. `Snapshot.unseen` names the facts that the cluster does not serve, or that the user may
not see.

The order matters where it decides whether two facts fit together. First come the starts of partitions and the list of
groups, then the groups' positions, then the ends of partitions: a position below its start, or beyond its end, is no
question of order.

Sources: ListOffsets with replica id -2 (Kafka's debugging consumer, ReplicaManager.fetchOffset) returns a follower's
log end; KIP-827 (disk sizes), KIP-664 (transactions), KIP-709 (offsets of many groups).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ottla.client.client import EARLIEST, LATEST, MAX_TIMESTAMP, Client
from ottla.client.errors import ClientError, UnsupportedVersionError
from ottla.client.observations import EVERYTHING, is_of_earlier_version
from ottla.client.offsets import DEBUGGING_REPLICA, offsets_requests
from ottla.client.read_together import Question
from ottla.client.transactions import READ_COMMITTED
from ottla.doctor.asking import Answers, Questions, ask, seen
from ottla.doctor.deliveries import Flights
from ottla.doctor.groups import Listed, groups_in, listed_in, questions_of
from ottla.doctor.history import ROUND_BYTES, ROUNDS_MAX, History, frozen, windows
from ottla.doctor.observed import Observed
from ottla.doctor.open_transactions import LISTED, OpenTransactions
from ottla.doctor.remembered import observed
from ottla.doctor.snapshot import SHARE, UNSEEN_TOPIC, Disk, Group, Node, Partition, Snapshot, Topic, TopicPartition
from ottla.doctor.words import count, size
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest

SET_ON_TOPIC: Final = 1
"""The config source of a topic's own config (ConfigSource.DYNAMIC_TOPIC_CONFIG)."""
FIRST_RECORD: Final = 0
"""As a time: the first record since 1970, with its timestamp."""
Configs: TypeAlias = tuple[dict[str, str], frozenset[str]]
"""The values of a resource, and the names of those that are set on the resource itself."""


def gather(client: Client, *, history_ms: int = 0, metadata: Any = None, with_reasons: bool = True) -> Snapshot:
    """A snapshot of the cluster, with the commits and generations of so many milliseconds. Raises ClientError if no
    broker answers. `metadata`: an answer for all topics, if one is known; it may be some seconds old. `with_reasons`:
    whether to read the reasons that members of share groups gave."""
    return _Gathering(client, with_reasons).snapshot(history_ms, metadata)


class _Gathering:
    """The state of one snapshot in the making."""

    def __init__(self, client: Client, with_reasons: bool) -> None:
        self.client = client
        self.with_reasons = with_reasons
        self.unseen: dict[str, None] = {}
        self.reached: list[int] = []
        self.sizes: dict[tuple[int, TopicPartition], int] = {}

    def snapshot(self, history_ms: int, metadata: Any) -> Snapshot:
        since_ms = int(time.time() * 1000) - history_ms
        if metadata is None:
            self.client.forget_topics()
            metadata = self.client.metadata(None)
        nodes = self._nodes(metadata)
        described = self._described(metadata)
        leaders = {
            (topic.name, each.partition_index): each.leader_id for topic in described for each in topic.partitions
        }
        first = self._ask(self._starts(leaders))
        nodes = [replace(each, disks=self._disks(each.id, first)) for each in nodes]
        listed = {each: self._listed(each, first) for each in self.reached}
        groups = self._groups(listed, self._ask({node_id: questions_of(each) for node_id, each in listed.items()}))
        last = self._ask(self._ends(described, leaders))
        share_groups = [each.name for each in groups if each.type == SHARE]
        broker = (ConfigResourceType.BROKER, str(self.reached[0] if self.reached else 0))
        configs = self._configs(
            [
                broker,
                *((ConfigResourceType.TOPIC, each.name) for each in described),
                *((ConfigResourceType.GROUP, each) for each in share_groups),
            ]
        )
        topics = self._topics(described, first, last, configs)
        held = [
            (topic.name, each.index)
            for topic in topics
            for each in topic.partitions
            if each.stable is not None and each.end is not None and each.stable < each.end
        ]
        flights = Flights(groups, leaders, self.unseen, with_reasons=self.with_reasons)
        listings = {node_id: each["under way"] for node_id, each in last.items()}
        transactions = OpenTransactions(held, leaders, listings, self.unseen)
        more = self._ask(
            {node_id: {**flights.questions(node_id), **transactions.questions(node_id)} for node_id in self.reached}
        )
        groups = [
            replace(each, configs=configs.get((ConfigResourceType.GROUP, each.name), ({}, frozenset()))[0])
            for each in flights.found(more)
        ]
        opened = transactions.found(more, self._ask)
        history = self._history(since_ms, topics, leaders) if history_ms else History()
        remembered = tuple(self._observed(last))
        return Snapshot(
            int(time.time() * 1000),
            metadata.cluster_id or "",
            tuple(nodes),
            tuple(topics),
            tuple(sorted(groups, key=lambda each: each.name)),
            tuple(opened),
            tuple(self.unseen),
            frozen(history.commits),
            frozen(history.generations),
            remembered,
            int(configs.get(broker, ({}, frozenset()))[0].get("default.replication.factor", "0")),
        )

    def _ask(self, questions: Questions) -> Answers:
        return ask(self.client, questions)

    def _seen(self, answer: Any, what: str) -> Any:
        """The answer; None, with a note that it could not be seen, if it is an error."""
        return seen(answer, what, self.unseen)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _nodes(self, metadata: Any) -> list[Node]:
        self.client.know_brokers(metadata)
        found: list[Node] = []
        for broker in sorted(metadata.brokers, key=lambda each: each.node_id):
            node = Node(broker.node_id, broker.host, broker.port, broker.rack)
            try:
                self.client.broker(node.id)
                self.reached.append(node.id)
            except ClientError as failure:
                node = replace(node, unreachable=str(failure).rstrip("."))
            found.append(node)
        return found

    def _disks(self, node_id: int, answers: Answers) -> tuple[Disk, ...]:
        """The log directories of a node; keeps the sizes of the partitions in them."""
        if node_id not in answers:
            return ()
        answer = self._seen(answers[node_id]["disks"], f"disks of node {node_id}")
        if answer is None:
            return ()
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

    # ---- groups ----------------------------------------------------------------------------------------------------

    def _listed(self, node_id: int, answers: Answers) -> list[Listed]:
        """The groups that a node coordinates."""
        answer = self._seen(answers[node_id]["groups"], f"groups of node {node_id}")
        return [] if answer is None else listed_in(answer)

    def _groups(self, listed: Mapping[int, list[Listed]], answers: Answers) -> list[Group]:
        """The groups of all nodes; none of a node that does not describe all that it is asked for."""
        found: list[Group] = []
        for node_id, rows in listed.items():
            known = {name: self._seen(each, f"groups of node {node_id}") for name, each in answers[node_id].items()}
            if None not in known.values():
                found += groups_in(rows, known)
        return found

    # ---- topics ----------------------------------------------------------------------------------------------------

    def _described(self, metadata: Any) -> list[Any]:
        """The topics that the broker describes; notes the others."""
        for each in metadata.topics:
            if each.error_code:
                self.unseen[f"{UNSEEN_TOPIC}{each.name}: {ErrorCode(each.error_code).name}"] = None
        return [each for each in metadata.topics if not each.error_code]

    def _starts(self, leaders: Mapping[TopicPartition, int]) -> Questions:
        """The questions that come first."""
        starts = offsets_requests(leaders, EARLIEST)
        return {
            node_id: {
                **({"starts": starts[node_id]} if node_id in starts else {}),
                "disks": DescribeLogDirsRequest(None),
                "groups": ListGroupsRequest(),
            }
            for node_id in self.reached
        }

    def _ends(self, described: list[Any], leaders: Mapping[TopicPartition, int]) -> Questions:
        """The questions that come after groups' positions."""
        asked: dict[int, dict[Hashable, Question]] = {node_id: {} for node_id in self.reached}
        of_leaders = {
            "ends": offsets_requests(leaders, LATEST),
            "stable": offsets_requests(leaders, LATEST, isolation=READ_COMMITTED),
            "newest": offsets_requests(leaders, MAX_TIMESTAMP),
            "oldest": offsets_requests(leaders, FIRST_RECORD),
        }
        for name, requests in of_leaders.items():
            for node_id in asked.keys() & requests.keys():
                asked[node_id][name] = requests[node_id]
        for node_id in self.reached:
            hosted = {
                (topic.name, each.partition_index): node_id
                for topic in described
                for each in topic.partitions
                if node_id in each.replica_nodes and node_id != each.leader_id
            }
            if hosted:
                asked[node_id]["replicas"] = offsets_requests(hosted, LATEST, replica=DEBUGGING_REPLICA)[node_id]
            asked[node_id]["under way"] = LISTED
            asked[node_id]["remembered"] = EVERYTHING
        return asked

    def _topics(
        self, described: list[Any], first: Answers, last: Answers, configs: Mapping[tuple[int, str], Configs]
    ) -> list[Topic]:
        starts, _ = self._offsets(first, "starts")
        ends, _ = self._offsets(last, "ends")
        stable, _ = self._offsets(last, "stable")
        _, newest = self._offsets(last, "newest")
        _, oldest = self._offsets(last, "oldest")
        replicas: dict[TopicPartition, dict[int, int]] = {}
        for node_id, answers in last.items():
            for where, end in self._offsets({node_id: answers}, "replicas")[0].items():
                replicas.setdefault(where, {})[node_id] = end
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
            effective, own = configs.get((ConfigResourceType.TOPIC, topic.name), ({}, frozenset()))
            found.append(Topic(topic.name, tuple(partitions), topic.is_internal, effective, own))
        return found

    def _offsets(self, answers: Answers, name: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Offsets and timestamps in the answers to a question, by place; without those that a node does not report."""
        offsets: dict[TopicPartition, int] = {}
        times: dict[TopicPartition, int] = {}
        for node_id, each in answers.items():
            answer = self._seen(each[name], f"offsets on node {node_id}") if name in each else None
            for topic in () if answer is None else answer.topics:
                for part in topic.partitions:
                    if not part.error_code:
                        offsets[topic.name, part.partition_index] = part.offset
                        if part.timestamp >= 0:
                            times[topic.name, part.partition_index] = part.timestamp
        return offsets, times

    def _configs(self, resources: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Configs]:
        """The configs of resources, and the names of those that are set on the resource itself."""
        asked = [DescribeConfigsResource(kind, name, None) for kind, name in resources]
        if not asked or not self.reached:
            return {}
        try:
            answer = self.client.broker(self.reached[0]).send(DescribeConfigsRequest(asked))
        except ClientError as failure:
            self.unseen[f"configs: {failure}"] = None
            return {}
        found: dict[tuple[int, str], Configs] = {}
        for result in answer.results:
            if result.error_code:
                if result.resource_type == ConfigResourceType.BROKER:
                    continue
                self.unseen[f"configs of {result.resource_name}: {ErrorCode(result.error_code).name}"] = None
                continue
            values = {each.name: each.value for each in result.configs if each.value is not None}
            own = frozenset(each.name for each in result.configs if each.config_source == SET_ON_TOPIC)
            found[result.resource_type, result.resource_name] = values, own
        return found

    # ---- what nodes remember ---------------------------------------------------------------------------------------

    def _observed(self, answers: Answers) -> Iterator[Observed]:
        """The memory of each of Ottla's nodes; notes the nodes that do not report it."""
        silent, earlier = 0, 0
        for node_id, each in answers.items():
            answer = each["remembered"]
            if isinstance(answer, UnsupportedVersionError):
                silent += 1
            elif self._seen(answer, f"what node {node_id} remembers of its clients") is not None:
                yield observed(node_id, answer)
                with suppress(ClientError):
                    earlier += is_of_earlier_version(self.client, node_id)
        if silent:
            checks = "the checks that need it (docs/doctor.md) cannot know"
            self.unseen[f"what {count(silent, 'node')} saw of clients, which only Ottla remembers: {checks}"] = None
        if earlier:
            what = f"changes of in-sync replicas and of configs on {count(earlier, 'node')}"
            self.unseen[f"{what}, whose version of Ottla does not remember them"] = None

    # ---- groups' past ----------------------------------------------------------------------------------------------

    def _history(self, since_ms: int, topics: list[Topic], leaders: Mapping[TopicPartition, int]) -> History:
        """The commits and generations since a time, up to the log ends of the topics."""
        history = History()
        own = {
            where: leader
            for where, leader in leaders.items()
            if where[0] == CONSUMER_OFFSETS_TOPIC and leader in self.reached
        }
        requests = offsets_requests(own, since_ms)
        starts, _ = self._offsets(self._ask({node: {"since": each} for node, each in requests.items()}), "since")
        ends = {
            (each.name, part.index): part.end for each in topics for part in each.partitions if part.end is not None
        }
        try:
            reached = {node_id: self.client.broker(node_id) for node_id in set(own.values())}
            history.read(self.client, reached, windows(starts, ends, own))
        except ClientError as failure:
            self.unseen[f"groups' past: {failure}"] = None
        if not history.is_whole:
            self.unseen[f"groups' past: more than {size(ROUNDS_MAX * ROUND_BYTES)}, or damaged"] = None
        return history
