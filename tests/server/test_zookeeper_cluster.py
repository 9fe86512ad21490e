"""Three nodes over three ZooKeeper servers, as on three machines: leaders of both are killed under load.

One start for all tests; each leaves the cluster whole.
"""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.cluster.members import NOBODY
from ottla.client import Client
from ottla.client.errors import ConnectionClosedError
from ottla.metadata.store import CommitUnknownError, Put, StoreError
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon
from tests.harness.wires import Wire
from tests.harness.zookeepers import ZooKeepers, fresh, opened

SESSION_MS = 2500
pytestmark = pytest.mark.slow("tests/cli/test_move_metadata.py::test_one_node_becomes_three_without_losing_anything")


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeepers]:
    with ZooKeepers(3) as servers:
        yield servers


@pytest.fixture(scope="module")
def place(ensemble: ZooKeepers) -> str:
    return fresh(ensemble)


@pytest.fixture(scope="module")
def cluster(place: str) -> Iterator[EmbeddedCluster]:
    settings = {"min.insync.replicas": 2, "broker.session.timeout.ms": SESSION_MS}
    with EmbeddedCluster(settings=settings, metadata=place) as nodes:
        yield nodes


@contextmanager
def killed_leader(ensemble: ZooKeepers) -> Iterator[None]:
    """The server that leads the ensemble is killed for the length of the block."""
    leader = ensemble.leader()
    leader.kill()
    try:
        yield
    finally:
        leader.begin()
        leader.wait()


def ask(cluster: EmbeddedCluster, node: int, message: Any) -> Any:
    with Client(cluster.address_of(node)) as client:
        return client.send(message)


def create(cluster: EmbeddedCluster, name: str, partitions: int) -> None:
    """Create a topic, as clients do: again while ZooKeeper does not answer the node."""

    def made() -> bool:
        (topic,) = ask(cluster, 1, CreateTopicsRequest(topics=[CreatableTopic(name, partitions, 3)])).topics
        assert topic.error_code in (0, E.KAFKA_STORAGE_ERROR, E.TOPIC_ALREADY_EXISTS), topic.error_message
        return topic.error_code != E.KAFKA_STORAGE_ERROR

    soon(made)
    soon(lambda: all(len(parts_of(cluster, by, name)) == partitions for by in cluster.nodes))


def parts_of(cluster: EmbeddedCluster, by: int, name: str) -> list[Any]:
    topics = {topic.name: topic for topic in ask(cluster, by, MetadataRequest(topics=None)).topics}
    return topics[name].partitions if name in topics else []


def in_sync(cluster: EmbeddedCluster, by: int, name: str) -> bool:
    return all(len(part.isr_nodes) == 3 and part.leader_id > 0 for part in parts_of(cluster, by, name))


class Load:
    """Produces numbers with acks=all until told otherwise, and knows which of them were acknowledged."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1, "enable.idempotence": True}
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        number = 0
        while not self._over.is_set():
            self._producer.produce(self.topic, key=str(number), on_delivery=self._delivered)
            self._producer.poll(0)
            self._over.wait(0.01)
            number += 1
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(int(message.key()))
        else:
            self.failed.append(str(error))

    def goes_on(self) -> None:
        """Return when more is acknowledged than was."""
        before = len(self.acknowledged)
        soon(lambda: len(self.acknowledged) > before + 20)

    def end(self) -> set[int]:
        self.__exit__()
        assert self.failed == []
        return self.acknowledged

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def read_all(cluster: EmbeddedCluster, topic: str, partitions: int) -> list[int]:
    """Every key that is in the topic now."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    left = {place.partition: consumer.get_watermark_offsets(place, 30)[1] for place in places}
    left = {partition: end for partition, end in left.items() if end}
    consumer.assign(places)
    keys: list[int] = []
    until = time.monotonic() + 60
    while left:
        assert time.monotonic() < until, left
        message: Any = consumer.poll(0.2)
        if message is not None and message.error() is None:
            keys.append(int(message.key()))
            if message.offset() + 1 >= left.get(message.partition(), 1 << 60):
                del left[message.partition()]
    consumer.close()
    return keys


