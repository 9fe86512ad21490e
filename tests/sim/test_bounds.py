"""What one client, or one part of the machine, may take of a node: the others are served all the same.

Every run holds that sessions go with their connections and that answers keep within their bounds (`checkers.py`,
`readers.py`).
"""

import errno
import os
from collections import deque
from typing import Any

import pytest

from ottla.broker.api import k03_metadata, k32_describe_configs
from ottla.groups import shard as group_shard
from ottla.log.answers import StorageError
from ottla.protocol.framing import decode_response
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from ottla.protocol.wire import Message
from ottla.sim.clients.client import Client
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Connection, Weather
from ottla.sim.workloads.checkers import node_of
from tests.harness.node_stage import frame_of
from tests.harness.sim.stage import Stage, make_host

SECOND_US = 1_000 * MS
NEAR = Weather(latency_max_us=100, split=0, bytewise=0, spike=0)


class Asker(Client):
    """A client that sends what it is told to at once. `told`: the answers to all askers of a story, as they come."""

    def __init__(self, host: Host, name: str, told: list[tuple[str, Any]]) -> None:
        super().__init__(host.world, name, host.endpoint)
        self.told = told
        self._asked: deque[tuple[int, int]] = deque()
        self.connect()

    def ask(self, message: Message, version: int) -> None:
        self._asked.append((message.API_KEY, version))
        self.send(bytes(frame_of(message, version)))

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        self.told.append((self.name, decode_response(*self._asked.popleft(), frame)[1]))


class Story:
    """A node that nothing goes wrong with, at a good network, and two clients of it."""

    def __init__(self) -> None:
        settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}
        self.host = make_host({"ottla.durability": "page-cache", **settings})
        self.world = self.host.world
        self.world.network.weather = NEAR
        assert self.host.start()
        self.told: list[tuple[str, Any]] = []
        self.greedy, self.modest = (Asker(self.host, name, self.told) for name in ("greedy", "modest"))
        self.ask(self.modest, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), 5)

    def ask(self, client: Asker, message: Message, version: int) -> Any:
        """The answer to one request."""
        client.ask(message, version)
        self.run(SECOND_US)
        assert [name for name, _ in self.told] == [client.name]
        return self.told.pop()[1]

    def run(self, us: int) -> None:
        self.world.run(self.world.clock.now_us + us)

    def in_order(self) -> list[str]:
        """Who was answered, one after the other."""
        return [name for name, _ in self.told]


# ---- long requests -------------------------------------------------------------------------------------------------

MANY = 2_000
ALL_TOPICS = MetadataRequest(topics=[MetadataRequestTopic(name=f"nosuch-{n}") for n in range(MANY)])
ALL_CONFIGS = DescribeConfigsRequest([DescribeConfigsResource(4, "1", ["log.retention.ms"])] * MANY)
SMALL = ApiVersionsRequest("modest", "1")


def overtaken(request: Message, version: int) -> bool:
    """Whether a small request that comes behind a long one is answered before it."""
    story = Story()
    story.greedy.ask(request, version)
    story.run(2 * NEAR.latency_max_us)
    story.modest.ask(SMALL, 3)
    story.run(SECOND_US)
    assert sorted(story.in_order()) == ["greedy", "modest"]
    return story.in_order() == ["modest", "greedy"]


@pytest.mark.parametrize(("request_", "version"), [(ALL_TOPICS, 9), (ALL_CONFIGS, 4)], ids=["metadata", "configs"])
def test_a_small_request_overtakes_a_long_one(request_: Message, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert overtaken(request_, version)
    for module in (k03_metadata, k32_describe_configs):
        monkeypatch.setattr(module, "SLICE_STEPS", 2 * MANY)
    monkeypatch.setattr(k32_describe_configs, "ANSWERED_AT_ONCE_MAX", MANY)
    assert not overtaken(request_, version), "in one go it is not: the story would tell"


def test_groups_forget_deleted_topics_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_shard, "_TOMBSTONES_PER_STEP", 2)
    story = Story()
    story.ask(story.greedy, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    place = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5, -1, None)])
    for number in range(20):
        story.greedy.ask(OffsetCommitRequest(f"g{number}", topics=[place]), 8)
    story.run(SECOND_US)
    story.told.clear()
    shard: Any
    (shard,) = node_of(story.host.life).coordinators.groups.shards()
    story.greedy.ask(DeleteTopicsRequest(topics=[DeleteTopicState("t")]), 6)
    left: list[int] = []
    while not left or left[-1]:
        story.modest.ask(SMALL, 3)
        while "modest" not in story.in_order():
            assert story.world.agenda.run_next(story.world.clock.now_us + SECOND_US)
        story.told.remove(story.told[story.in_order().index("modest")])
        assert len(left) < 100
        left.append(sum(shard._offsets.count(f"g{number}") for number in range(20)))
    assert len(set(left)) > 3, left


# ---- a slow store, few descriptors ---------------------------------------------------------------------------------


def produced(value: bytes) -> ProduceRequest:
    batch = bytes(build_batch([Record(0, 0, b"k", value)]))
    return ProduceRequest(None, -1, 1_000, [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])])


def test_a_store_that_takes_seconds_delays_only_who_changes_something() -> None:
    story = Story()
    assert story.host.store is not None
    story.host.store.latency_max_us = 8 * SECOND_US
    story.greedy.ask(CreateTopicsRequest([CreatableTopic("late", 1, 1)]), 5)
    for number in range(20):
        story.modest.ask(produced(b"%d" % number), 9)
        story.run(20 * MS)
        assert story.in_order() == ["modest"] * (number + 1)
    story.run(20 * SECOND_US)
    name, answer = story.told[-1]
    assert (name, answer.topics[0].error_code) == ("greedy", 0)


NEED_A_DESCRIPTOR = ("create", "read", "write", "truncate", "pin")


@pytest.mark.parametrize("needed", [NEED_A_DESCRIPTOR, ("pin",)], ids=["all", "pins"])
@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_a_lack_of_descriptors_passes(durability: str, needed: tuple[str, ...]) -> None:
    """No partition is out of service for longer, nothing acknowledged is lost, nothing refused comes back."""
    stage = Stage(1, durability)
    stage.create("t", 3, {"segment.ms": "100", "retention.ms": "3600000"})
    stage.put("t", 0, b"before")

    def none_is_left(operation: str, path: str) -> None:
        if operation in needed and "/t-" in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    stage.disk.trouble = none_is_left
    refused = 0
    for number in range(9):
        try:
            stage.put("t", number % 3, b"meanwhile-%d" % number)
        except StorageError:
            refused += 1
        stage.tick(200)
    assert refused == (9 if needed is NEED_A_DESCRIPTOR else 0)
    stage.disk.trouble = None
    stage.tick(5_000)
    for index in range(3):
        stage.put("t", index, b"after")
    stage.tick(5_000)
    (written,) = stage.written.values()
    assert sorted(stage.stored("t")) == sorted(written)
    stage.restart(clean=False, power_cut=durability == "fsync")
    stage.tick(1_000)
    assert sorted(stage.stored("t")) == sorted(written)
