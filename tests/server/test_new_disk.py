"""A node that comes back with another disk: what others have of its partitions is not given up for what it has not."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client import Client
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.elect_leaders import TopicPartitions as Places
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

UNCLEAN = 1
RECORDS = 10


def leader(cluster: EmbeddedCluster, by: int) -> int:
    with Client(cluster.address_of(by)) as client:
        (topic,) = client.send(MetadataRequest([MetadataRequestTopic(name="t")])).topics
    return topic.partitions[0].leader_id


def produce(cluster: EmbeddedCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce("t", str(number))
    assert producer.flush(30) == 0


@pytest.mark.slow("tests/sim/test_lying_disks.py::test_a_torn_end_and_a_lost_directory_leave_a_leader")
def test_a_node_with_an_empty_disk_leads_nothing_that_others_have_some_of() -> None:
    with EmbeddedCluster(nodes=3) as cluster:
        with Client(cluster.bootstrap_servers) as client:
            topic = CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [2, 3])])
            (made,) = client.send(CreateTopicsRequest(topics=[topic])).topics
        assert made.error_code == 0
        produce(cluster)
        cluster.stop_node(2)
        produce(cluster)
        cluster.kill(3)
        shutil.rmtree(Path(cluster.directory, "3"))
        for node in (3, 2):
            cluster.start_node(node)
            cluster.wait_until_active()
            assert leader(cluster, by=1) == -1
        with Client(cluster.bootstrap_servers) as client:
            (told,) = client.send(ElectLeadersRequest(UNCLEAN, [Places("t", [0])])).replica_election_results
        assert told.partition_result[0].error_code == 0
        soon(lambda: all(leader(cluster, by=node) != -1 for node in cluster.nodes))
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, RECORDS)
        consumer.close()
