"""What clients are told of the other nodes of a cluster: who they are, where they are, and who coordinates what."""

from pathlib import Path

import pytest

from ottla.broker.cluster.members import NOBODY
from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Put
from ottla.metadata.topics import DeletedTopic
from tests.node_stage import NodeStage, session_of

ADDRESS = session_of(1).address


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """Node 1 of a cluster with node 2 active, and node 3 fenced."""
    stage = NodeStage(tmp_path)
    stage.node.members.is_alone, stage.node.members.incarnation = False, "life"
    rows = {
        1: NodeRecord("internal-1", 19092),
        2: NodeRecord("internal-2", 19092, "b", {"PLAINTEXT": ("outside-2", 9092)}),
        3: NodeRecord("internal-3", 19092, state=NodeState.FENCED),
    }
    stage.store.commit([Put(f"{PREFIX}{node_id}", row.encode()) for node_id, row in rows.items()])
    stage.store.commit([Put(CONTROLLER_KEY, ControllerRecord(2, "life", 4).encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    return stage


def test_a_node_alone_is_the_cluster(tmp_path: Path) -> None:
    members = NodeStage(tmp_path).node.members
    assert members.shown(ADDRESS) == members.of(ADDRESS, [7, 1]) == [(1, "broker.example", 9092, None)]
    assert members.of(ADDRESS, []) == members.of(ADDRESS, [7]) == []
    assert members.controller_id == 1


def test_all_that_serve_are_shown_by_the_clients_listener(stage: NodeStage) -> None:
    """A client hears of this node by the address it came in by, of others by what they have registered for it."""
    assert stage.node.members.shown(ADDRESS) == [(1, "broker.example", 9092, None), (2, "outside-2", 9092, "b")]
    assert stage.node.members.of(ADDRESS, [2, 3, 2, NOBODY]) == [(2, "outside-2", 9092, "b")]
    assert stage.node.members.controller_id == 2


def test_rows_know_their_versions(stage: NodeStage) -> None:
    """A registration's own version is its broker epoch, until the row says another."""
    image = stage.node.image
    assert image.controller == ControllerRecord(2, "life", 4, version=image.generation)
    registered = image.nodes["2"]
    assert registered.broker_epoch == registered.version > 0
    kept = NodeRecord("internal-2", 19092, state=NodeState.LEAVING, broker_epoch=registered.broker_epoch)
    stage.store.commit([Put(f"{PREFIX}2", kept.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    changed = stage.node.image.nodes["2"]
    assert (changed.broker_epoch, changed.state) == (registered.broker_epoch, NodeState.LEAVING)
    assert changed.version > registered.version


def test_rows_of_older_stores_are_read() -> None:
    assert NodeRecord.decode(b'{"host": "h", "port": 1, "rack": null}') == NodeRecord("h", 1)
    whole = NodeRecord("h", 1, "r", {"CLIENTS": ("c", 2)}, "life", NodeState.LEAVING, False, 17)
    assert NodeRecord.decode(whole.encode()) == whole
    of_all = DeletedTopic.decode("deleted/" + "00" * 16, b'{"name": "t", "partitions": 2}')
    assert of_all == DeletedTopic(bytes(16), "t", 2, None)
    of_one = DeletedTopic(bytes(16), "t", 2, 3)
    assert DeletedTopic.decode(of_one.key, of_one.encode()) == of_one
