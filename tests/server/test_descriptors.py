"""More partitions than the process may have files open: segment files take turns with the descriptors."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.records.record import Record, build_batch

DESCRIPTORS = 64
PARTITIONS = 200


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """(address, process id) of a node that may not open more than DESCRIPTORS files."""
    command = [sys.executable, "-m", "ottla", "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--log-format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=few_descriptors,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"], process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


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
