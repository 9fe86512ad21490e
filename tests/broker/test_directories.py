"""What a start makes of the data directory: topics the store lost, deletions that did not happen, long names."""

import errno
import gc
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import Store, Sync
from ottla.broker.topics.adoption import sort_directories, stray_path
from ottla.log.files import DiskFile, DiskFiles
from ottla.metadata.memory import MemoryStore
from ottla.metadata.producer_ids import BLOCK
from ottla.metadata.store import Delete, VersionGuard, Write
from ottla.metadata.topics import TopicRecord, key_of
from ottla.protocol.messages.alter_configs import AlterableConfig as PlainConfig
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.broker import test_kraft_configs as kraft
from tests.harness.node_stage import NodeStage

DAY_MS = 86_400_000
LONGEST = "t" * 249
TOPIC, SET, UNSET = 2, 0, 1


class PlainFiles(DiskFiles):
    """The real file system with calls that fail: `failing` has (name of the call, part of the path)."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[tuple[str, str]] = set()
        self.error = errno.EACCES

    def _perhaps(self, call: str, path: str) -> None:
        for name, part in self.failing:
            if name == call and part in path:
                raise OSError(self.error, os.strerror(self.error), path)

    def rename(self, old: str, new: str) -> None:
        self._perhaps("rename", old)
        super().rename(old, new)

    def rmtree(self, path: str) -> None:
        self._perhaps("rmtree", path)
        super().rmtree(path)

    def listdir(self, path: str) -> list[str]:
        self._perhaps("listdir", path)
        return super().listdir(path)

    def read_bytes(self, path: str) -> bytes:
        self._perhaps("read_bytes", path)
        return super().read_bytes(path)


@pytest.fixture
def ailing(tmp_path: Path) -> tuple[NodeStage, PlainFiles]:
    files = PlainFiles()
    return NodeStage(tmp_path / "node", files=files), files


def create(stage: NodeStage, name: str, partitions: int = 1) -> int:
    return stage.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)])).topics[0].error_code


def delete(stage: NodeStage, name: str) -> int:
    return stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name)])).responses[0].error_code


def alter(stage: NodeStage, name: str, *changes: tuple[str, int, str | None]) -> None:
    configs = [AlterableConfig(key, operation, value) for key, operation, value in changes]
    answer = stage.ask(IncrementalAlterConfigsRequest([IncrementalResource(TOPIC, name, configs)]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def own_configs(stage: NodeStage, name: str) -> dict[str, str | None]:
    (answer,) = stage.ask(DescribeConfigsRequest([DescribeConfigsResource(TOPIC, name, None)])).results
    return {config.name: config.value for config in answer.configs if config.config_source == 1}


def ends(stage: NodeStage, name: str) -> list[tuple[int, int]]:
    return [
        (p.log.log_start_offset, p.log.log_end_offset) for p in stage.node.replicas.by_name[name].partitions.values()
    ]


def directories(stage: NodeStage) -> list[str]:
    return sorted(name for name in os.listdir(stage.directory) if os.path.isdir(stage.directory / name))


def remarks(stage: NodeStage) -> list[str]:
    """What the log says beside that there was something to recover."""
    return [note for note in stage.notes if "did not stop cleanly" not in note]


def lost_store(stage: NodeStage, *, clean: bool = True) -> None:
    stage.stop() if clean else None
    stage.store = MemoryStore()
    stage.restart(clean=False)


# ---- topics whose configs are not known ----------------------------------------------------------------------------


def with_old_records(stage: NodeStage, name: str = "orders") -> None:
    """A topic that keeps its records for ever, which are older than the broker keeps any; then the store is lost."""
    assert create(stage, name) == 0
    alter(stage, name, ("retention.ms", SET, "-1"))
    for _ in range(3):
        stage.append(name, timestamp=stage.now - 30 * DAY_MS)
    stage.run(60_000)
    assert ends(stage, name) == [(0, 3)]
    lost_store(stage)


def test_what_was_taken_over_is_kept_until_somebody_confirms_its_configs(stage: NodeStage) -> None:
    with_old_records(stage)
    for _ in range(3):
        stage.run(DAY_MS)
        assert ends(stage, "orders") == [(0, 3)]
        assert own_configs(stage, "orders") == {"ottla.retention.hold": "true"}
        stage.notes.clear()
        stage.restart(clean=False)
        assert any("delete nothing of topic orders" in note for note in stage.notes), stage.notes
    alter(stage, "orders", ("segment.bytes", SET, "2000000"))
    stage.run(60_000)
    assert ends(stage, "orders") == [(0, 3)]
    stage.notes.clear()
    alter(stage, "orders", ("retention.ms", SET, str(DAY_MS)))
    assert own_configs(stage, "orders") == {"retention.ms": str(DAY_MS), "segment.bytes": "2000000"}
    stage.run(60_000)
    assert ends(stage, "orders") == [(3, 3)]
    assert any("orders-0: retention deleted the records below offset 3" in note for note in stage.notes), stage.notes


def test_topics_of_a_kafka_broker_keep_the_configs_in_its_metadata_log(stage: NodeStage) -> None:
    assert create(stage, "orders") == 0
    stage.append("orders")
    identity = stage.node.replicas.by_name["orders"].id
    known = [kraft.topic("orders", identity), kraft.config("orders", "retention.ms", "60000")]
    strange = [kraft.config("orders", "no.such.config", "1"), kraft.config("orders", "segment.bytes", "-5")]
    kraft.write(Path(stage.directory), kraft.SEGMENT, known + strange)
    lost_store(stage)
    assert own_configs(stage, "orders") == {"retention.ms": "60000", "ottla.retention.hold": "true"}
    notes = "\n".join(stage.notes)
    assert "with the configs in Kafka's metadata log" in notes
    assert "no.such.config=1 of topic orders" in notes
    assert "segment.bytes=-5 of topic orders" in notes


@pytest.mark.parametrize("how", ["unset", "false", "replaced"])
def test_a_hold_ends_as_any_config_does(stage: NodeStage, how: str) -> None:
    with_old_records(stage)
    if how == "unset":
        alter(stage, "orders", ("ottla.retention.hold", UNSET, None))
    elif how == "false":
        alter(stage, "orders", ("ottla.retention.hold", SET, "false"))
    else:
        resource = AlterConfigsResource(TOPIC, "orders", [PlainConfig("cleanup.policy", "delete")])
        assert stage.ask(AlterConfigsRequest([resource])).responses[0].error_code == 0
    stage.run(60_000)
    assert ends(stage, "orders") == [(3, 3)]


def test_a_topic_on_hold_is_not_compacted_and_obeys_deletion_of_records(stage: NodeStage) -> None:
    assert create(stage, "t") == 0
    alter(stage, "t", ("cleanup.policy", SET, "compact"), ("ottla.retention.hold", SET, "true"))
    config = stage.node.replicas.by_name["t"].log_config
    assert not config.compacted
    assert not config.deletes
    stage.append("t")
    stage.append("t")
    assert stage.node.replicas.by_name["t"].partitions[0].log.delete_records_before(1)
    assert ends(stage, "t") == [(1, 2)]


# ---- a store that lost its newest commits --------------------------------------------------------------------------


def test_a_store_knows_of_lost_commits_until_their_topics_are_on_hold(
    ailing: tuple[NodeStage, PlainFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first commit it has a newer number than any that it lost."""
    stage, files = ailing
    assert create(stage, "t") == 0
    assert create(stage, "gone") == 0
    stage.append("gone")
    first = stage.ask(InitProducerIdRequest(None, 1000)).producer_id
    files.failing = {("rename", "/gone-0"), ("rmtree", "/gone-0")}
    assert delete(stage, "gone") == 0
    stage.run(10)
    files.failing = set()
    stage.store.lost = 3
    commit = stage.store.commit

    def commits_once(writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        commit(writes, guards)
        raise KeyboardInterrupt

    monkeypatch.setattr(MemoryStore, "commit", staticmethod(commits_once))
    with pytest.raises(KeyboardInterrupt):
        stage.restart(clean=False)
    monkeypatch.undo()
    stage.store.lost = 0
    stage.restart(clean=False)
    assert own_configs(stage, "t") == {"ottla.retention.hold": "true"}
    assert stage.ask(InitProducerIdRequest(None, 1000)).producer_id >= first + 4 * BLOCK, "each may have given a block"


def test_topics_that_the_store_lost_are_taken_over_beside_those_it_has(stage: NodeStage) -> None:
    assert create(stage, "old") == 0
    stage.append("old")
    assert create(stage, "new", 3) == 0
    stage.append("new", 1)
    identity = stage.node.replicas.by_name["new"].id
    stage.store.commit([Delete(key_of("new"))])
    stage.restart(clean=False)
    assert stage.node.replicas.by_name["new"].id == identity
    assert ends(stage, "new") == [(0, 0), (0, 1)]
    assert own_configs(stage, "new") == {"ottla.retention.hold": "true"}
    assert own_configs(stage, "old") == {}
    assert not [name for name in directories(stage) if name.endswith("-stray")]


def test_partitions_that_the_store_lost_are_taken_over(stage: NodeStage) -> None:
    assert create(stage, "t") == 0
    stage.append("t")
    row = stage.store.get(key_of("t"))
    assert row is not None
    stage.change(stage.node.topics.growing(stage.node.image.topics["t"], 4))
    stage.append("t", 2)
    put(stage, "t", TopicRecord.decode(row.value))
    stage.restart(clean=False)
    assert ends(stage, "t") == [(0, 1), (0, 0), (0, 1)]


def test_a_topic_made_anew_is_served_where_the_store_knows_only_the_old_one(stage: NodeStage) -> None:
    assert create(stage, "t") == 0
    stage.append("t")
    row = stage.store.get(key_of("t"))
    assert row is not None
    assert delete(stage, "t") == 0
    assert create(stage, "t") == 0
    stage.append("t")
    stage.append("t")
    identity = stage.node.replicas.by_name["t"].id
    put(stage, "t", TopicRecord.decode(row.value))
    stage.restart(clean=False)
    assert stage.node.replicas.by_name["t"].id == identity
    assert ends(stage, "t") == [(0, 2)]
    assert own_configs(stage, "t") == {"ottla.retention.hold": "true"}


def put(stage: NodeStage, name: str, record: TopicRecord) -> None:
    from ottla.metadata.store import Put

    stage.store.commit([Put(key_of(name), record.encode())])


# ---- deletions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [200, 213, 214, 215, 249])
def test_a_topic_with_a_long_name_is_gone_when_it_is_deleted(stage: NodeStage, length: int) -> None:
    name = "t" * length
    assert create(stage, name, 12) == 0
    for index in (0, 1, 11):
        stage.append(name, index)
    assert delete(stage, name) == 0
    assert create(stage, name, 12) == 0
    assert ends(stage, name) == [(0, 0)] * 12
    assert stage.append(name, 11) == 0
    assert delete(stage, name) == 0
    stage.run(10)
    assert directories(stage) == []
    stage.restart()
    assert stage.notes == []


def test_a_stranger_with_a_long_name_is_put_aside(stage: NodeStage) -> None:
    stage.stop()
    for index in (0, 77):
        (stage.directory / f"{LONGEST}-{index}").mkdir()
        (stage.directory / f"{LONGEST}-{index}" / "00000000000000000000.log").write_text("precious")
    stage.restart(clean=False)
    found = directories(stage)
    assert [name.endswith("-stray") for name in found] == [True, True]
    assert len(stray_path(f"/d/{LONGEST}-0", None, ".ffffffff").rpartition("/")[2]) == 255


@pytest.mark.parametrize("failing", [{("rename", "/t-0")}, {("rename", "/t-0"), ("rmtree", "/t-0")}])
def test_no_topic_finds_the_records_of_a_deleted_one(ailing: tuple[NodeStage, PlainFiles], failing: set[Any]) -> None:
    stage, files = ailing
    assert create(stage, "t") == 0
    stage.append("t")
    files.failing = failing
    assert delete(stage, "t") == 0
    stage.run(10)
    again = create(stage, "t")
    if again == 0:
        assert ends(stage, "t") == [(0, 0)]
        return
    assert again == 56
    stage.restart(clean=False)  # the directory is still there, and is known as a deleted topic's
    assert create(stage, "t") == 56
    stage.restart()
    files.failing = set()
    stage.run(60_000)
    assert directories(stage) == []
    assert create(stage, "t") == 0
    assert ends(stage, "t") == [(0, 0)]
    assert stage.append("t") == 0
    stage.restart()
    assert list(stage.store.list("deleted/")) == []


def test_a_deleted_topic_whose_directory_could_not_be_read_stays_deleted(
    ailing: tuple[NodeStage, PlainFiles],
) -> None:
    stage, files = ailing
    assert create(stage, "t") == 0
    assert create(stage, "other") == 0
    stage.append("t")
    stage.append("other")
    files.failing = {("rename", "/t-0"), ("rmtree", "/t-0"), ("rename", "/other-0"), ("rmtree", "/other-0")}
    assert delete(stage, "t") == 0
    assert delete(stage, "other") == 0
    stage.run(10)
    files.failing = {("read_bytes", "/t-0/partition.metadata")}
    stage.restart(clean=False)
    assert directories(stage) == ["t-0"]
    assert [row.value for _, row in stage.store.list("deleted/") if b"other" in row.value] == []
    files.failing = set()
    stage.restart(clean=False)
    assert "t" not in stage.node.replicas.by_name
    assert directories(stage) == []
    assert list(stage.store.list("deleted/")) == []


def test_a_directory_that_cannot_be_removed_delays_no_other(ailing: tuple[NodeStage, PlainFiles]) -> None:
    stage, files = ailing
    for name, partitions in (("bad", 10), ("good", 10)):
        assert create(stage, name, partitions) == 0
        for index in range(partitions):
            stage.append(name, index)
    files.failing = {("rename", "/bad-"), ("rmtree", "/bad-")}
    assert delete(stage, "bad") == 0
    assert delete(stage, "good") == 0
    stage.run(100)
    assert {name.split("-")[0] for name in directories(stage)} == {"bad"}
    assert sum("can't be removed" in note for note in stage.notes) == 10
    stage.run(300_000)
    assert sum("can't be removed" in note for note in stage.notes) == 10


def test_checkpoints_of_a_deleted_topic_that_could_not_be_replaced_are_replaced_soon(stage: NodeStage) -> None:
    assert create(stage, "t") == 0
    for _ in range(9):
        stage.append("t")
    assert stage.node.replicas.by_name["t"].partitions[0].log.delete_records_before(8)
    stage.run(60_000)
    assert delete(stage, "t") == 0
    assert create(stage, "t") == 0
    for effect in stage.node.take_effects(stage.now):
        if isinstance(effect, Store):
            stage.node.not_stored(effect.path)
    stage.append("t")
    stage.run(2_000)
    stage.restart(clean=False)
    assert ends(stage, "t") == [(0, 1)]


@pytest.mark.parametrize("kill_before_it_is_made_anew", [False, True])
def test_what_was_checkpointed_of_a_deleted_topic_says_nothing_of_the_next(
    stage: NodeStage, kill_before_it_is_made_anew: bool
) -> None:
    assert create(stage, "t") == 0
    for _ in range(9):
        stage.append("t")
    assert stage.node.replicas.by_name["t"].partitions[0].log.delete_records_before(8)
    stage.restart()
    assert delete(stage, "t") == 0
    if kill_before_it_is_made_anew:
        stage.restart(clean=False)
    assert create(stage, "t") == 0
    for _ in range(3):
        stage.append("t")
    stage.run()
    stage.restart(clean=False)
    assert ends(stage, "t") == [(0, 3)]


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "replication-offset-checkpoint"])
def test_a_number_that_is_too_large_in_one_checkpoint_costs_no_record(stage: NodeStage, name: str) -> None:
    assert create(stage, "t") == 0
    for _ in range(5):
        stage.append("t")
    stage.run(10_000)
    (stage.directory / name).write_text("0\n1\nt 0 4711\n")
    stage.restart(clean=False)
    assert ends(stage, "t") == [(0, 5)]
    assert any("log starts is damaged" in note for note in stage.notes) == name.startswith("log-start")