def test_nothing_acknowledged_is_lost_when_a_leader_is_killed_and_it_comes_back(cluster: EmbeddedCluster) -> None:
    create(cluster, "kept", 2)
    with Load(cluster, "kept") as load:
        load.goes_on()
        soon(lambda: leader(cluster, 1, "kept") != NOBODY)
        victim = parts_of(cluster, 1, "kept")[0].leader_id
        alive = next(node for node in cluster.nodes if node != victim)
        cluster.kill(victim)
        soon(lambda: victim not in [part.leader_id for part in parts_of(cluster, alive, "kept")])
        load.goes_on()
        cluster.start_node(victim)
        soon(lambda: in_sync(cluster, alive, "kept"))
        load.goes_on()
        acknowledged = load.end()
    found = read_all(cluster, "kept", 2)
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))


def test_a_node_in_a_copy_of_a_data_directory_is_refused_while_the_other_one_runs(
    cluster: EmbeddedCluster, place: str, tmp_path: Path
) -> None:
    create(cluster, "copied", 1)
    soon(lambda: in_sync(cluster, 1, "copied"))
    shutil.copytree(Path(cluster.directory, "1"), tmp_path / "copy")
    command = [sys.executable, "-m", "ottla", "serve", "--node-id", "1", "--data", str(tmp_path / "copy")]
    command += ["--listen", "127.0.0.1:0", "--metadata", place]
    copied = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert copied.returncode == 1
    assert f"Node 1 of this cluster runs already, at {cluster.address_of(1)}. Stop it" in copied.stderr
    assert cluster.runs(1)
    assert in_sync(cluster, 2, "copied")


def test_the_cluster_goes_on_when_the_leader_of_zookeeper_is_killed(
    cluster: EmbeddedCluster, ensemble: ZooKeepers
) -> None:
    create(cluster, "goes-on", 1)
    with Load(cluster, "goes-on") as load:
        load.goes_on()
        with killed_leader(ensemble):
            load.goes_on()
            create(cluster, "made-after", 1)  # whoever leads ZooKeeper now
            victim = ask(cluster, 1, DescribeClusterRequest()).controller_id
            alive = next(node for node in cluster.nodes if node != victim)
            cluster.kill(victim)
            soon(lambda: ask(cluster, alive, DescribeClusterRequest()).controller_id not in (victim, -1))
            load.goes_on()
        cluster.start_node(victim)
        soon(lambda: in_sync(cluster, alive, "goes-on"))
        acknowledged = load.end()
    assert acknowledged <= set(read_all(cluster, "goes-on", 1))


def test_a_node_that_stands_still_is_given_up_and_comes_back(cluster: EmbeddedCluster) -> None:
    """Its port accepts connections all the while: only its session tells."""
    create(cluster, "paused", 1)
    with Load(cluster, "paused") as load:
        load.goes_on()
        soon(lambda: leader(cluster, 1, "paused") != NOBODY)
        victim = parts_of(cluster, 1, "paused")[0].leader_id
        alive = next(node for node in cluster.nodes if node != victim)
        cluster.pause(victim)
        soon(lambda: parts_of(cluster, alive, "paused")[0].leader_id not in (victim, -1))
        assert victim not in cluster.active(alive)
        cluster.resume(victim)
        soon(lambda: in_sync(cluster, alive, "paused"))
        load.goes_on()
        acknowledged = load.end()
    found = read_all(cluster, "paused", 1)
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))


