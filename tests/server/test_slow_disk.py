"""A node on a disk whose fsync takes 50 ms: with page-cache durability no client waits for it."""

from __future__ import annotations

import time
from pathlib import Path

from ottla.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.records.record import Record, build_batch
from tests.harness.server.fairness import Probe, running_node
from tests.harness.waiting import soon

SLOWLY = """
import os, time
def slowly(sync):
    def slow(fd):
        time.sleep(0.05)
        return sync(fd)
    return slow
os.fsync, os.fdatasync = slowly(os.fsync), slowly(os.fdatasync)
"""
PARTITIONS = 10
SEGMENTS = 10


def create(client: Client, name: str, partitions: int, **configs: str) -> None:
    given = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=given)
    check(client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics[0].error_code, name)


def test_nobody_waits_for_the_fsyncs_of_first_records_and_of_retention(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOWLY)
    now = int(time.time() * 1000)
    large, small = (build_batch([Record(key=None, value=bytes(size), timestamp_ms=now)]) for size in (900_000, 1))
    with (
        running_node(tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as node,
        Probe(node) as probe,
        Client(node.address) as client,
    ):
        create(client, "wide", PARTITIONS)
        create(client, "long", 1, segment_bytes="1048576")
        idle = probe.rest()
        with probe.watch() as seen:
            for index in range(PARTITIONS):
                client.produce_raw("wide", index, small)
        seen.must_be_fair(idle)
        for _ in range(SEGMENTS):
            client.produce_raw("long", 0, large)
        with probe.watch() as seen:
            resource = AlterConfigsResource(2, "long", [AlterableConfig("retention.bytes", 0, "0")])
            client.send(IncrementalAlterConfigsRequest([resource], False))
            soon(lambda: client.fetch_raw("long", 0, SEGMENTS).log_start_offset >= SEGMENTS - 1)
        seen.must_be_fair(idle)
