"""Every metric of docs/operations.md tells the truth: each is read at rest and in a state in which it must differ.

A scenario brings such a state about, in process, and reads the metrics that it is registered for. A metric that is
documented and has no scenario fails, and so does one that is exported and not documented.
"""

import asyncio
import errno
import json
import mmap
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla import __version__
from ottla.broker.cluster.membership import Joining
from ottla.broker.cluster.metadata import RowBatch, RowChange, planned
from ottla.broker.requests import Listening
from ottla.client import Client
from ottla.log.files import ReadError
from ottla.metadata.nodes import NodeState
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.records.record import Record, build_batch
from ottla.server import share_groups
from ottla.server.figures import LATE_MS, take
from ottla.server.metrics import render
from ottla.server.metrics_port import readiness
from tests.harness.node_pair import LEASE_MS, NodePair
from tests.harness.node_stage import NodeStage
from tests.harness.share.share_stage import ACCEPT, REJECT, ShareStage
from tests.server.test_metrics import Measured, fetch
from tests.share.test_share_nodes import KEEPS, READS, SharePair
from tests.txn.test_transactions_node import TOPIC, Producer

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
TRAFFIC = "kafka_server_brokertopicmetrics_"
LOG = "kafka_log_log_"
REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
GROUPS = "kafka_server_group_coordinator_metrics_"
REQUESTS = "kafka_network_requestmetrics_"
SHARED = "kafka_server_sharepartitionmetrics_"
SHARE_GROUP = "kafka_server_sharegroupmetrics_"
CONNECTIONS = "kafka_server_socket_server_metrics_connection_"
SESSIONS = "kafka_server_sharesessioncache_sharesessionscount"
LAG = "kafka_consumergroup_lag"
FIRST, SECOND = 1, 2


def text_of(source: NodeStage | Measured) -> str:
    if isinstance(source, Measured):
        return fetch(source)
    return render(asyncio.run(take(source.node, source.now))).decode()


class Reader:
    """Reads metrics, and keeps each value that one had."""

    def __init__(self) -> None:
        self.values: dict[str, set[float | None]] = {}

    def __call__(self, source: NodeStage | Measured, name: str, **labels: str) -> float | None:
        """The value now; None where there is no such sample."""
        found = [
            sample.value
            for family in text_string_to_metric_families(text_of(source))
            for sample in family.samples
            if sample.name == name and sample.labels.items() >= labels.items() and (labels or not sample.labels)
        ]
        value = found[0] if found else None
        self.values.setdefault(name, set()).add(value)
        return value


@dataclass(frozen=True, slots=True)
class World:
    """Where a scenario happens. `broker`: one with sockets, for what the server counts."""

    read: Reader
    directory: Path
    broker: Measured


Scenario = Callable[[World], None]
SCENARIOS: dict[str, Scenario] = {}


def shows(*names: str) -> Callable[[Scenario], Scenario]:
    """The scenario reads these metrics at rest and otherwise."""

    def register(scenario: Scenario) -> Scenario:
        assert not SCENARIOS.keys() & set(names)
        SCENARIOS.update(dict.fromkeys(names, scenario))
        return scenario

    return register


def documented() -> set[str]:
    """The names in the first column of the table of metrics, with what stands in braces written out."""
    _, _, table = DOCUMENT.read_text().partition("| metric | what it is |\n|---|---|\n")
    rows = [line for line in table.split("\n\n")[0].splitlines() if line.startswith("|")]
    return {
        "".join(parts)
        for row in rows
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
        for parts in product(*(part.split(",") for part in re.split(r"[{}]", name)))
    }


def exported(text: str) -> set[str]:
    """The metrics of a scrape, with those of the process under one name."""
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    return {"process_*" if name.startswith("process_") else name for name in names}


# ---- what nodes do -------------------------------------------------------------------------------------------------


def produce(stage: NodeStage, topic: str, value: bytes = b"v") -> int:
    batch = build_batch([Record(timestamp_ms=stage.now, value=value)])
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
    (answer,) = stage.ask(ProduceRequest(None, -1, 1_000, data), 9).responses[0].partition_responses
    return int(answer.error_code)


def fetch_from(stage: NodeStage, topic: str, offset: int) -> int:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    asked = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic, partitions=[part])])
    return int(stage.ask(asked, 11).responses[0].partitions[0].error_code)