def test_a_node_that_is_cut_off_from_zookeeper_stops_leading_before_another_begins(
    cluster: EmbeddedCluster, ensemble: ZooKeepers
) -> None:
    """Clients and the other nodes reach it all the while."""
    create(cluster, "cut-off", 1)
    soon(lambda: leader(cluster, 1, "cut-off") != NOBODY)  # it is not named while its connections come back
    victim = parts_of(cluster, 1, "cut-off")[0].leader_id
    alive = next(node for node in cluster.nodes if node != victim)
    with Wire(ensemble.servers[0].port) as wire:
        cluster.stop_node(victim)
        behind, cluster._metadata[victim] = cluster._metadata[victim], f"zookeeper://{wire.address}/{path_in(cluster)}"
        cluster.start_node(victim)
        cluster._metadata[victim] = behind
        soon(lambda: in_sync(cluster, alive, "cut-off"))
        elect = ElectLeadersRequest(topic_partitions=[TopicPartitions("cut-off", [0])])
        soon(lambda: ask(cluster, alive, elect).error_code == 0 and leader(cluster, alive, "cut-off") == victim)
        with Load(cluster, "cut-off") as load:
            load.goes_on()
            wire.hold()
            told = [0]

            def another_leads() -> bool:
                if leader(cluster, alive, "cut-off") not in (victim, NOBODY):  # nobody: hangs up on followers first
                    return True
                told.append(listed(cluster, victim, "cut-off"))
                return False

            soon(another_leads)
            assert told[-1] == E.NOT_LEADER_OR_FOLLOWER, "it still answered when another led already"
            load.goes_on()
            wire.cut()
            wire.open()
            soon(lambda: victim in cluster.active(alive) and in_sync(cluster, alive, "cut-off"))
            acknowledged = load.end()
        found = read_all(cluster, "cut-off", 1)
        assert acknowledged <= set(found)
        assert len(found) == len(set(found))
        cluster.stop_node(victim)
    cluster.start_node(victim)


def test_without_zookeeper_nodes_serve_for_a_while_then_nobody_and_go_on_when_it_is_back(
    cluster: EmbeddedCluster, ensemble: ZooKeepers
) -> None:
    create(cluster, "outage", 1)
    with Load(cluster, "outage") as load:
        load.goes_on()
        for server in ensemble.servers:
            server.send(signal.SIGSTOP)
        try:
            load.goes_on()  # on what they know
            soon(lambda: all(listed(cluster, by, "outage") == E.NOT_LEADER_OR_FOLLOWER for by in cluster.nodes))
            assert len(parts_of(cluster, 1, "outage")) == 1  # what is known is told
            told = told_of_making(cluster, 2, "never")
            assert told in (None, E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR), told
        finally:
            for server in ensemble.servers:
                server.send(signal.SIGCONT)
        load.goes_on()
        soon(lambda: in_sync(cluster, 1, "outage"))
        acknowledged = load.end()
    may_be_made = told in (None, E.REQUEST_TIMED_OUT)  # ZooKeeper may have had the commit before it stood still
    assert may_be_made or parts_of(cluster, 1, "never") == []
    found = read_all(cluster, "outage", 1)
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))


def told_of_making(cluster: EmbeddedCluster, node: int, name: str) -> int | None:
    """The error that this node answers to who wants a topic made, by the time that the request gives it; None where it
    hangs up, as on everybody who asks it for what others may lead by now."""
    try:
        with Client(cluster.address_of(node), timeout_s=3 * SESSION_MS / 1000) as client:
            (made,) = client.send(CreateTopicsRequest(topics=[CreatableTopic(name, 1, 3)], timeout_ms=3000)).topics
    except ConnectionClosedError:
        return None
    return int(made.error_code)


def leader(cluster: EmbeddedCluster, by: int, name: str) -> int:
    return int(parts_of(cluster, by, name)[0].leader_id)


def listed(cluster: EmbeddedCluster, node: int, name: str) -> int:
    """The error that this node answers to who asks for the end of partition 0."""
    asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)])])
    return int(ask(cluster, node, asked).topics[0].partitions[0].error_code)


def path_in(cluster: EmbeddedCluster) -> str:
    return cluster._metadata[1].rpartition("/")[2]


def test_commits_go_on_when_the_leader_is_killed_and_none_is_lost(ensemble: ZooKeepers) -> None:
    place = fresh(ensemble)
    done: list[int] = []
    over = threading.Event()

    def write() -> None:
        with closing(opened(place)) as store:
            number = 0
            while not over.is_set():
                try:
                    store.commit([Put(f"k/{number}", b"%d" % number)])
                    done.append(number)
                except (StoreError, CommitUnknownError):
                    over.wait(0.05)
                number += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        soon(lambda: len(done) > 5)
        with killed_leader(ensemble):
            before = len(done)
            soon(lambda: len(done) > before + 5)
            over.set()
            writing.join()
    finally:
        over.set()
    with closing(opened(place)) as store:
        there = {key for key, _ in store.list("k/")}
        assert {f"k/{number}" for number in done} <= there
        assert store.generation == len(there)
