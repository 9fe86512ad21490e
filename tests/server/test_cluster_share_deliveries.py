"""Three nodes: the leader of a partition whose records a member holds is killed."""

from contextlib import suppress

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.client.errors import ClientError
from ottla.client.share_member import ACCEPT, Delivered, ShareMember
from ottla.client.share_partitions import RunState, SharePartition, describe_share_partitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

GROUP = 32
SETTINGS = {
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}


def _take(worker: ShareMember) -> list[Delivered]:
    """The five records. After a failure, the member connects again at the next poll."""
    found: list[Delivered] = []

    def has_all() -> bool:
        with suppress(ClientError):
            found.extend(worker.poll(5 - len(found), 200))
        return len(found) == 5

    soon(has_all)
    return found


def _seen(servers: str) -> SharePartition | None:
    """The partition as its leader reports it; None while a node that is needed does not answer."""
    with Client(servers) as client:
        try:
            (found,) = describe_share_partitions(client, "work").partitions
        except (ClientError, ValueError):
            return None
    return found if found.why_unknown is None else None


@pytest.mark.slow("tests/server/test_cluster_coordinators.py::test_what_a_share_group_has_accepted_never_comes_again")
def test_the_next_leader_reports_its_own_locks_and_none_of_the_dead_one() -> None:
    with EmbeddedCluster(settings=SETTINGS) as cluster:
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("jobs", 1, 3)])["jobs"].result(30)
        producer = Producer({"bootstrap.servers": servers, "acks": "all"})
        for number in range(5):
            producer.produce("jobs", str(number))
        producer.flush(30)
        with Client(servers) as client:
            row = AlterableConfig("share.auto.offset.reset", 0, "earliest")
            (result,) = client.send(
                IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, "work", [row])])
            ).responses
            assert not result.error_code, result.error_message
        with ShareMember(lambda: Client(servers, client_id="ada"), "work", ["jobs"]) as ada:
            _take(ada)
            before = _seen(servers)
            assert before is not None
            assert (before.acquired, before.runs[0].client_id) == (5, "ada")
            with Client(servers) as client:
                leader = client.known_topic("jobs").leaders[0]
            cluster.kill(leader)
            soon(lambda: _seen(servers) is not None)
            after = _seen(servers)
            assert after is not None
            assert (after.is_loaded, after.acquired, after.runs, after.lag) == (False, 0, (), 5)
            again = _take(ada)
            assert sorted(each.record.offset for each in again) == list(range(5))
            now = _seen(servers)
            assert now is not None
            assert [(run.first_offset, run.last_offset, run.state, run.client_id) for run in now.runs] == [
                (0, 4, RunState.ACQUIRED, "ada")
            ]
            ada.acknowledge(again, ACCEPT)
