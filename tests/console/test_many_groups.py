"""A cluster of many groups: pages ask for the groups that they show, and cost little more than the list of names."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ottla.console.page import ROWS, Context
from ottla.console.pages import groups, share_groups
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
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
        for node in range(NODES):
            rows = [
                ListedGroup(f"group-{number:04}", "consumer", "Stable", type) for number in range(node, count, NODES)
            ]
            encoded = bytearray()
            ListGroupsResponse(groups=rows).encode(encoded, ListGroupsResponse.MAX_VERSION)
            self.encoded_lists.append(bytes(encoded))

    def metadata(self, wanted: Any) -> Any:
        self.requests.append("metadata")
        parts = [MetadataResponsePartition(0, 0, 0, 0, [0], [0], [])]
        return MetadataResponse(topics=[MetadataResponseTopic(name=name, partitions=parts) for name in wanted])

    def broker_ids(self) -> list[int]:
        return list(range(NODES))

    def broker(self, node_id: int) -> Any:
        return Node(self, node_id)

    def send(self, request: Any) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            self.requests.append(request)
            return DescribeConfigsResponse(results=[])
        return super().send(request)


class Node:
    """A connection to one node of it."""

    address = "localhost"

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
            DescribeShareGroupOffsetsRequest: lambda asked: DescribeShareGroupOffsetsResponse(
                groups=[start(each) for each in asked.groups]
            ),
        }
        if (answer := answers.get(type(request))) is None:
            return self.cluster.send(request)
        self.cluster.requests.append(request)
        return answer(request)

    def listed(self, _: Any) -> Any:
        return ListGroupsResponse.decode(self.cluster.encoded_lists[self.node_id], 0, ListGroupsResponse.MAX_VERSION)[0]


def position(asked: Any) -> OffsetFetchResponseGroup:
    row = OffsetFetchResponsePartitions(0, 5, -1, None, 0)
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
