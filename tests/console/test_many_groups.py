"""A cluster of many groups: pages ask for the groups that they show, and cost little more than the list of names."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest

from ottla.client.client import EARLIEST
from ottla.client.dead_letters import DEAD_LETTERS, REDRIVE_PREFIX
from ottla.client.errors import ConnectionClosedError
from ottla.console.page import ROWS, Context
from ottla.console.pages import groups, share_groups
from ottla.console.rendering import html
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from tests.console.test_many_topics import NODES, LargeCluster, context

GROUPS = 1_000
SCREEN = {"classic": groups.load, "share": share_groups.load}


class ClusterOfGroups(LargeCluster):
    """Answers as a cluster with some groups of one type would: each node coordinates its share."""

    def __init__(self, type: str, count: int) -> None:
        super().__init__()
        self.encoded_lists: list[bytes] = []
        self.refused_private: set[object] = set()
        for node in range(NODES):
            rows = [
                ListedGroup(f"group-{number:04}", "consumer", "Stable", type) for number in range(node, count, NODES)
            ]
            rows.append(ListedGroup(f"{REDRIVE_PREFIX}group-{GROUPS - 1 - node:04}", "", "Empty", "classic"))
            encoded = bytearray()
            ListGroupsResponse(groups=rows).encode(encoded, ListGroupsResponse.MAX_VERSION)
            self.encoded_lists.append(bytes(encoded))

    def metadata(self, wanted: Any) -> Any:
        self.requests.append("metadata")
        parts = [MetadataResponsePartition(0, 0, 0, 0, [0], [0], [])]
        return MetadataResponse(topics=[MetadataResponseTopic(name=name, partitions=parts) for name in wanted])

    def drop(self, connection: Any) -> None:
        pass

    def broker_ids(self) -> list[int]:
        return list(range(NODES))

    def broker(self, node_id: int) -> Any:
        return Node(self, node_id)

    def send(self, request: Any) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            self.requests.append(request)
            return DescribeConfigsResponse(results=[configs_of(each.resource_name) for each in request.resources])
        return super().send(request)


class Node:
    """A connection to one node of it."""

    address = "localhost"
    private: ClassVar[dict[int, tuple[int, int]]] = {}

    def __init__(self, cluster: ClusterOfGroups, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id

    def version_of(self, _: int) -> int:
        return 9

    def send(self, request: Any, version: int | None = None) -> Any:
        answers = {
            ListGroupsRequest: self.listed,
            DescribeGroupsRequest: lambda asked: DescribeGroupsResponse(
                groups=[DescribedGroup(0, None, name, "Stable", "consumer", "range", []) for name in asked.groups]
            ),
            OffsetFetchRequest: lambda asked: OffsetFetchResponse(groups=[position(each) for each in asked.groups]),
            ShareGroupDescribeRequest: lambda asked: ShareGroupDescribeResponse(
                groups=[DescribedShareGroup(0, None, name, "Stable", 1, 1, "simple", []) for name in asked.group_ids]
            ),
            ListOffsetsRequest: bounds,
            DescribeShareGroupOffsetsRequest: lambda asked: DescribeShareGroupOffsetsResponse(
                groups=[start(each) for each in asked.groups]
            ),
        }
        if (answer := answers.get(type(request))) is None:
            return self.cluster.send(request)
        self.cluster.requests.append(request)
        return answer(request)

    def post(self, request: Any, version: int) -> Any:
        return self.send(request, version)

    def take(self, answer: Any) -> Any:
        return answer

    def listed(self, _: Any) -> Any:
        return ListGroupsResponse.decode(self.cluster.encoded_lists[self.node_id], 0, ListGroupsResponse.MAX_VERSION)[0]


def configs_of(group: str) -> DescribeConfigsResult:
    """Every other group has a dead-letter topic."""
    topic = f"dlq.{group}" if int(group[-1]) % 2 else ""
    return DescribeConfigsResult(0, None, 32, group, [DescribeConfigsResourceResult(DEAD_LETTERS, topic)])


def bounds(asked: Any) -> ListOffsetsResponse:
    """Dead-letter topics have the records 3 to 9, others 0 to 6."""
    rows: list[ListOffsetsTopicResponse] = []
    for topic in asked.topics:
        start, end = (3, 10) if topic.name.startswith("dlq.") else (0, 7)
        at = start if topic.partitions[0].timestamp == EARLIEST else end
        rows.append(ListOffsetsTopicResponse(topic.name, [ListOffsetsPartitionResponse(0, offset=at)]))
    return ListOffsetsResponse(topics=rows)


def position(asked: Any) -> OffsetFetchResponseGroup:
    row = OffsetFetchResponsePartitions(0, 5, -1, None, 0)
    if asked.group_id.startswith(REDRIVE_PREFIX):
        row.metadata = "[[2, 1]]"  # 3, 4 and 7 were sent back
        topics = [OffsetFetchResponseTopics(each.name, partitions=[row]) for each in asked.topics]
        return OffsetFetchResponseGroup(asked.group_id, topics, 0)
    return OffsetFetchResponseGroup(asked.group_id, [OffsetFetchResponseTopics("topic-00000", partitions=[row])], 0)


def start(asked: Any) -> DescribeShareGroupOffsetsResponseGroup:
    row = DescribeShareGroupOffsetsResponsePartition(0, 5, 0, 2, 0, None)
    topic = DescribeShareGroupOffsetsResponseTopic("topic-00000", partitions=[row])
    return DescribeShareGroupOffsetsResponseGroup(asked.group_id, [topic], 0, None)


@pytest.mark.parametrize("type", SCREEN)
def test_a_page_of_groups_asks_for_its_rows_only(type: str) -> None:
    cluster = ClusterOfGroups(type, GROUPS)
    view: Any = SCREEN[type](context(cluster, page="20"))
    assert [each.name for each in view.groups] == [f"group-{number:04}" for number in range(GROUPS - ROWS, GROUPS)]
    assert [each.lag for each in view.groups] == [2] * ROWS
    assert view.unseen == ()
    assert len(cluster.requests) <= 20
    described = [
        each for each in cluster.requests if isinstance(each, DescribeGroupsRequest | ShareGroupDescribeRequest)
    ]
    names = [name for each in described for name in getattr(each, "groups", None) or getattr(each, "group_ids", ())]
    assert len(names) == ROWS


def test_a_page_of_share_groups_counts_their_dead_letters_by_offsets() -> None:
    cluster = ClusterOfGroups("share", GROUPS)
    view = share_groups.load(context(cluster, page="20"))
    counts = {each.name: (each.letters_topic, each.dead_letters, each.sent_back) for each in view.groups}
    assert counts["group-0998"] == (None, 0, 0)
    assert counts["group-0997"] == ("dlq.group-0997", 7, 3)
    assert counts["group-0995"] == ("dlq.group-0995", 7, 0)
    asked = [each for each in cluster.requests if isinstance(each, ListOffsetsRequest)]
    assert sum(len(each.topics) for each in asked) == ROWS, "the first and the last offset of half the topics"


def test_dead_letters_that_could_not_be_asked_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Node, _: object) -> None:
        raise ConnectionClosedError("gone")

    monkeypatch.setattr(Node, "take", refused)
    view = share_groups.load(context(ClusterOfGroups("share", ROWS)))
    assert {each.dead_letters for each in view.groups if each.letters_topic} == {None}
    assert {each.dead_letters for each in view.groups if not each.letters_topic} == {0}
    assert view.unseen == ("Dead letters on node 0: gone",)
    assert "could not be asked" in html("share_groups.html", view=view, layout="fragment.html", page=None, part=None)


@pytest.mark.parametrize("type", SCREEN)
def test_a_thousand_groups_cost_little_more_than_their_names(type: str) -> None:
    """The page of a large cluster against that of one with a page of groups: the difference is the list of names."""

    def cpu_of(work: Any) -> float:
        times: list[float] = []
        for _ in range(3):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        return min(times)

    small, large = ClusterOfGroups(type, ROWS), ClusterOfGroups(type, GROUPS)
    asked: list[Context] = [context(small), context(large)]
    names = cpu_of(lambda: [node.listed(None) for node in map(large.broker, large.broker_ids())])
    page_of_few, page_of_many = (cpu_of(lambda each=each: SCREEN[type](each)) for each in asked)
    assert page_of_many < 3 * (page_of_few + names)