def test_a_kill_during_the_first_append_leaves_nothing_to_look_at(stage: NodeStage) -> None:
    assert create(stage, "t", 2) == 0
    (stage.directory / "t-0").mkdir()
    (stage.directory / "t-1").mkdir()
    (stage.directory / "t-1" / "partition.metadata.tmp").write_text("version: 0\n")
    stage.restart(clean=False)
    assert directories(stage) == []
    assert remarks(stage) == []
    assert stage.append("t") == 0


def test_sorting_names_what_nobody_can_read(tmp_path: Path) -> None:
    files = PlainFiles()
    (tmp_path / "x-0").mkdir()
    (tmp_path / "y-0").write_text("a file, no directory")
    files.failing = {("read_bytes", "/x-0")}
    found = sort_directories(files, str(tmp_path), {}, set())
    assert found.left == {
        ("x", 0): f"{tmp_path}/x-0/partition.metadata can't be read: Permission denied; it is left as it is"
    }
    assert not found.strangers
    assert not found.gone


# ---- partitions that can't be read ---------------------------------------------------------------------------------


def asked(stage: NodeStage, index: int) -> list[int]:
    """The error codes of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords for a partition of t."""
    topic = stage.node.replicas.by_name["t"]
    batch = bytes(build_batch([Record(0, stage.now, b"k", b"v")]))
    produced = stage.ask(
        ProduceRequest(acks=1, topic_data=[TopicProduceData("t", topic.id, [PartitionProduceData(index, batch)])])
    )
    fetched = stage.ask(
        FetchRequest(topics=[FetchTopic("t", topic.id, [FetchPartition(index, partition_max_bytes=1000)])]), 12
    )
    listed = stage.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(index, timestamp=-2)])]))
    epoch = stage.ask(
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("t", [OffsetForLeaderPartition(index, -1, 0)])])
    )
    deleted = stage.ask(DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(index, 0)])]))
    return [
        produced.responses[0].partition_responses[0].error_code,
        fetched.responses[0].partitions[0].error_code,
        listed.topics[0].partitions[0].error_code,
        epoch.topics[0].partitions[0].error_code,
        deleted.topics[0].partitions[0].error_code,
    ]