def commit(stage: NodeStage, group: str, topic: str, offset: int) -> None:
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
    topics = [OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, offset)])]
    (answer,) = stage.ask(OffsetCommitRequest(group, topics=topics), 8).topics
    assert answer.partitions[0].error_code == E.NONE


def delete_before(stage: NodeStage, topic: str, offset: int) -> None:
    parts = [DeleteRecordsPartition(0, offset)]
    (answer,) = stage.ask(DeleteRecordsRequest([DeleteRecordsTopic(topic, parts)], 1_000)).topics
    assert answer.partitions[0].error_code == E.NONE


def place(pair: NodePair, topic: str, *replicas: int, **configs: str) -> None:
    """A topic with one partition on these nodes; the first of them leads."""
    given = [CreatableTopicConfig(name.replace("_", "."), value) for name, value in configs.items()]
    placed = CreatableTopic(topic, -1, -1, [CreatableReplicaAssignment(0, list(replicas))], given)
    (made,) = pair.ask(min(pair.stages), CreateTopicsRequest(topics=[placed])).topics
    assert made.error_code == E.NONE, made.error_message


def kill(pair: NodePair, node_id: int) -> None:
    """The node is gone, and the others have noticed."""
    del pair.stages[node_id]
    pair.away.add(node_id)
    pair.settle()
    pair.run(1_000)


def share_heartbeat(stage: NodeStage, topic: str) -> None:
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    answer = stage.ask(ShareGroupHeartbeatRequest("g", "m", 0, None, [topic]))
    assert answer.error_code == E.NONE, answer.error_message


# ---- scenarios -----------------------------------------------------------------------------------------------------


