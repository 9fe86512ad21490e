"""A slice of `make upgrade`: nodes of the previous version and of this one serve the same clients in one cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client import Client, ClientError
from ottla.metadata.nodes import BETWEEN_NODES, LogEnd, NodeRecord
from ottla.metadata.topics import PartitionRecord, TopicRecord
from ottla.testing import EmbeddedBroker
from tools import upgrade_cluster
from tools.upgrade_cluster import HistoryMissingError, Upgrade, previous_sources

TOPIC_ID = bytes(range(16))
PLACE = TOPIC_ID, 0
READS = """
import json, sys

from ottla.metadata.nodes import NodeRecord
from ottla.metadata.topics import TopicRecord

rows = json.load(sys.stdin)
node, topic = NodeRecord.decode(rows["nodes/1"].encode()), TopicRecord.decode(rows["topic/t"].encode())
written = json.loads(node.encode()) | json.loads(topic.encode())
print(json.dumps(written))
"""
"""A program of the previous version: what it makes of rows."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return previous_sources(tmp_path_factory.mktemp("previous"))
    except HistoryMissingError as missing:
        pytest.skip(str(missing))


REST_S = 0.05
"""So that clients write a tenth of what they write in `make upgrade`, which is enough for half a minute."""


@pytest.mark.slow("tests/crash/test_upgrade_cluster.py::test_the_previous_version_reads_the_rows_of_this_one")
def test_two_versions_serve_together(tmp_path: Path) -> None:
    said: list[str] = []
    try:
        failures = upgrade_cluster.run(upgrade_cluster.SHORT_PLAN, 1, str(tmp_path), rest_s=REST_S, say=said.append)
    except HistoryMissingError as missing:
        pytest.skip(str(missing))
    assert not failures, "\n".join([*failures, *said])


def test_a_node_that_closes_a_connection_is_asked_again_for_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    class OnceClosed(Client):
        def __init__(self, address: str, **given: Any) -> None:
            if not refused:
                refused.append(address)
                raise ClientError("The connection is gone.")
            super().__init__(address, **given)

    monkeypatch.setattr(upgrade_cluster, "Client", OnceClosed)
    with EmbeddedBroker() as broker:
        at = broker.bootstrap_servers
        cluster: Any = SimpleNamespace(nodes=(1,), bootstrap_servers=at, address_of=lambda _: at)
        assert Upgrade(cluster, "", print)._features()
    assert refused == [at]


def test_the_previous_version_reads_the_rows_of_this_one(previous: Path) -> None:
    """With every field that it does not know, which it leaves out where it writes them again."""
    at = "127.0.0.1", 9001
    node = NodeRecord(
        *at,
        endpoints={BETWEEN_NODES: at, "PLAINTEXT": at},
        incarnation="life-1",
        incomplete=(PLACE,),
        refusing={PLACE: 3},
        log_ends={PLACE: (3, LogEnd(2, 10))},
        lost_commits=7,
        killed=True,
    )
    topic = TopicRecord(TOPIC_ID, {}, (PartitionRecord((1, 2), (1,), 1, 3, elr=(2,), unclean_epoch=3, unproven=(2,)),))
    rows = {"nodes/1": node.encode().decode(), "topic/t": topic.encode().decode()}
    environment = {**os.environ, "PYTHONPATH": str(previous)}
    done = subprocess.run(
        [sys.executable, "-c", READS], input=json.dumps(rows), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    known = json.loads(rows["nodes/1"]) | json.loads(rows["topic/t"])
    written = json.loads(done.stdout)
    assert written == {name: value for name, value in known.items() if name in written}
    left_out = {"incomplete", "refusing", "log_ends", "lost_commits", "killed", "unclean", "unproven"}
    assert known.keys() - written.keys() == left_out
    assert NodeRecord.decode(node.encode()) == node
    assert TopicRecord.decode(topic.encode()) == topic
    assert TopicRecord.decode(topic.encode(), topic.partitions).partitions[0] is topic.partitions[0]


def test_without_the_history_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade_cluster, "TOP", tmp_path)
    with pytest.raises(HistoryMissingError, match="source archive or a shallow clone"):
        previous_sources(tmp_path / "previous")