@pytest.mark.parametrize("call", ["listdir", "read_bytes", "damage", "nonsense"])
def test_an_unreadable_partition_is_out_of_service_alone_until_it_can_be_read(
    ailing: tuple[NodeStage, PlainFiles], call: str
) -> None:
    stage, files = ailing
    assert create(stage, "t", 3) == 0
    for index in range(3):
        for _ in range(4):
            stage.append("t", index)
    assert stage.node.replicas.by_name["t"].partitions[1].log.delete_records_before(2)
    stage.stop()
    metadata = stage.directory / "t-1" / "partition.metadata"
    whole = metadata.read_bytes()
    if call in ("damage", "nonsense"):
        metadata.write_bytes(b"\xff\xfe" if call == "nonsense" else whole.replace(b"topic_id", b"TOPIC_ID"))
    else:
        files.failing = {(call, "/t-1")}
    stage.restart(clean=False)
    (note,) = remarks(stage)
    assert note.startswith("t-1 is offline; will retry: ")
    assert str(stage.directory / "t-1") in note
    assert asked(stage, 0) == asked(stage, 2) == [0] * 5
    assert asked(stage, 1) == [56] * 5
    stage.run(60_000)
    stage.restart()  # nothing is forgotten of what was checkpointed
    assert asked(stage, 1) == [56] * 5
    files.failing = set()
    metadata.write_bytes(whole)
    stage.run(15_000)
    assert any("t-1 is in service again" in note for note in stage.notes)
    assert ends(stage, "t")[1] == (2, 4)
    assert asked(stage, 1)[0] == 0
    assert ends(stage, "t")[1] == (2, 5)
    stage.restart()
    assert ends(stage, "t")[1] == (2, 5)


