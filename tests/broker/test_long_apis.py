"""Every API whose request may be long has a test of its slices, or a reason why it needs none."""

from pathlib import Path
from typing import Any

import pytest
from test_slices import LONG

from ottla.broker.api import group_calls, k24_add_partitions_to_txn, k28_txn_offset_commit, share_state_calls
from ottla.broker.requests import RequestRefusedError
from ottla.broker.served import SPECS
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest, InitializeStateData
from ottla.protocol.messages.initialize_share_group_state import PartitionData as Begun
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.write_share_group_state import PartitionData as Written
from ottla.protocol.messages.write_share_group_state import StateBatch, WriteShareGroupStateRequest, WriteStateData
from ottla.share.state import ShareStateShard
from tests.harness.node_stage import NodeStage

TESTS = Path(__file__).resolve().parent.parent

PLACES = [TxnOffsetCommitRequestPartition(index, 5, -1, None) for index in range(3)]

SLICED = {
    0: "broker/test_produce_slices.py::test_the_answer_is_the_same_as_in_one_go",
    1: "broker/test_fetch_slices.py::test_the_answer_is_the_same_as_in_one_go",
    3: "broker/test_slices.py::test_metadata_in_slices_is_metadata_in_one_go",
    19: "broker/test_slices.py::test_many_topics_are_made_as_few_are",
    32: "broker/test_slices.py::test_many_configurations_are_what_they_are_one_by_one",
    47: "broker/test_offset_slices.py::test_what_is_deleted_in_slices_is_what_one_request_deletes",
    78: "share/test_acknowledging_slices.py::test_a_fetch_that_acknowledges_much_is_answered_once_and_with_records",
    79: "share/test_acknowledging_slices.py::test_many_acknowledgements_leave_the_others_their_turn",
    10_900: "share/test_described_runs.py::test_a_long_answer_is_built_in_slices",
    10_902: "broker/test_together.py::test_each_answer_is_that_of_the_request_alone",
}
"""API keys: the tests of those that are not among `LONG`."""

BOUNDED = {
    28: "20,000 partitions",
    33: "2,000 changes of one resource; resources are pieces",
    44: "2,000 changes of one resource; resources are pieces",
    68: "20,000 subscribed topics",
    76: "20,000 subscribed topics",
    10_903: "1,000 topics, partitions and records",
}

QUICK = {
    11: "protocols are opaque, and as many as their bytes",
    14: "assignments are opaque, and as many as their bytes",
    30: "refused before its elements are looked at: there is no authorizer",
    31: "refused before its elements are looked at: there is no authorizer",
    38: "refused before its elements are looked at: no delegation tokens",
    41: "refused before its elements are looked at: no delegation tokens",
    46: "what is under way is looked up, not what is asked",
    48: "no quotas are kept",
    57: "a microsecond each",
    74: "a set of five kinds",
    56: "between nodes that trust each other only",
    80: "refused before its elements are looked at: no quorum",
    88: "refused before its elements are looked at: no streams groups",
}


@pytest.mark.parametrize("heartbeat", [ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest])
def test_a_member_names_no_more_topics_than_are_looked_at_at_once(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, heartbeat: Any
) -> None:
    monkeypatch.setattr(group_calls, "SUBSCRIBED_MAX", 3)
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    asked = heartbeat("g", "m")
    if heartbeat is ConsumerGroupHeartbeatRequest:
        asked.rebalance_timeout_ms, asked.topic_partitions = 1_000, []
    asked.subscribed_topic_names = ["a", "b", "c", "d"]
    answer = stage.ask(asked, 1)
    assert (answer.error_code, "more than 3" in answer.error_message) == (ErrorCode.INVALID_REQUEST, True)
    asked.subscribed_topic_names = ["a", "b", "c"]
    assert stage.ask(asked, 1).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        (AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic("t", [1, 2, 3])]), 3),
        (TxnOffsetCommitRequest("x", "g", 1, 0, topics=[TxnOffsetCommitRequestTopic("t", PLACES)]), 3),
    ],
)
def test_a_transaction_takes_no_more_partitions_than_are_looked_at_at_once(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, asked: Any, version: int
) -> None:
    for module in (k24_add_partitions_to_txn, k28_txn_offset_commit):
        monkeypatch.setattr(module, "PARTITIONS_MAX", 3)
    with pytest.raises(RequestRefusedError, match="more than 3"):
        stage.ask(asked, version)


def test_a_long_write_of_a_share_partitions_state_is_there_whole(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, of which the first brings the start offset and the last the count; a part refused ends it."""
    monkeypatch.setattr(share_state_calls, "BATCHES_AT_ONCE", 2)
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    topic_id = stage.node.image.topics["t"].id
    begun = InitializeShareGroupStateRequest("g", [InitializeStateData(topic_id, [Begun(0, 3, 0)])])
    assert stage.ask(begun).results[0].partitions[0].error_code == ErrorCode.NONE
    batches = [StateBatch(offset, offset, 2, 1) for offset in range(10, 20, 2)]

    def write(state_epoch: int) -> int:
        part = Written(0, state_epoch, 0, 10, 5, batches)
        asked = WriteShareGroupStateRequest("g", [WriteStateData(topic_id, [part])])
        return stage.ask(asked, 1).results[0].partitions[0].error_code

    assert write(2) == ErrorCode.FENCED_STATE_EPOCH
    assert write(3) == ErrorCode.NONE
    (shard,) = stage.node.coordinators.share_state.shards()
    assert isinstance(shard, ShareStateShard)
    image: Any = shard.image()
    (kept,) = image.values()
    assert kept == (3, 0, 10, 5, [(each.first_offset, each.last_offset, 2, 1) for each in batches])


def is_long(key: int) -> bool:
    """Whether a request of this API has a list."""
    return any("list[" in str(kind) for kind in APIS[key].request.__annotations__.values())


@pytest.mark.parametrize("key", sorted(SPECS))
def test_a_request_that_may_be_long_is_served_in_slices_or_need_not_be(key: int) -> None:
    tested = [key in {request.API_KEY for request, _ in LONG}, key in SLICED, key in BOUNDED, key in QUICK]
    assert sum(tested) == is_long(key), f"{APIS[key].name} stands {sum(tested)} times in this file"


@pytest.mark.parametrize("test", SLICED.values())
def test_the_tests_named_here_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()
