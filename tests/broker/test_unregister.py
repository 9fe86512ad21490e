"""UnregisterBroker: a node that is gone and holds nothing is forgotten, any other is kept."""

from pathlib import Path

import pytest

from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tests.harness.node_stage import NodeStage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """The controller of a cluster: node 2 serves, 3 and 4 are fenced, and 3 has a replica."""
    stage = NodeStage(tmp_path)
    stage.node.members.is_alone, stage.node.members.incarnation = False, "life"
    states = {1: NodeState.ACTIVE, 2: NodeState.ACTIVE, 3: NodeState.FENCED, 4: NodeState.FENCED}
    placed = PartitionRecord(replicas=(2, 3), isr=(2,), leader=2)
    rows = {f"{PREFIX}{node_id}": NodeRecord("h", 9092, state=state) for node_id, state in states.items()}
    stage.store.commit([Put(key, row.encode()) for key, row in rows.items()])
    stage.store.commit([Put(CONTROLLER_KEY, ControllerRecord(1, "life", 4).encode())])
    stage.store.commit([Put(key_of("t"), TopicRecord(b"t" * 16, {}, (placed,)).encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    return stage


def unregister(stage: NodeStage, node_id: int) -> UnregisterBrokerResponse:
    answer: UnregisterBrokerResponse = stage.ask(UnregisterBrokerRequest(broker_id=node_id))
    return answer


def test_a_node_that_is_gone_and_holds_nothing_is_forgotten(stage: NodeStage) -> None:
    assert unregister(stage, 4).error_code == E.NONE
    assert sorted(stage.node.image.nodes) == ["1", "2", "3"]
    assert unregister(stage, 4).error_code == E.BROKER_ID_NOT_REGISTERED


def test_who_serves_or_holds_replicas_is_kept(stage: NodeStage) -> None:
    for node_id, why in ((1, "serves"), (2, "serves"), (3, "replicas of 1 partitions")):
        answer = unregister(stage, node_id)
        assert (answer.error_code, why in (answer.error_message or "")) == (E.INVALID_REQUEST, True)
    assert sorted(stage.node.image.nodes) == ["1", "2", "3", "4"]


def test_a_node_alone_is_not_unregistered(tmp_path: Path) -> None:
    alone = NodeStage(tmp_path)
    assert unregister(alone, 1).error_code == E.INVALID_REQUEST
    assert unregister(alone, 2).error_code == E.BROKER_ID_NOT_REGISTERED
