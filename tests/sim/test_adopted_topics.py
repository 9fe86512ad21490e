"""Stories of a cluster whose metadata store was restored from a backup that is older than its topics."""

from typing import Any

import pytest

from ottla.broker.cluster import duties
from ottla.broker.cluster.elections import awaits_logs
from ottla.metadata.nodes import NodeState
from ottla.metadata.topics import TopicRecord
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.sim.clients.reassigners import Reassigner
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.store import StoreCopy
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.run import DIRECTORY

from .test_cluster_scenarios_elected import acknowledged, more_is_acknowledged

LOG = f"{DIRECTORY}/{TOPIC}-0/00000000000000000000.log"


def running(seed: int, **given: Any) -> tuple[ElectedCluster, StoreCopy]:
    """Three nodes that clients write to, and a backup of the store from before they had any topic. `given`: further
    arguments of the cluster."""
    cluster = ElectedCluster(seed, **given)
    cluster.start_nodes()
    copy = cluster.store.back_up()
    cluster.until(cluster.has_topics, 5_000)
    cluster.produce(idempotent=True)
    cluster.read()
    cluster.commit_offsets("group")
    for client in cluster.clients:
        client.pace_us = 10 * MS
    cluster.until(more_is_acknowledged(cluster, 50))
    return cluster, copy


def without_node_1_for_a_while(cluster: ElectedCluster) -> None:
    """Node 1 lacks the newest acknowledged records."""
    cluster.kill(1)
    cluster.until(lambda: 1 not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 50))


def restored(cluster: ElectedCluster, copy: StoreCopy) -> None:
    for node_id in cluster.up:
        cluster.kill(node_id)
    cluster.restore_store(copy)
    assert TOPIC not in cluster.image.topics


def record_of(cluster: ElectedCluster, name: str = TOPIC) -> TopicRecord:
    return cluster.image.topics[name].record


def waiting_for_node_3() -> ElectedCluster:
    """A cluster with a restored store in which a topic is on hold, because node 3 does not start."""
    cluster, copy = running(12)
    restored(cluster, copy)
    for node_id in (1, 2):
        cluster.begin(node_id)
    cluster.until(lambda: TOPIC in cluster.image.topics and len(record_of(cluster).partitions[0].replicas) == 2)
    cluster.run(1_000)
    return cluster


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_topics_that_the_store_has_lost_are_adopted_with_every_record(order: tuple[int, int, int]) -> None:
    cluster, copy = running(11)
    without_node_1_for_a_while(cluster)
    restored(cluster, copy)
    before = acknowledged(cluster)
    first, second, last = order
    cluster.begin(first)
    cluster.until(lambda: TOPIC in cluster.image.topics)
    cluster.begin(second)
    cluster.until(lambda: set(record_of(cluster).partitions[0].replicas) == {first, second})
    cluster.run(3_000)
    for name in (TOPIC, CONSUMER_OFFSETS_TOPIC):
        record = record_of(cluster, name)
        assert record.adopted
        assert all(awaits_logs(placed) for placed in record.partitions), f"node {last} may have more of {name}"
    assert record_of(cluster).configs == {"ottla.retention.hold": "true"}
    assert record_of(cluster, CONSUMER_OFFSETS_TOPIC).configs["cleanup.policy"] == "compact"
    cluster.begin(last)
    cluster.until(more_is_acknowledged(cluster, 50), 20_000)
    cluster.settle()
    assert acknowledged(cluster) > before
    assert not record_of(cluster).adopted
    assert all(len(placed.replicas) == 3 for placed in record_of(cluster).partitions)


def test_a_topic_that_is_adopted_from_two_of_three_logs_is_told_to_lack_a_replica() -> None:
    cluster, copy = running(11, settings={"default.replication.factor": "3"})
    restored(cluster, copy)
    disk = cluster.hosts[3].disk
    for path in disk.files():
        if path.startswith(f"{DIRECTORY}/{TOPIC}-0/"):
            disk.put(path, None)
    disk.drop_empty_directories()
    for checker in cluster.checkers:
        checker.lost_power(3, in_sync_too=True)
    for node_id in cluster.hosts:
        cluster.begin(node_id)
    cluster.until(lambda: TOPIC in cluster.image.topics and not record_of(cluster).adopted)
    assert all(sorted(placed.replicas) == [1, 2] for placed in record_of(cluster).partitions)
    told = f"{TOPIC} was adopted with 2 of 3 replicas, because no other node has logs of it."
    assert len([line for line in cluster.world.trace.lines if told in line]) == 1


def test_the_checker_notices_a_topic_that_is_released_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "awaits_logs", lambda _: False)
    cluster, copy = running(11)
    without_node_1_for_a_while(cluster)
    restored(cluster, copy)
    cluster.begin(1)
    with pytest.raises(InvariantError, match=r"node 1 (leads|in sync)"):
        cluster.run(5_000)


