"""A large cluster: pages ask for the rows that they show, and cost little more than the list of names itself."""

from __future__ import annotations

import time
from typing import Any, cast

from ottla.client.client import Client
from ottla.console.access import Clients, Lease, Limits
from ottla.console.page import ROWS, Context
from ottla.console.pages import overview, topics
from ottla.console.rendering import json_bytes
from ottla.console.sessions import Session
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.harness.console.over_http import settings

NODES, TOPICS = 3, 10_000
VERSION = MetadataResponse.MAX_VERSION


class LargeCluster:
    """Answers as a cluster of many topics would, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        brokers = [MetadataResponseBroker(each, "localhost", 9090 + each, None) for each in range(NODES)]
        every = list(range(NODES))
        rows = [
            MetadataResponseTopic(
                name=f"topic-{number:05}",
                topic_id=number.to_bytes(16, "big"),
                partitions=[
                    MetadataResponsePartition(0, index, (number + index) % NODES, 0, every, every, [])
                    for index in range(3)
                ],
            )
            for number in range(TOPICS)
        ]
        encoded = bytearray()
        MetadataResponse(brokers=brokers, cluster_id="c", controller_id=0, topics=rows).encode(encoded, VERSION)
        self.encoded = bytes(encoded)

    def metadata(self, wanted: object) -> Any:
        self.requests.append("metadata")
        return MetadataResponse.decode(self.encoded, 0, VERSION)[0]

    def forget_topics(self) -> None:
        pass

    def know_brokers(self, answer: Any) -> None:
        pass

    def broker(self, node_id: int) -> Any:
        return self

    def send(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, ListOffsetsRequest):
            rows = [
                ListOffsetsTopicResponse(topic.name, [ends(part) for part in topic.partitions])
                for topic in request.topics
            ]
            return ListOffsetsResponse(topics=rows)
        assert isinstance(request, DescribeLogDirsRequest)
        return DescribeLogDirsResponse(results=[])


def ends(part: Any) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(part.partition_index, offset=7)


def context(cluster: LargeCluster, **query: str) -> Context:
    clients = Clients("localhost:1", None, None, deadline_s=1, read_only=True)
    limits = Limits(until=time.monotonic() + 60)
    return Context(settings("localhost:1"), Session(None, clients), Lease(cast(Client, cluster), limits), query)


def test_a_page_of_topics_asks_for_its_rows_only() -> None:
    cluster = LargeCluster()
    view = topics.load(context(cluster, page="200"))
    assert [each.name for each in view.topics] == [f"topic-{number:05}" for number in range(TOPICS - ROWS, TOPICS)]
    assert (view.paged.pages, view.paged.total, view.topics[0].records) == (TOPICS // ROWS, TOPICS, 0)
    assert len(cluster.requests) <= 20
    asked = {topic.name for each in cluster.requests if isinstance(each, ListOffsetsRequest) for topic in each.topics}
    assert len(asked) == ROWS
    assert len(json_bytes(view)) < 20_000


def test_the_pages_cost_little_more_than_the_names() -> None:
    cluster = LargeCluster()

    def cpu_of(work: Any) -> float:
        times: list[float] = []
        for _ in range(3):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        return min(times)

    names = cpu_of(lambda: cluster.metadata(None))
    assert cpu_of(lambda: topics.load(context(cluster, q="topic-0999"))) < 3 * names
    assert cpu_of(lambda: overview.load(context(cluster))) < 3 * names


def test_the_doctor_of_a_large_cluster_waits_to_be_asked_and_its_traffic_is_not_read() -> None:
    cluster = LargeCluster()
    assert overview.load_findings(context(cluster)).is_waiting
    assert overview.load_traffic(context(cluster)).is_large
    assert cluster.requests == ["metadata", "metadata"]