def test_a_partition_out_of_service_can_be_deleted_or_emptied(ailing: tuple[NodeStage, PlainFiles]) -> None:
    stage, files = ailing
    assert create(stage, "t", 2) == 0
    assert create(stage, "u") == 0
    stage.append("t", 1)
    stage.append("u")
    files.failing = {("listdir", "/t-1"), ("listdir", "/u-0")}
    stage.restart()
    shutil.rmtree(stage.directory / "t-1")
    stage.run(15_000)
    assert ends(stage, "t") == [(0, 0), (0, 0)]
    assert asked(stage, 1)[0] == 0
    assert delete(stage, "u") == 0
    stage.run(30_000)
    assert directories(stage) == ["t-1"]


def test_a_full_disk_at_the_start_is_not_one_partitions_matter(ailing: tuple[NodeStage, PlainFiles]) -> None:
    stage, files = ailing
    assert create(stage, "t") == 0
    stage.append("t")
    files.failing = {("listdir", "/t-0")}
    files.error = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        stage.restart()


@pytest.mark.parametrize("what", ["unreadable", "stranger"])
def test_no_topic_is_made_over_a_directory_that_stays(ailing: tuple[NodeStage, PlainFiles], what: str) -> None:
    stage, files = ailing
    (stage.directory / "t-0").mkdir()
    (stage.directory / "t-0" / "00000000000000000000.log").write_bytes(b"somebody's")
    files.failing = {("read_bytes", "/t-0")} if what == "unreadable" else {("rename", "/t-0")}
    stage.restart(clean=False)
    assert create(stage, "t") == 56
    assert create(stage, "u") == 0
    assert directories(stage) == ["t-0"]