@shows(*(f"{TRAFFIC}{name}_total" for name in ("messagesin", "bytesin", "bytesout")))
@shows(*(f"{TRAFFIC}{failed}{kind}requests_total" for failed in ("total", "failed") for kind in ("produce", "fetch")))
def traffic(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    stage.create("t", 1, {"max.message.bytes": "200"})
    names = [name for name, scenario in SCENARIOS.items() if scenario is traffic]
    assert [read(stage, name, topic="t") for name in names] == [0] * len(names)
    assert [read(stage, name) for name in names] == [0] * len(names)
    assert produce(stage, "t") == E.NONE
    assert produce(stage, "t", bytes(300)) == E.MESSAGE_TOO_LARGE
    assert fetch_from(stage, "t", 0) == E.NONE
    assert fetch_from(stage, "t", 9) == E.OFFSET_OUT_OF_RANGE
    log = stage.node.replicas.by_name["t"].partitions[0].log
    wanted = {"messagesin": 1, "bytesin": log.size_bytes, "bytesout": log.size_bytes}
    wanted |= {"failedproducerequests": 1, "failedfetchrequests": 1}
    for name, value in wanted.items():
        assert read(stage, f"{TRAFFIC}{name}_total", topic="t") == value, name
        assert read(stage, f"{TRAFFIC}{name}_total") == value, name
    for kind in ("produce", "fetch"):
        assert read(stage, f"{TRAFFIC}total{kind}requests_total", topic="t") == 2, kind
        assert read(stage, f"{TRAFFIC}total{kind}requests_total") == 2, kind


@shows(f"{REQUESTS}requests_total", f"{REQUESTS}totaltimems")
def requests(world: World) -> None:
    read, broker = world.read, world.broker
    asked = {"request": "ListGroups"}
    assert read(broker, f"{REQUESTS}requests_total", **asked) is None
    assert read(broker, f"{REQUESTS}totaltimems", **asked, quantile="0.5") is None
    with Client(broker.bootstrap_servers) as client:
        client.send(ListGroupsRequest())
    assert read(broker, f"{REQUESTS}requests_total", **asked) == 1
    assert read(broker, f"{REQUESTS}totaltimems_count", **asked) == 1
    median, total = (
        read(broker, f"{REQUESTS}totaltimems", **asked, quantile="0.5"),
        read(broker, f"{REQUESTS}totaltimems_sum", **asked),
    )
    assert median is not None
    assert total is not None
    assert 0 < total < 2 * median + 1, "the quantile is exact to a power of two"


@shows(*(f"{CONNECTIONS}{name}" for name in ("count", "creation_total", "refused_total")))
def connections(world: World) -> None:
    read, broker = world.read, world.broker
    host, _, port = broker.bootstrap_servers.rpartition(":")
    before = {name: read(broker, f"{CONNECTIONS}{name}") or 0 for name in ("count", "creation_total", "refused_total")}
    quotas = broker.server.node.connection_quotas
    room = quotas.room
    with socket.create_connection((host, int(port)), 30) as one, Client(broker.bootstrap_servers) as client:
        client.send(ListGroupsRequest())  # behind the other one
        assert read(broker, f"{CONNECTIONS}count") == before["count"] + 2
        assert read(broker, f"{CONNECTIONS}creation_total") == before["creation_total"] + 2
        quotas.room = 2
        try:
            with socket.create_connection((host, int(port)), 30) as refused:
                assert refused.recv(1) == b""
        finally:
            quotas.room = room
        assert read(broker, f"{CONNECTIONS}refused_total") == before["refused_total"] + 1
        assert read(broker, f"{CONNECTIONS}count") == before["count"] + 2
        one.close()


@shows(*(f"{LOG}{name}" for name in ("size", "numlogsegments", "logstartoffset", "logendoffset")))
def logs(world: World) -> None:
    read, stage, at = world.read, NodeStage(world.directory), {"topic": "t", "partition": "0"}
    stage.create("t", 1, {"segment.bytes": "1048576"})
    names = ("size", "numlogsegments", "logstartoffset", "logendoffset")
    assert [read(stage, LOG + name, **at) for name in names] == [0, 0, 0, 0]
    for _ in range(3):
        stage.append("t", value=bytes(600_000))
    size = stage.node.replicas.by_name["t"].partitions[0].log.size_bytes
    assert [read(stage, LOG + name, **at) for name in names] == [size, 3, 0, 3]
    delete_before(stage, "t", 2)
    assert read(stage, LOG + "logstartoffset", **at) == 2


@shows(*(REPLICAS + name for name in ("partitioncount", "leadercount", "underreplicatedpartitions")))
@shows(REPLICAS + "underminisrpartitioncount")
@shows(*(CONTROLLER + name for name in ("activecontrollercount", "offlinepartitionscount")))
@shows(*(CONTROLLER + name for name in ("globaltopiccount", "globalpartitioncount")))
def a_node_is_killed(world: World) -> None:
    """The first node is the controller; what is on both is led by it, and one topic is on it alone."""
    read, pair = world.read, NodePair(world.directory)
    first, second = pair.stages[FIRST], pair.stages[SECOND]
    names = [name for name, scenario in SCENARIOS.items() if scenario is a_node_is_killed]
    active = CONTROLLER + "activecontrollercount"
    assert {name: read(first, name) for name in names} == {**dict.fromkeys(names, 0), active: 1}
    assert {name: read(second, name) for name in names} == dict.fromkeys(names, 0)
    place(pair, "both", FIRST, SECOND, min_insync_replicas="2")
    place(pair, "alone", FIRST)
    place(pair, "other", SECOND)
    healthy = {
        CONTROLLER + "globaltopiccount": 3,
        CONTROLLER + "globalpartitioncount": 3,
        CONTROLLER + "offlinepartitionscount": 0,
    }
    healthy |= {REPLICAS + "underreplicatedpartitions": 0, REPLICAS + "underminisrpartitioncount": 0}
    here = {REPLICAS + "partitioncount": 2, REPLICAS + "leadercount": 2, active: 1}
    assert {name: read(first, name) for name in names} == {**healthy, **here}
    here = {REPLICAS + "partitioncount": 2, REPLICAS + "leadercount": 1, active: 0}
    assert {name: read(second, name) for name in names} == {**healthy, **here}
    kill(pair, FIRST)
    here = {REPLICAS + "partitioncount": 2, REPLICAS + "leadercount": 2, active: 1}
    here |= {REPLICAS + "underreplicatedpartitions": 1, REPLICAS + "underminisrpartitioncount": 1}
    assert {name: read(second, name) for name in names} == {**healthy, **here, CONTROLLER + "offlinepartitionscount": 1}
    # The first one stood still and knows nothing of it: once its lease is over it claims nothing any more.
    first.now += LEASE_MS + 1
    assert [read(first, name) for name in (active, REPLICAS + "leadercount")] == [0, 0]


@shows(REPLICAS + "offlinereplicacount")
def a_log_fails(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    stage.create("t", 2)
    names = (REPLICAS + "offlinereplicacount", CONTROLLER + "offlinepartitionscount", REPLICAS + "leadercount")
    assert [read(stage, name) for name in names] == [0, 0, 2]
    stage.node.replicas.by_name["t"].partitions[1].log.durability.failed = "no space"
    assert [read(stage, name) for name in names] == [1, 1, 1]


@shows("ottla_certificate_left_seconds")
def a_certificate_expires(world: World) -> None:
    read, stage, name = world.read, NodeStage(world.directory), "ottla_certificate_left_seconds"
    assert read(stage, name, listener="SSL") is None
    until_ms = stage.node.wall.at(stage.now) + 90_000
    stage.node.listening = (Listening("SSL", "h", 9092, None, until_ms), Listening("PLAINTEXT", "h", 9093, None))
    assert read(stage, name, listener="SSL") == 90
    assert read(stage, name, listener="PLAINTEXT") is None
    stage.now += 100_000
    assert read(stage, name, listener="SSL") == -10


@shows("ottla_log_damaged")
def a_batch_is_damaged(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    stage.create("t")
    assert read(stage, "ottla_log_damaged") == 0
    stage.append("t")
    partition = stage.node.replicas.by_name["t"].partitions[0]
    path = Path(f"{partition.log.segments[0].path}.log")
    octets = bytearray(path.read_bytes())
    octets[-2] ^= 1
    path.write_bytes(octets)
    stage.run(60_000 + 10_000)
    assert read(stage, "ottla_log_damaged") == 1


@shows("ottla_log_unreadable")
def a_place_can_not_be_read(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    stage.create("t")
    stage.append("t")
    assert read(stage, "ottla_log_unreadable") == 0
    partition = stage.node.replicas.by_name["t"].partitions[0]
    error = ReadError(OSError(errno.EIO, "Input/output error"), f"{partition.log.segments[0].path}.log", 0)
    stage.node.failures.read_failed(partition, error)
    assert read(stage, "ottla_log_unreadable") == 1
    stage.run(6_000)
    assert read(stage, "ottla_log_unreadable") == 0


@shows(GROUPS + "group_count", GROUPS + "offset_count", "kafka_consumergroup_current_offset", LAG)
def groups(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory, offsets_topic_num_partitions="1")
    stage.create("t")
    at = {"consumergroup": "g", "topic": "t", "partition": "0"}
    classic = {"protocol": "classic", "state": "Empty"}
    assert read(stage, GROUPS + "group_count", **classic) is None
    assert read(stage, GROUPS + "offset_count") == 0
    assert read(stage, "kafka_consumergroup_current_offset", **at) is None
    assert read(stage, LAG, **at) is None
    for _ in range(7):
        stage.append("t")
    commit(stage, "g", "t", 2)
    assert read(stage, GROUPS + "group_count", **classic) == 1
    assert read(stage, GROUPS + "offset_count") == 1
    assert read(stage, "kafka_consumergroup_current_offset", **at) == 2
    assert read(stage, LAG, **at) == 5
    delete_before(stage, "t", 4)
    assert read(stage, LAG, **at) == 3, "what is deleted can't be read any more"
    commit(stage, "g", "t", 100)
    assert read(stage, LAG, **at) == 0, "never below 0"


@shows(GROUPS + "share_group_count")
def share_group_states(world: World) -> None:
    read, stage = world.read, ShareStage(world.directory)
    stage.topic("t")
    assert read(stage, GROUPS + "share_group_count", state="Stable") is None
    share_heartbeat(stage, "t")
    assert read(stage, GROUPS + "share_group_count", state="Stable") == 1
    assert read(stage, GROUPS + "group_count", protocol="share", state="Stable") == 1


@shows("kafka_cluster_partition_laststableoffsetlag", "ottla_transactions", "ottla_oldest_open_transaction_seconds")
@shows(REPLICAS + "partitionswithlatetransactionscount")
def transactions(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    stage.create(TOPIC, 2)
    late, oldest = REPLICAS + "partitionswithlatetransactionscount", "ottla_oldest_open_transaction_seconds"
    lag, at = "kafka_cluster_partition_laststableoffsetlag", {"topic": TOPIC, "partition": "0"}
    assert [read(stage, lag, **at), read(stage, late), read(stage, oldest)] == [0, 0, 0]
    assert read(stage, "ottla_transactions", state="Ongoing") is None
    producer = Producer(stage)
    producer.add()
    assert producer.write(b"open") == E.NONE
    stage.now += 5_000
    assert [read(stage, lag, **at), read(stage, late), read(stage, oldest)] == [1, 0, 5]
    assert read(stage, "ottla_transactions", state="Ongoing") == 1
    stage.now += stage.node.settings["transaction.max.timeout.ms"] + LATE_MS
    assert read(stage, late) == 1


@shows(*(SHARED + name for name in ("inflightmessagecount", "inflightbatchcount", "startoffset")))
@shows(SHARED + "acquisitionlocktimeout_total", "kafka_sharegroup_lag", SESSIONS)
@shows(*(f"{SHARE_GROUP}{name}_total" for name in ("recordacknowledgements", "deadletterqueuerecordcount")))
@shows("ottla_share_group_archiving")
def share_groups_hold_records(world: World) -> None:
    read, stage, at = world.read, ShareStage(world.directory), {"group": "g", "topic": "jobs", "partition": "0"}
    topic = stage.topic()
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    stage.configure("g", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="dlq.jobs")
    stage.produce(10)
    per_partition = [SHARED + name for name in ("inflightmessagecount", "startoffset", "acquisitionlocktimeout_total")]
    per_partition.append("kafka_sharegroup_lag")
    assert [read(stage, name, **at) for name in per_partition] == [None] * 4
    assert [read(stage, SHARED + "inflightbatchcount", **at), read(stage, SESSIONS)] == [None, 0]
    letters, archiving = SHARE_GROUP + "deadletterqueuerecordcount_total", "ottla_share_group_archiving"
    accepted = SHARE_GROUP + "recordacknowledgements_total"
    assert [read(stage, name, group="g") for name in (letters, archiving, accepted)] == [None] * 3
    member = stage.member(topic)
    member.fetch()
    assert [read(stage, name, **at) for name in per_partition] == [10, 0, 0, 10]
    assert [read(stage, SHARED + "inflightbatchcount", **at), read(stage, SESSIONS)] == [1, 1]
    assert member.said((0, 3, [ACCEPT]), (4, 5, [REJECT])) == E.NONE
    assert [read(stage, name, **at) for name in per_partition] == [4, 4, 0, 6]
    assert read(stage, accepted, group="g", ackType="accept") == 4
    assert [read(stage, name, group="g") for name in (letters, archiving)] == [0, 2]
    stage.run()
    assert [read(stage, name, group="g") for name in (letters, archiving)] == [2, 0]
    stage.run(60_000)
    assert [read(stage, name, **at) for name in per_partition] == [0, 6, 4, 4]


@shows("ottla_build_info")
def two_nodes(world: World) -> None:
    pair, name = NodePair(world.directory), "ottla_build_info"
    shown = [world.read(pair.stages[node], name, node_id="1", version=__version__) for node in (FIRST, SECOND)]
    assert shown == [1, None]


@shows("process_*")
def the_process_works(world: World) -> None:
    read, stage = world.read, NodeStage(world.directory)
    names = ("process_open_fds", "process_cpu_seconds_total", "process_virtual_memory_bytes")
    before = [read(stage, name) or 0 for name in names]
    with open(os.devnull) as _, mmap.mmap(-1, 1 << 26):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        after = [read(stage, name) or 0 for name in names]
    assert all(then > once for once, then in zip(before, after, strict=True))
    world.read.values["process_*"] = {before[0], after[0]}


# ---- the table -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Measured]:
    with Measured() as started:
        yield started


@pytest.mark.parametrize("scenario", dict.fromkeys(SCENARIOS.values()), ids=lambda scenario: scenario.__name__)
def test_a_metric_differs_where_it_must(scenario: Scenario, tmp_path: Path, broker: Measured) -> None:
    world = World(Reader(), tmp_path, broker)
    scenario(world)
    alike = {name for name, made in SCENARIOS.items() if made is scenario and len(world.read.values[name]) < 2}
    assert not alike, "the scenario shows one value of these only"


def test_each_documented_metric_has_a_scenario_and_each_exported_one_is_documented(tmp_path: Path) -> None:
    assert documented() == SCENARIOS.keys()
    assert exported(text_of(NodeStage(tmp_path))) == documented()


# ---- what a scrape leaves out, and leaves alone --------------------------------------------------------------------


def test_a_scrape_creates_nothing(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    before = replace(stage.node.coordinators.in_use)
    assert text_of(stage)
    assert share_groups.as_json(share_groups.take(stage.node, stage.now), {}) == b'{\n "groups": []\n}\n'
    assert stage.node.coordinators.in_use == before
    assert not stage.node.image.topics


def test_the_metrics_port_loads_no_coordinator() -> None:
    """Each would cost a node at rest some tenth of a second at its start."""
    rooms = ("ottla.groups", "ottla.share", "ottla.txn", "ottla.replica", "ottla.broker.coordinators")
    code = "import json, sys, ottla.server.metrics; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in json.loads(ran.stdout) if name.startswith(rooms)]


def test_the_lag_of_a_group_is_right_wherever_its_coordinator_is(tmp_path: Path) -> None:
    """The second node coordinates the group; the first one leads what it reads."""
    pair = NodePair(tmp_path)
    place(pair, CONSUMER_OFFSETS_TOPIC, SECOND)
    place(pair, "copied", FIRST, SECOND)
    place(pair, "elsewhere", FIRST)
    first, second = pair.stages[FIRST], pair.stages[SECOND]
    read, at = Reader(), {"consumergroup": "g", "partition": "0"}
    for topic in ("copied", "elsewhere"):
        for _ in range(5):
            first.append(topic)
        pair.settle()
        commit(second, "g", topic, 2)
    pair.run(1_000)
    assert not read(first, TRAFFIC + "bytesout_total", topic="copied"), "followers are no clients"
    assert read(second, LAG, **at, topic="copied") == 3, "the high watermark of a replica in sync"
    assert read(second, LAG, **at, topic="elsewhere") is None, "nothing rather than something wrong"
    assert read(second, "kafka_consumergroup_current_offset", **at, topic="elsewhere") == 2
    assert read(first, LAG, **at, topic="copied") is None, "it does not coordinate the group"


def test_a_share_group_that_is_coordinated_elsewhere_is_not_dead(tmp_path: Path) -> None:
    pair = SharePair(tmp_path)
    pair.make(CONSUMER_OFFSETS_TOPIC, KEEPS)
    pair.produce(b"a")
    member = pair.member("m")
    pair.fetch(member)
    stage = pair.stages[READS]

    def shown() -> tuple[object, object]:
        (group,) = json.loads(share_groups.as_json(share_groups.take(stage.node, stage.now), {}))["groups"]
        return group["state"], group["coordinator"]

    assert shown() == (None, KEEPS)
    assert Reader()(stage, GROUPS + "share_group_count", state="Dead") is None


# ---- whether the node may be sent clients --------------------------------------------------------------------------


def test_a_node_is_ready_while_its_cluster_counts_on_it(tmp_path: Path) -> None:
    joining = Joining("127.0.0.1", 9001, "life-1", LEASE_MS)
    stage = NodeStage(tmp_path, joining=joining, node_id="1")

    def answer() -> str:
        status, sentence = readiness(stage.node, stage.now)
        assert status.startswith("200" if sentence == "ready\n" else "503")
        return sentence.strip()

    def beat() -> None:
        membership.confirmed(stage.now)
        membership.seen(stage.now, {1: "life-1"})
        stage.run(10)

    membership = stage.node.membership
    assert membership is not None
    assert answer() == "the node has yet to register with the cluster"
    stage.settle()
    assert answer() == "the controller has yet to admit the node to the cluster"
    beat()
    assert answer() == "ready"
    stage.now += LEASE_MS + 1
    assert answer().startswith("the node has not reached the metadata store")
    beat()
    membership.leave(stage.now)
    stage.settle()
    assert answer() == "the node is leaving the cluster"
    record = stage.node.image.nodes["1"]
    row = RowChange("nodes/1", replace(record, state=NodeState.FENCED, version=0), record.version)
    stage.change(planned(RowBatch([row])))
    assert answer() == "the cluster has fenced the node"
