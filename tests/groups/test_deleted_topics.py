"""Offsets of deleted topics, and those that expire, go in slices; what is left to do is names of topics and groups."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.groups.deleted_topics import DeletedTopicsSweep
from ottla.groups.shard import TopicsDeleted
from ottla.machine import AppliedBatch
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.harness.groups.group_stage import QUICK, Stage

SLICE_MAX = 500


def commit(stage: Stage, group: str, topic: str, partitions: int) -> None:
    parts = [OffsetCommitRequestPartition(partition_index=i, committed_offset=5) for i in range(partitions)]
    stage.ask(OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(topic, partitions=parts)]), 8)


@pytest.mark.parametrize(("groups", "partitions"), [(510, 1), (1, 1300)])
def test_offsets_of_deleted_topics_go_in_slices(groups: int, partitions: int) -> None:
    stage = Stage()
    for number in range(groups):
        for topic in (f"t{number % 3}", "stays"):
            commit(stage, f"g{number}", topic, partitions)
    before = len(stage.log)
    stage.ask(TopicsDeleted(tuple(f"t{i}" for i in range(2000))), 0)
    stage.tick(1_000)
    slices = [len(each.records) for each in stage.log[before:] if isinstance(each, AppliedBatch)]
    assert sum(slices) == groups * partitions
    assert max(slices) <= SLICE_MAX
    assert all(stage.shard._offsets.count(f"g{number}") == partitions for number in range(groups))


@pytest.mark.parametrize(("groups", "partitions"), [(300, 3), (1, 1300)])
def test_offsets_expire_in_slices_and_their_groups_go_with_the_last(groups: int, partitions: int) -> None:
    stage = Stage(replace(QUICK, offsets_retention_ms=60_000))
    for number in range(groups):
        commit(stage, f"g{number}", "t", partitions)
    before = len(stage.log)
    stage.tick(700_000)
    slices = [len(each.records) for each in stage.log[before:] if isinstance(each, AppliedBatch)]
    assert sum(slices) >= groups * partitions
    assert max(slices) <= SLICE_MAX + groups
    assert not stage.shard._groups


def test_a_step_costs_the_same_among_few_groups_and_many() -> None:
    """All groups are looked through when a sweep begins, and not for each group that it comes to."""

    class Counted(dict[str, Any]):
        looked_through = 0

        def __iter__(self) -> Iterator[str]:
            Counted.looked_through += 1
            return super().__iter__()

    stage = Stage()
    for number in range(50):
        commit(stage, f"g{number}", "t", 1)
    stage.shard._groups = Counted(stage.shard._groups)
    stage.ask(TopicsDeleted(("t",)), 0)
    stage.tick(1_000)
    assert stage.shard._offsets.count("g49") == 0
    assert Counted.looked_through <= 2


def test_topics_that_go_during_a_sweep_wait_for_the_next_one() -> None:
    sweep = DeletedTopicsSweep()
    groups = ["g", "h"]
    sweep.add(["a"])
    seen: list[tuple[str, list[str]]] = []
    while (group := sweep.next_group(groups)) is not None:
        seen.append((group, list(sweep.topics)))
        if len(seen) == 1:
            sweep.add(["b", "c"])
    assert seen == [("g", ["a"]), ("h", ["a"]), ("g", ["b", "c"]), ("h", ["b", "c"])]
    assert not sweep


def test_a_coordinator_without_groups_has_nothing_to_sweep() -> None:
    sweep = DeletedTopicsSweep()
    sweep.add(["a"])
    assert sweep.next_group([]) is None
    assert not sweep
