"""Real nodes, of which one gets EIO from reads of a place in its log: another one leads, and consumers get on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon
from tests.server.test_lying_disks import RECORDS, described, produce, read_all

SEAM = '''
"""Loaded into each node's process: reads of the file that BAD names fail with EIO, from position 100 to 300."""
import errno, os

BAD = os.environ["UNREADABLE"]

def check(fd, position, length):
    if os.path.exists(BAD) and position < 300 and position + length > 100:
        with open(BAD) as named:
            if os.readlink(f"/proc/self/fd/{fd}") == named.read():
                raise OSError(errno.EIO, os.strerror(errno.EIO))

pread, sendfile = os.pread, os.sendfile

def failing_pread(fd, length, position):
    check(fd, position, length)
    return pread(fd, length, position)

def failing_sendfile(out, fd, position, length):
    check(fd, position, length)
    return sendfile(out, fd, position, length)

os.pread, os.sendfile = failing_pread, failing_sendfile
'''


class Unreadable(EmbeddedCluster):
    """A cluster whose nodes can't read the place in the file that `bad` names."""

    @property
    def bad(self) -> Path:
        return Path(self.directory, "bad")

    def _environment_of(self, node: int) -> Mapping[str, str]:
        seam = Path(self.directory, "seam")
        seam.mkdir(exist_ok=True)
        (seam / "sitecustomize.py").write_text(SEAM)
        path = os.pathsep.join([str(seam), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, "UNREADABLE": str(self.bad)}


@pytest.mark.slow(
    "tests/sim/test_unreadable_places.py::test_a_disk_that_fails_again_and_again_does_not_leave_the_in_sync_replicas_each_time"
)
def test_another_node_leads_until_the_place_can_be_read(tmp_path: Path) -> None:
    settings = {"min.insync.replicas": "2"}
    with Unreadable(nodes=3, settings=settings, directory=tmp_path / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics([NewTopic("t", 1, 3), NewTopic("alone", 1, 1)]).values():
            created.result(30)
        produce(cluster, 0)
        spoilt = cluster.leader_of("t")
        cluster.bad.write_text(str(Path(cluster.directory, str(spoilt), "t-0", f"{0:020d}.log")))
        assert read_all(cluster, RECORDS) == [str(number).encode() for number in range(RECORDS)]
        assert cluster.leader_of("t") != spoilt
        asked = next(node for node in cluster.nodes if node != spoilt)
        lacking = {each["topic"]: each["failed_on"] for each in described(cluster, asked)["lacking"]}
        assert lacking["t"] == [spoilt]
        produce(cluster, RECORDS)
        cluster.bad.unlink()
        cluster.wait_in_sync("t")
        soon(lambda: "t-0 can be read again" in Path(cluster.directory, f"{spoilt}.log").read_text())
        assert read_all(cluster, 2 * RECORDS) == [str(number).encode() for number in range(2 * RECORDS)]
        a_partition_without_another_replica_is_told_of(cluster)


def a_partition_without_another_replica_is_told_of(cluster: Unreadable) -> None:
    only = cluster.leader_of("alone")
    cluster.bad.write_text(str(Path(cluster.directory, str(only), "alone-0", f"{0:020d}.log")))
    produce(cluster, 0, "alone")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "h"})
    try:
        consumer.assign([TopicPartition("alone", 0, 0)])
        assert consumer.poll(1) is None
    finally:
        consumer.close()

    def lacks() -> list[tuple[str, str, list[int]]]:
        lacking = described(cluster, only)["lacking"]
        return [(each["topic"], each["lack"], each["failed_on"]) for each in lacking]

    soon(lambda: lacks() == [("alone", "log fails", [only])])
    cluster.bad.unlink()
    soon(lambda: lacks() == [])
