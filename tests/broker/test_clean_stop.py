"""A clean stop of many partitions: what has to be on the disk is synced in batches, beside each other."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.upkeep import clean_stop
from ottla.log.syncing import Syncable
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.server import disk
from ottla.server.disk import sync_beside
from tests.harness.node_stage import NodeStage

PARTITIONS = 7


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1)]))
    for index in range(PARTITIONS):
        stage.append("t", index)
    return stage


def is_clean(stage: NodeStage) -> bool:
    return (stage.directory / ".kafka_cleanshutdown").exists()


def test_what_was_synced_in_batches_is_not_synced_again(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_stop, "FILES_AT_ONCE", 8)
    sizes: list[int] = []

    def seen() -> Generator[list[Syncable], Mapping[int, str], None]:
        batches = stage.node.completing()
        files = next(batches)
        with contextlib.suppress(StopIteration):
            while True:
                sizes.append(len(files))
                files = batches.send((yield files))

    sync_beside(seen())
    assert 1 < len(sizes) < PARTITIONS
    synced: list[int] = []
    really = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), really(descriptor)))
    stage.stop()
    assert not synced
    assert is_clean(stage)
    stage.start()
    assert [partition.log.log_end_offset for partition in stage.node.replicas] == [1] * PARTITIONS


def test_a_batch_that_was_begun_and_left_is_synced_by_the_stop(stage: NodeStage) -> None:
    batches = stage.node.completing()
    next(batches)
    batches.send({})
    stage.stop()
    assert is_clean(stage)


def test_a_file_that_fails_fails_its_partition_alone(stage: NodeStage) -> None:
    batches = stage.node.completing()
    next(batches)  # the data directory
    files = batches.send({})
    with pytest.raises(StopIteration):
        batches.send({len(files) - 1: "Input/output error"})
    failed = [partition.log.failed is not None for partition in stage.node.replicas.by_name["t"].partitions.values()]
    assert failed == [False] * (PARTITIONS - 1) + [True]
    stage.stop()
    assert not is_clean(stage)


def test_each_file_and_directory_is_synced_once(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        really = getattr(os, name)

        def seen(descriptor: int, really: Callable[[int], None] = really) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            really(descriptor)

        monkeypatch.setattr(os, name, seen)
    sync_beside(stage.node.completing())
    assert str(stage.directory) in synced
    assert len(synced) == len(set(synced)) > PARTITIONS


def test_a_data_directory_that_fails_is_asked_for_again(stage: NodeStage) -> None:
    batches = stage.node.completing()
    next(batches)
    batches.send({0: "Input/output error"})
    logs = [partition.log for partition in stage.node.replicas]
    assert all(under_way.newborn for log in logs for under_way in log.syncing._rounds)
    batches.close()  # and does not say what became of the rest
    stage.stop()
    assert is_clean(stage)


def test_each_thread_has_its_share_of_a_batch_at_once(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[object] = []
    really = ThreadPoolExecutor.submit

    def seen(pool: ThreadPoolExecutor, *work: Any) -> Future[Any]:
        handed_out.append(work)
        return really(pool, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", seen)
    monkeypatch.setattr(disk, "SYNCS_AT_ONCE", 2)
    sync_beside(stage.node.completing())
    assert len(handed_out) == 3  # the directory that all are in, then two shares of the rest
    stage.stop()
    assert is_clean(stage)
