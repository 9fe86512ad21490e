"""What the deletion of many topics costs the others while many groups have offsets in them, beside a probe."""

from pathlib import Path

from ottla.client import Client
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.harness.server.fairness import NodeProcess, Probe, running_node
from tests.harness.waiting import soon
from tests.server.test_connection import read_frame

TOPICS = [f"topic-{n}" for n in range(300)]
GROUPS = [f"group-{n}" for n in range(2_000)]
TOPICS_OF_A_GROUP = 2
PIPELINED = 100
NO_OFFSET = -1


def topics_of(number: int) -> list[str]:
    return [TOPICS[(number * TOPICS_OF_A_GROUP + each) % len(TOPICS)] for each in range(TOPICS_OF_A_GROUP)]


def commit_all(node: NodeProcess) -> None:
    """Every group has an offset in two topics."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    frames: list[bytes] = []
    for number, group in enumerate(GROUPS):
        topics = [OffsetCommitRequestTopic(name, partitions=[partition]) for name in topics_of(number)]
        request = OffsetCommitRequest(group_id=group, topics=topics)
        frames.append(bytes(encode_request(RequestHeader(8, 8, 1, None), request)))
    with node.connect() as sock:
        for first in range(0, len(frames), PIPELINED):
            together = frames[first : first + PIPELINED]
            sock.sendall(b"".join(together))
            for _ in together:
                read_frame(sock)


def offsets_of(client: Client, numbers: range) -> list[int]:
    groups = [
        OffsetFetchRequestGroup(
            GROUPS[n], topics=[OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in topics_of(n)]
        )
        for n in numbers
    ]
    answer = client.send(OffsetFetchRequest(groups=groups), 9)
    assert isinstance(answer, OffsetFetchResponse)
    return [topic.partitions[0].committed_offset for group in answer.groups for topic in group.topics]


def test_deleting_many_topics_leaves_the_others_their_turn(tmp_path: Path) -> None:
    with running_node(tmp_path) as node, Client(node.address) as client:
        made = [CreatableTopic(name=name, num_partitions=1, replication_factor=-1) for name in TOPICS]
        client.send(CreateTopicsRequest(topics=made, timeout_ms=30_000))
        client.send(FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS[:1]))
        commit_all(node)
        last = range(len(GROUPS) - 20, len(GROUPS))
        assert set(offsets_of(client, last)) == {5}
        with Probe(node) as probe:
            idle = probe.rest()
            with probe.watch() as seen:
                states = [DeleteTopicState(name=name) for name in TOPICS]
                client.send(DeleteTopicsRequest(topics=states, timeout_ms=30_000))
                soon(lambda: set(offsets_of(client, last)) == {NO_OFFSET}, "offsets of deleted topics are removed")
            seen.must_be_fair(idle)
