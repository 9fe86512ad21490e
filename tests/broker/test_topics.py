"""The life of topics across restarts: epochs, directories, deletions, records in the store."""

import os

import pytest

from ottla.broker.topics.removal import REMOVALS_PER_TICK
from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.harness.node_stage import NodeStage


def create(stage: NodeStage, name: str, partitions: int = 1) -> None:
    answer = stage.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)]))
    assert answer.topics[0].error_code == 0


def delete(stage: NodeStage, name: str) -> None:
    assert stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name)])).responses[0].error_code == 0


def directories(stage: NodeStage) -> list[str]:
    return sorted(name for name in os.listdir(stage.directory) if os.path.isdir(stage.directory / name))


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_raises_every_epoch_in_one_commit(stage: NodeStage, clean: bool) -> None:
    create(stage, "a", 3)
    create(stage, "b", 2)
    stage.append("a", 1)
    before = {t.name: t.id for t in stage.node.replicas.by_name.values()}
    generation = stage.store.generation
    stage.restart(clean=clean)
    assert stage.store.generation == generation + 1
    replicas = stage.node.replicas
    assert {t.name: t.id for t in replicas.by_name.values()} == before
    epochs = {p.name: (p.leader_epoch, p.partition_epoch) for p in replicas}
    assert set(epochs.values()) == {(1, 1)}
    partition = replicas.get("a", 1)
    assert partition is not None
    assert partition.log.end_offset_for(0) == (0, 1)
    assert partition.log.end_offset_for(1) == (1, 1)
    assert partition.log.high_watermark == 1


def test_an_empty_partition_costs_no_directory(stage: NodeStage) -> None:
    create(stage, "a", 100)
    stage.append("a", 7)
    assert directories(stage) == ["a-7"]


def test_a_deleted_topic_goes_in_pieces(stage: NodeStage) -> None:
    partitions = 3 * REMOVALS_PER_TICK
    create(stage, "a", partitions)
    for index in range(partitions):
        stage.append("a", index)
    stage.delete("a")
    assert stage.node.image.partition_count == 0
    stage.node.tick(stage.now)
    assert 0 < len([name for name in directories(stage) if name.startswith("a-")]) < partitions
    assert stage.node.deadline() is not None
    stage.run(10)
    assert directories(stage) == []
    assert list(stage.store.list("deleted/")) == []


def test_a_deletion_that_a_crash_cut_short_is_finished_at_start(stage: NodeStage) -> None:
    create(stage, "a", 2)
    stage.append("a", 0)
    delete(stage, "a")
    stage.restart(clean=False)
    assert directories(stage) == []
    assert stage.notes == []
    assert list(stage.store.list("deleted/")) == []


def test_a_topic_made_anew_at_once_begins_empty(stage: NodeStage) -> None:
    create(stage, "a")
    for _ in range(5):
        stage.append("a")
    stage.restart()
    delete(stage, "a")
    create(stage, "a")
    assert stage.append("a") == 0
    stage.restart()
    partition = stage.node.replicas.get("a", 0)
    assert partition is not None
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, 1)


def test_foreign_directories_are_put_aside_and_never_opened(stage: NodeStage) -> None:
    create(stage, "a")
    create(stage, "b")
    stage.append("a")
    stage.append("b")
    stage.stop()
    os.rename(stage.directory / "a-0", stage.directory / "kept")
    os.rename(stage.directory / "b-0", stage.directory / "a-0")
    (stage.directory / "unknown-0").mkdir()
    (stage.directory / "unknown-0" / "precious").write_text("yes")
    stage.restart(clean=False)
    found = directories(stage)
    assert "kept" in found
    assert [name.split(".")[0] for name in found if name.endswith("-stray")] == ["a-0", "unknown-0"]
    stray = next(name for name in found if name.startswith("unknown-0."))
    assert (stage.directory / stray / "precious").read_text() == "yes"
    assert sum("was renamed" in note for note in stage.notes) == 2
    partition = stage.node.replicas.get("a", 0)
    assert partition is not None
    assert partition.log.log_end_offset == 0


def test_a_directory_without_metadata_is_taken_over(stage: NodeStage) -> None:
    create(stage, "a", 4)
    create(stage, "b")
    stage.change(stage.node.topics.creating_internal(stage.now, "__consumer_offsets"))
    stage.append("__consumer_offsets", 49)
    for index in (0, 2):
        stage.append("a", index)
    stage.append("b", producer_id=77, producer_epoch=0, base_sequence=0)
    stage.restart()
    stage.append("a", 2)
    ids = {name: topic.id for name, topic in stage.node.replicas.by_name.items()}
    (stage.directory / "__cluster_metadata-0").mkdir()
    stage.stop()
    stage.store = MemoryStore()
    stage.restart(clean=False)
    topics = stage.node.replicas
    assert {name: topic.id for name, topic in topics.by_name.items()} == ids
    assert [p.log.log_end_offset for p in topics.by_name["a"].partitions.values()] == [1, 0, 2]
    assert topics.by_name["a"].partitions[2].leader_epoch == 2
    assert len(stage.notes) == 2
    assert topics.by_name["__consumer_offsets"].log_config.compacted
    assert len(topics.by_name["__consumer_offsets"].partitions) == 50
    assert "topics __consumer_offsets, a, b of which the metadata store knows nothing" in stage.notes[0]
    assert "delete nothing of topics a, b: ottla.retention.hold is set" in stage.notes[1]
    assert stage.change(stage.node.topics.taking_producer_id(stage.now)) == 78
    assert "__cluster_metadata-0" in directories(stage)


def test_epochs_rise_above_the_log_when_the_store_is_an_older_copy(stage: NodeStage) -> None:
    create(stage, "a")
    copy = stage.store.get(key_of("a"))
    assert copy is not None
    for _ in range(3):
        stage.append("a")
        stage.restart()
    stage.append("a")
    stage.stop()
    stage.store = MemoryStore()
    stage.store.commit([Put(key_of("a"), copy.value)])
    stage.restart(clean=False)
    assert stage.node.replicas.by_name["a"].partitions[0].leader_epoch == 4


def test_a_stored_config_nobody_can_take_is_noted_and_left(stage: NodeStage) -> None:
    stage.store.commit([Put("config/broker/1", b'{"message.max.bytes": "5000", "gone.since": "1"}')])
    stage.restart()
    assert stage.node.settings["message.max.bytes"] == 5000
    (warned,) = stage.notes
    assert warned == (
        "The stored broker config gone.since has no effect: Unknown broker config name: gone.since. "
        "`ottla configs alter broker 1 --delete gone.since` removes it."
    )
    row = stage.store.get("config/broker/1")
    assert row is not None
    assert b"gone.since" in row.value


def test_records_round_trip_and_stay_small(stage: NodeStage) -> None:
    odd = PartitionRecord((3, 1), (1,), 1, 7, 9, (3,), (2,), (4,), (5,), True)
    record = TopicRecord(bytes(range(16)), {"retention.ms": "5"}, (odd, odd.led_anew(3)))
    assert TopicRecord.decode(record.encode()) == record
    assert record.partitions[1].leader_epoch == 8
    create(stage, "big", 10_000)
    row = stage.store.get(key_of("big"))
    assert row is not None
    assert len(row.value) < 512 * 1024


def test_topic_ids_are_never_kafkas_reserved_ones(stage: NodeStage) -> None:
    ids = [stage.node.topics.new_topic_id() for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert not any(topic_id[0] >> 2 == 62 for topic_id in ids)
