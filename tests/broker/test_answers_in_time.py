"""A request that waits for the metadata store or for the controller is answered by its timeout, and says so."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.requests import PATIENCE_MS
from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import StoreError
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_configs import AlterableConfig as ReplacedError
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.alter_configs import AlterConfigsResource as Replacing
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import Asked, NodeStage

CONTROLLER, OTHER = 1, 2
TIMEOUT_MS = 2_000
IN_TIME_MS = TIMEOUT_MS * 9 // 10
TOPIC = 2


def create(name: str, timeout_ms: int = TIMEOUT_MS) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, 1, 1)], timeout_ms)


def errors(answer: Any) -> list[int]:
    """The errors in an answer, those of a whole one and those of its topics or resources."""
    whole = [answer.error_code] if hasattr(answer, "error_code") else []
    for name in ("topics", "responses", "results"):
        whole += [each.error_code for each in getattr(answer, name, ()) if hasattr(each, "error_code")]
    return whole


ASKED = [
    (create("t"), None),
    (DeleteTopicsRequest(["t"], timeout_ms=TIMEOUT_MS), 5),
    (DeleteTopicsRequest(topics=[DeleteTopicState("t")], timeout_ms=TIMEOUT_MS), 6),
    (CreatePartitionsRequest([CreatePartitionsTopic("t", 2, None)], TIMEOUT_MS), None),
    (ElectLeadersRequest(0, [TopicPartitions("t", [0])], TIMEOUT_MS), None),
    (
        AlterPartitionReassignmentsRequest(
            TIMEOUT_MS, topics=[ReassignableTopic("t", [ReassignablePartition(0, [1, 2])])]
        ),
        None,
    ),
    (ListPartitionReassignmentsRequest(TIMEOUT_MS, None), None),
    (UnregisterBrokerRequest(3), None),
    (AlterConfigsRequest([Replacing(TOPIC, "t", [ReplacedError("retention.ms", "5")])]), None),
    (
        IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC, "t", [AlterableConfig("retention.ms", 0, "5")])]),
        None,
    ),
]


@pytest.mark.parametrize(("asked", "version"), ASKED, ids=lambda each: type(each).__name__)
def test_what_the_controller_does_not_answer(tmp_path: Path, asked: Any, version: int | None) -> None:
    pair = NodePair(tmp_path)
    pair.ask(CONTROLLER, create("t"))
    pair.away.add(CONTROLLER)
    waiting = pair.stages[OTHER].send(asked, version)
    in_time_ms = IN_TIME_MS if hasattr(asked, "timeout_ms") else PATIENCE_MS * 9 // 10
    pair.run(in_time_ms - 1)
    assert not waiting.answered
    pair.run(1)
    assert set(errors(waiting.answer)) == {E.REQUEST_TIMED_OUT}
    pair.away.clear()
    pair.settle()


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """A node whose store takes the commits that the test lets through."""
    stage = NodeStage(tmp_path)
    stage.hold_commits = True
    return stage


def test_what_the_store_does_not_answer_is_done_later_or_not(stage: NodeStage) -> None:
    first, second = stage.send(create("t")), stage.send(create("u", TIMEOUT_MS // 2))
    stage.run(IN_TIME_MS // 2)
    assert errors(second.answer) == [E.REQUEST_TIMED_OUT]
    assert not first.answered
    stage.run(IN_TIME_MS // 2)
    assert errors(first.answer) == [E.REQUEST_TIMED_OUT]
    third = stage.send(create("t"))
    stage.hold_commits = False
    stage.run()
    assert errors(third.answer) == [E.TOPIC_ALREADY_EXISTS]
    assert sorted(stage.node.image.topics) == ["t"], "nobody has begun with the other one"


@pytest.mark.parametrize("done", [False, True])
def test_a_store_that_can_not_be_read(stage: NodeStage, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what became of the commit: that stays so until the store answers again."""

    def unreachable(store: MemoryStore, key: str) -> None:
        raise StoreError("no server of it answers")

    waiting = stage.send(create("t"))
    with monkeypatch.context() as silent:
        silent.setattr(MemoryStore, "get", unreachable)
        stage.lose_commit(done=done)
        stage.run(IN_TIME_MS)
        assert errors(waiting.answer) == [E.REQUEST_TIMED_OUT]
    stage.hold_commits = False
    stage.run(TIMEOUT_MS)
    assert ("t" in stage.node.image.topics) == done
    assert errors(stage.ask(create("u"))) == [E.NONE]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (InitProducerIdRequest(None, 0), E.COORDINATOR_LOAD_IN_PROGRESS),
        (InitProducerIdRequest("tx", 60_000), E.COORDINATOR_LOAD_IN_PROGRESS),
        (FindCoordinatorRequest("g"), E.COORDINATOR_NOT_AVAILABLE),
    ],
    ids=["producer id", "transactional id", "coordinator"],
)
def test_coordinators_that_wait_for_the_store(tmp_path: Path, asked: Any, error: E) -> None:
    stage = NodeStage(tmp_path)
    stage.ask(FindCoordinatorRequest("tx", key_type=1), 3)
    stage.hold_commits = True
    waiting: Asked = stage.send(asked, 3)
    stage.run(PATIENCE_MS)
    assert errors(waiting.answer) == [error]


def test_who_names_no_time_is_not_refused_at_once(stage: NodeStage) -> None:
    waiting = stage.send(create("t", 0))
    stage.run(1_000)
    assert not waiting.answered
    stage.commit()
    stage.run()
    assert errors(waiting.answer) == [E.NONE]