def test_an_operator_releases_a_topic_whose_last_node_does_not_return() -> None:
    cluster = waiting_for_node_3()
    cluster.ask(1, ElectLeadersRequest(1, None))
    cluster.until(more_is_acknowledged(cluster, 20), 20_000)
    cluster.begin(3)
    cluster.settle()


def test_the_removal_of_a_node_that_does_not_return_releases_what_waits_for_it() -> None:
    cluster = waiting_for_node_3()
    assert cluster.leader() is None
    cluster.ask(1, UnregisterBrokerRequest(3))
    cluster.until(more_is_acknowledged(cluster, 20), 20_000)


def test_no_topic_is_created_automatically_before_all_nodes_have_started() -> None:
    cluster, copy = running(12)
    restored(cluster, copy)

    def asked_for() -> bool:
        asked = [MetadataRequestTopic(name="new")]
        cluster.ask(1, MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        cluster.run(200)
        return "new" in cluster.image.topics

    for node_id in (1, 2):
        cluster.begin(node_id)
    cluster.until(lambda: TOPIC in cluster.image.topics)
    assert not any([asked_for() for _ in range(3)])
    cluster.begin(3)
    cluster.until(asked_for)


def test_a_node_that_joined_after_the_backup_starts_first_and_keeps_its_replica() -> None:
    cluster = ElectedCluster(15, nodes=4)
    late = cluster.hosts.pop(4)
    cluster.start_nodes()
    copy = cluster.store.back_up()
    cluster.hosts[4] = late
    cluster.begin(4)
    cluster.until(lambda: "4" in cluster.image.nodes)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.until(more_is_acknowledged(cluster, 20))
    assert 4 in record_of(cluster).partitions[0].replicas
    restored(cluster, copy)
    cluster.begin(4)
    cluster.until(lambda: TOPIC in cluster.image.topics)
    for node_id in (1, 2, 3):
        cluster.begin(node_id)
    cluster.until(more_is_acknowledged(cluster, 20), 20_000)
    assert 4 in record_of(cluster).partitions[0].replicas
    cluster.settle()


def test_the_directory_of_a_replica_that_was_moved_after_the_backup_is_kept_aside() -> None:
    cluster = ElectedCluster(7, replicas=1, min_isr=1)
    cluster.checkers.clear()
    cluster.start()
    cluster.produce(acks=1)
    cluster.until(more_is_acknowledged(cluster, 20))
    cluster.wind_down()
    copy, first = cluster.store.back_up(), cluster.leader()
    target = next(node_id for node_id in cluster.hosts if node_id != first)
    admin = Reassigner(cluster, cluster.rng)

    def moved() -> bool:
        if record_of(cluster).partitions[0].target != (target,):
            admin.ask(TOPIC, 0, [target])
        return record_of(cluster).partitions[0].replicas == (target,)

    cluster.until(moved)
    cluster.run(1_000)
    disk = cluster.hosts[target].disk
    records = disk.content(LOG)
    for node_id in cluster.up:
        cluster.kill(node_id)
    cluster.restore_store(copy)
    for node_id in cluster.hosts:
        cluster.begin(node_id)
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE})
    cluster.run(5_000)
    (aside,) = [path for path in disk.files() if "-stray/" in path and path.endswith(".log")]
    assert disk.content(aside) == records
    assert any(f"{TOPIC}-0" in line and "-stray" in line for line in cluster.world.trace.lines)


def test_a_topic_that_is_deleted_while_it_is_on_hold_does_not_come_back() -> None:
    cluster, copy = running(13)
    for client in cluster.clients:
        client.winding_down = True
    restored(cluster, copy)
    cluster.begin(1)
    cluster.until(lambda: TOPIC in cluster.image.topics)
    cluster.ask(1, DeleteTopicsRequest(topics=[DeleteTopicState(TOPIC)]))
    cluster.until(lambda: TOPIC not in cluster.image.topics)
    for node_id in (2, 3):
        cluster.begin(node_id)
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE})
    cluster.run(3_000)
    assert TOPIC not in cluster.image.topics
    assert not any(host.disk.exists(f"{DIRECTORY}/{TOPIC}-0") for host in cluster.hosts.values())


def test_a_topic_that_was_deleted_while_a_node_was_away_does_not_come_back() -> None:
    """The store is the newest one: the note of the deletion is there, or the directory is an old copy of a disk."""
    cluster, _ = running(14)
    cluster.kill(3)
    for client in cluster.clients:
        client.winding_down = True
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.ask(1, DeleteTopicsRequest(topics=[DeleteTopicState(TOPIC)]))
    cluster.until(lambda: TOPIC not in cluster.image.topics)
    cluster.run(1_000)
    for node_id in (1, 2):
        cluster.kill(node_id)
    for node_id in (3, 1, 2):
        cluster.begin(node_id)
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE})
    cluster.run(3_000)
    assert TOPIC not in cluster.image.topics
    assert not any(host.disk.exists(f"{DIRECTORY}/{TOPIC}-0") for host in cluster.hosts.values())