def test_a_stranger_that_cannot_be_put_aside_is_not_served(ailing: tuple[NodeStage, PlainFiles]) -> None:
    stage, files = ailing
    for name in ("t", "u"):
        assert create(stage, name) == 0
        stage.append(name)
    stage.stop()
    os.rename(stage.directory / "t-0", stage.directory / "kept")
    os.rename(stage.directory / "u-0", stage.directory / "t-0")
    files.failing = {("rename", "/t-0")}
    stage.restart(clean=False)
    assert asked(stage, 0) == [56] * 5
    shutil.rmtree(stage.directory / "t-0")
    os.rename(stage.directory / "kept", stage.directory / "t-0")
    stage.run(15_000)
    assert ends(stage, "t") == [(0, 1)]


def test_a_damaged_partition_of_a_topic_that_the_store_lost_is_out_of_service(stage: NodeStage) -> None:
    assert create(stage, "t", 2) == 0
    for index in range(2):
        stage.append("t", index)
    stage.stop()
    metadata = stage.directory / "t-1" / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(b"version: 0\n")
    stage.store = MemoryStore()
    stage.restart(clean=False)
    assert ends(stage, "t")[0] == (0, 1)
    assert asked(stage, 1) == [56] * 5
    assert directories(stage) == ["t-0", "t-1"]
    metadata.write_bytes(whole)
    stage.run(15_000)
    assert ends(stage, "t")[1] == (0, 1)


