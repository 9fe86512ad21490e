"""More partitions than the process may have files open: segment files take turns with the descriptors."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from ottla.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness.waiting import soon

DESCRIPTORS = 64
PARTITIONS = 200
MORE_THAN_THAT = 80


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


class Node:
    """A node in a process of its own that may not open more than DESCRIPTORS files."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = [sys.executable, "-m", "ottla", "serve", "--data", str(directory), "--listen", "127.0.0.1:0"]
        self.log = directory / "said"
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--log-format", "json", *options],
                stdout=subprocess.PIPE,
                stderr=said,
                preexec_fn=few_descriptors,
            )
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["address"]

    def end(self, signal: int = SIGTERM) -> None:
        self.process.send_signal(signal)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """(address, process id)"""
    running = Node(tmp_path)
    try:
        yield running.address, running.process.pid
    finally:
        running.end()


def test_a_node_serves_more_partitions_than_it_may_open_files(node: tuple[str, int]) -> None:
    address, pid = node
    with Client(address) as client:
        topic = CreatableTopic(name="wide", num_partitions=PARTITIONS, replication_factor=-1)
        check(client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics[0].error_code, "topic wide")
        for turn in range(2):
            for index in range(PARTITIONS):
                batch = build_batch([Record(key=None, value=b"%d-%d" % (turn, index), timestamp_ms=0)])
                produced = client.produce_raw("wide", index, batch)
                assert produced is not None
                assert produced.base_offset == turn
        assert all(client.fetch_raw("wide", index, 1).high_watermark == 2 for index in range(PARTITIONS))
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) <= DESCRIPTORS


def create(client: Client, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
    check(client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics[0].error_code, name)


def produce_everywhere(client: Client, name: str, value: bytes) -> None:
    """One record to every partition of the topic, in one request."""
    batch = build_batch([Record(key=None, value=value, timestamp_ms=0)])
    data = [PartitionProduceData(index, batch) for index in range(MORE_THAN_THAT)]
    answer = client.send(ProduceRequest(None, -1, 30_000, [TopicProduceData(name, partition_data=data)]), 12)
    assert {part.error_code for part in answer.responses[0].partition_responses} == {0}


def test_group_commits_leave_descriptors_for_connections(tmp_path: Path) -> None:
    """A round of fsyncs has its files pinned: it takes no more partitions than there is room for."""
    directory = tmp_path / "data"
    directory.mkdir()
    for life in range(2):
        node = Node(directory, "--durability", "fsync")
        try:
            with Client(node.address) as client:
                if life == 0:
                    create(client, "wide", MORE_THAN_THAT)
                produce_everywhere(client, "wide", b"%d" % life)
                with Client(node.address) as other:
                    assert other.fetch_raw("wide", 0, life).high_watermark == life + 1
        finally:
            node.end(SIGKILL)
    assert "could not be" not in (directory / "said").read_text()


def test_connections_are_refused_before_the_log_lacks_descriptors(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    node = Node(directory)
    host, port = node.address.rsplit(":", 1)
    try:
        with Client(node.address) as client:
            create(client, "wide", MORE_THAN_THAT)
            with ExitStack() as idle:
                for _ in range(2 * DESCRIPTORS):
                    idle.enter_context(socket.create_connection((host, int(port)), 20))
                for turn in range(3):
                    produce_everywhere(client, "wide", b"%d" % turn)
                soon(lambda: "refused a connection" in node.log.read_text())  # the event loop may accept the last late
            assert all(client.fetch_raw("wide", index, 2).high_watermark == 3 for index in range(MORE_THAN_THAT))
    finally:
        node.end()
    said = node.log.read_text()
    assert "refused a connection" in said
    assert "takes no more writes" not in said
