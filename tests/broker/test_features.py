"""Levels of features (UpdateFeatures): who may be at which, what a level turns off, and that all nodes keep to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.cluster.duties import turnover
from ottla.broker.upkeep.identity import StartRefusedError
from ottla.metadata.features import (
    FEATURES,
    FEATURES_KEY,
    GROUP_VERSION,
    HIGHEST,
    SHARE_VERSION,
    TRANSACTION_VERSION,
    FeaturesRecord,
)
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import NODE_PROOF, NODES, PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Delete, Put
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from ottla.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NodeStage

UP, DOWN, UNSAFE_DOWN = 1, 2, 3
MEMBER = "a member of a group"


def update(*changes: tuple[str, int, int], dry: bool = False) -> UpdateFeaturesRequest:
    """Feature, level and kind of change of each."""
    keys = [FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in changes]
    return UpdateFeaturesRequest(60_000, keys, dry)


def levels(answer: Any) -> dict[str, int]:
    """What ApiVersions says is in force; without what is at 0."""
    return {each.name: each.max_version_level for each in answer.finalized_features}


def advertised(stage: NodeStage) -> Any:
    return stage.ask(ApiVersionsRequest("c", "1"))


def test_every_level_can_be_set_and_outlives_the_node(stage: NodeStage) -> None:
    assert levels(advertised(stage)) == HIGHEST
    for name, highest in HIGHEST.items():
        for level in range(highest):
            before = advertised(stage).finalized_features_epoch
            assert stage.ask(update((name, level, UNSAFE_DOWN if level else DOWN))).error_code == E.NONE
            after = advertised(stage)
            assert levels(after) == {key: top for key, top in HIGHEST.items() if key != name} | (
                {name: level} if level else {}
            )
            assert after.finalized_features_epoch > before
            stage.restart(clean=False)
            assert levels(advertised(stage)) == levels(after)
            assert stage.ask(update((name, highest, UP))).error_code == E.NONE
    assert levels(advertised(stage)) == HIGHEST


def test_features_from_0_on_are_supported_for_who_understands_them(stage: NodeStage) -> None:
    found = {each.name: (each.min_version, each.max_version) for each in advertised(stage).supported_features}
    assert found == {name: (0, highest) for name, highest in HIGHEST.items()}
    assert stage.ask(ApiVersionsRequest("c", "1"), 3).supported_features == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("no.such", 1, UP), "Local controller 1 does not support this feature."),
        (("no.such", 0, DOWN), "Feature no.such not found."),
        ((TRANSACTION_VERSION, 3, UP), "Local controller 1 only supports versions 0-2"),
        ((TRANSACTION_VERSION, -1, DOWN), "A feature version cannot be less than 0."),
        ((TRANSACTION_VERSION, 1, UP), "Can't downgrade the version of this feature without setting the upgrade type"),
        ((TRANSACTION_VERSION, -1, 7), "The controller does not support the given upgrade type."),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_a_fault_is_told_and_nothing_is_changed(
    stage: NodeStage, change: tuple[str, int, int], why: str, dry: bool
) -> None:
    answer = stage.ask(update((SHARE_VERSION, 0, DOWN), change, dry=dry))
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    fault = f"Invalid update version {change[1]} for feature {change[0]}. {why}"
    assert fault in answer.error_message
    assert levels(advertised(stage)) == HIGHEST


def test_a_level_does_not_rise_by_a_downgrade(stage: NodeStage) -> None:
    stage.ask(update((GROUP_VERSION, 0, DOWN)))
    answer = stage.ask(update((GROUP_VERSION, 1, DOWN)))
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    assert "Can't downgrade to a newer version." in answer.error_message


def test_a_trial_changes_nothing_and_the_first_version_only_raises(stage: NodeStage) -> None:
    epoch = advertised(stage).finalized_features_epoch
    assert stage.ask(update((GROUP_VERSION, 0, DOWN), dry=True)).error_code == E.NONE
    lower = UpdateFeaturesRequest(60_000, [FeatureUpdateKey(GROUP_VERSION, 0, allow_downgrade=True)])
    assert stage.ask(lower, 0).error_code == E.INVALID_UPDATE_VERSION
    assert (levels(advertised(stage)), advertised(stage).finalized_features_epoch) == (HIGHEST, epoch)
    same = UpdateFeaturesRequest(60_000, [FeatureUpdateKey(GROUP_VERSION, 1)])
    assert [each.feature for each in stage.ask(same, 1).results] == [GROUP_VERSION]


def test_without_its_level_there_are_no_groups_of_the_new_protocol(stage: NodeStage) -> None:
    stage.create("t")
    stage.ask(FindCoordinatorRequest("g"), 3)
    joins = ConsumerGroupHeartbeatRequest("g", MEMBER, 0, None, None, 60_000, ["t"], topic_partitions=[])
    assert stage.ask(joins).error_code == E.NONE
    stage.ask(update((GROUP_VERSION, 0, DOWN)))
    assert stage.ask(joins).error_code == E.UNSUPPORTED_VERSION
    described = stage.ask(ConsumerGroupDescribeRequest(["g", "h"])).groups
    assert [(each.group_id, each.error_code) for each in described] == [
        ("g", E.UNSUPPORTED_VERSION),
        ("h", E.UNSUPPORTED_VERSION),
    ]
    stage.ask(update((GROUP_VERSION, 1, UP)))
    assert stage.ask(joins).error_code == E.NONE


def test_without_its_level_there_are_no_share_groups(stage: NodeStage) -> None:
    topic_id = stage.create("t").id

    def fetch(member: str, epoch: int) -> Any:
        places = [FetchTopic(topic_id, [FetchPartition(0)])] if epoch == 0 else []
        return stage.ask(ShareFetchRequest("g", member, epoch, 0, 1, 1 << 20, 500, 500, topics=places))

    assert fetch(MEMBER, 0).error_code == E.NONE
    stage.run(1_000)
    stage.append("t")
    assert fetch(MEMBER, 1).responses[0].partitions[0].acquired_records
    stage.ask(update((SHARE_VERSION, 0, DOWN)))
    refused = [
        fetch(MEMBER, 2),
        stage.ask(ShareAcknowledgeRequest("g", MEMBER, 1)),
        stage.ask(ShareGroupHeartbeatRequest("g", MEMBER, 0, None, ["t"])),
        stage.ask(ShareGroupDescribeRequest(["g"])).groups[0],
        stage.ask(DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup("g")])).groups[0],
        stage.ask(AlterShareGroupOffsetsRequest("g")),
        stage.ask(DeleteShareGroupOffsetsRequest("g")),
    ]
    assert [each.error_code for each in refused] == [E.UNSUPPORTED_VERSION] * len(refused)
    stage.ask(update((SHARE_VERSION, 1, UP)))
    assert fetch(MEMBER, 2).error_code == E.SHARE_SESSION_NOT_FOUND
    assert fetch("another", 0).responses[0].partitions[0].acquired_records


def test_a_level_that_a_registered_node_does_not_support_is_refused(tmp_path: Path) -> None:
    pair = NodePair(tmp_path)
    store = pair.stages[1].store
    pair.ask(1, update((TRANSACTION_VERSION, 1, DOWN), (SHARE_VERSION, 0, DOWN)))
    row = store.get(f"{PREFIX}2")
    assert row is not None
    assert NodeRecord.decode(row.value).features == {**HIGHEST, NODE_PROOF: 1}
    older = replace(NodeRecord.decode(row.value), features={TRANSACTION_VERSION: 1})
    for state in (NodeState.ACTIVE, NodeState.LEAVING):
        store.commit([Put(f"{PREFIX}2", replace(older, state=state).encode())])
        pair.settle()
        for name, why in (
            (TRANSACTION_VERSION, "Broker 2 only supports versions 0-1"),
            (SHARE_VERSION, "Broker 2 does not support this feature."),
        ):
            answer = pair.ask(2, update((name, HIGHEST[name], UP)))
            assert (answer.error_code, why in answer.error_message) == (E.INVALID_UPDATE_VERSION, True)
        assert pair.ask(2, update((GROUP_VERSION, 0, DOWN), (TRANSACTION_VERSION, 0, DOWN))).error_code == E.NONE
        assert pair.ask(2, update((TRANSACTION_VERSION, 1, UP))).error_code == E.NONE
    store.commit([Delete(f"{PREFIX}2")])
    pair.settle()
    assert pair.ask(1, update((TRANSACTION_VERSION, 2, UP))).error_code == E.NONE


def test_a_node_that_is_too_old_for_a_level_does_not_start(stage: NodeStage) -> None:
    stage.end()
    for levels_set, starts in (
        ({"later.version": 0}, True),
        ({"later.version": 1}, False),
        ({GROUP_VERSION: 2}, False),
    ):
        stage.store.commit([Put(FEATURES_KEY, FeaturesRecord(levels_set).encode())])
        if starts:
            stage.start()
            stage.end()
            continue
        ((name, level),) = levels_set.items()
        with pytest.raises(StartRefusedError) as refused:
            stage.start()
        assert str(refused.value) == (
            f"The cluster is at level {level} of {name}, and this version of Ottla supports 0 to "
            f"{HIGHEST.get(name, 0)}: start a newer one, or lower the level first."
        )


def test_a_node_that_registers_while_a_level_rises_beyond_it_is_not_taken_in(tmp_path: Path) -> None:
    starting = NodeRecord("b", 1, incarnation="second", state=NodeState.STARTING, features={GROUP_VERSION: 1})
    nodes = {"1": NodeRecord("a", 1, incarnation="first"), "2": starting}
    present = {1: "first", 2: "second"}
    image = MetadataImage.of(0, {NODES: nodes, FEATURES: FeaturesRecord({TRANSACTION_VERSION: 0, SHARE_VERSION: 1})})
    assert turnover(image, present).states == {}
    assert turnover(image, {1: "first"}).states == {2: NodeState.FENCED}
    image = MetadataImage.of(0, {NODES: nodes, FEATURES: FeaturesRecord({TRANSACTION_VERSION: 0, SHARE_VERSION: 0})})
    assert turnover(image, present).states == {2: NodeState.ACTIVE}
    pair = NodePair(tmp_path)
    pair.stages[1].store.commit([Put(FEATURES_KEY, FeaturesRecord({GROUP_VERSION: 2}).encode())])
    pair.settle()
    assert any("The cluster is at level 2 of group.version" in each for each in pair.stages[2].notes)


def test_the_controller_decides_and_every_node_hears(tmp_path: Path) -> None:
    pair = NodePair(tmp_path)
    assert pair.ask(2, update((TRANSACTION_VERSION, 1, DOWN))).error_code == E.NONE
    pair.settle()
    assert {stage.node.image.level_of(TRANSACTION_VERSION) for stage in pair.stages.values()} == {1}
    assert pair.ask(1, update((TRANSACTION_VERSION, 2, UP))).error_code == E.NONE
    pair.settle()
    assert levels(pair.ask(2, ApiVersionsRequest("c", "1"))) == HIGHEST