# ---- the space of what was deleted ---------------------------------------------------------------------------------


def still_open(stage: NodeStage) -> list[str]:
    """Deleted files of the node's whose space the system can't take back yet."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(stage.directory)) and target.endswith(" (deleted)")]


@pytest.mark.parametrize("trouble", ["none", "write", "roll", "sync", "sync under way", "read"])
@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_a_deleted_partition_frees_its_space_at_once_whatever_had_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, durability: str
) -> None:
    stage = NodeStage(tmp_path / "node", ottla_durability=durability)
    assert create(stage, "t") == 0
    stage.append("t")
    stage.run()

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    partition = stage.node.replicas.by_name["t"].partitions[0]
    gc.disable()
    try:
        with monkeypatch.context() as patched:
            if trouble in ("write", "read"):
                patched.setattr(DiskFile, trouble, fails)
            if trouble == "roll":
                patched.setattr(type(stage.node.files), "open", fails)
            for _ in range(2):
                with suppress(OSError):
                    partition.log.roll(stage.now) if trouble == "roll" else None
                    partition.append(stage.now, memoryview(bytearray(build_batch([Record(0, 1, b"k", b"v")]))))
                    partition.log.read(0, 1000)
        del partition
        tokens = [effect.token for effect in stage.node.take_effects(stage.now) if isinstance(effect, Sync)]
        if trouble == "sync":
            for token in tokens:
                stage.node.synced(stage.now, token, dict.fromkeys(range(9), "Input/output error"))
            tokens = []
        assert delete(stage, "t") == 0
        stage.node.tick(stage.now)
        for token in tokens:
            stage.node.synced(stage.now, token, {0: "No such file"} if trouble == "sync under way" else {})
        stage.node.tick(stage.now)
        assert still_open(stage) == []
    finally:
        gc.enable()
    assert directories(stage) == []


@pytest.mark.parametrize("harm", ["a flipped bit", "a line end", "no text", "a cut", "nothing left"])
def test_properties_that_a_disk_has_damaged_are_written_again(tmp_path: Path, harm: str) -> None:
    stage = NodeStage(tmp_path)
    stage.create("t")
    stage.append("t")
    stage.end()
    path = tmp_path / "meta.properties"
    whole = path.read_bytes()
    at = whole.index(b"cluster.id=") + 15
    line_end = whole.index(b"\n", whole.index(b"node.id="))
    damaged = {
        "a flipped bit": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "a line end": whole[:line_end] + b"\2" + whole[line_end + 1 :],
        "no text": whole[:-5] + bytes([whole[-5] ^ 128]) + whole[-4:],
        "a cut": whole[: at + 2],
        "nothing left": b"",
    }
    path.write_bytes(damaged[harm])
    stage.start()
    assert stage.node.replicas.by_name["t"].partitions[0].log.log_end_offset == 1
    kept = len(whole) - len(whole.splitlines()[-1]) - 1
    assert path.read_bytes()[:kept] == whole[:kept]


class CountedFiles(PlainFiles):
    """Counts what takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.calls.append("sync")
        super().sync_directory(path)

    def rmtree(self, path: str) -> None:
        self.calls.append("remove")
        super().rmtree(path)


def test_a_new_topic_waits_for_the_removal_of_no_directory_of_an_earlier_one(tmp_path: Path) -> None:
    """Which may have had thousands of partitions: their directories are renamed, and synced together."""
    files = CountedFiles()
    stage = NodeStage(tmp_path, files=files)
    stage.create("t", 20)
    for index in range(20):
        stage.append("t", index)
    tick_until_answered(stage, DeleteTopicsRequest(topics=[DeleteTopicState("t")]))
    left = len(directories(stage))
    assert left > 10
    files.calls.clear()
    tick_until_answered(stage, CreateTopicsRequest([CreatableTopic("t", 20, 1)]))
    assert files.calls.count("remove") <= 4
    assert files.calls.count("sync") < 10
    stage.append("t", 7)
    stage.run()
    assert files.calls.count("remove") == left
    assert directories(stage) == ["t-7"]
    stage.restart()
    assert ends(stage, "t")[7] == (0, 1)
    assert not stage.store.list("deleted/")


def tick_until_answered(stage: NodeStage, request: Any) -> None:
    """With no more ticks than that takes."""
    asked = stage.send(request)
    while not asked.answered:
        stage.node.tick(stage.now)
        stage.settle()
