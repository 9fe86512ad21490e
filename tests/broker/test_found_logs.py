"""What a start finds of its logs: compared with how the last clean stop left them, and with the checkpoints."""

import shutil
from pathlib import Path

import pytest

from ottla.broker.upkeep.checkpoints import LOG_START
from ottla.log.checkpoints import read_partition_metadata
from ottla.log.files import DiskFiles
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.harness.node_stage import NodeStage

LEFT = ".logs-at-clean-stop"


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    for _ in range(5):
        stage.append("t")
    return stage


def log_of(stage: NodeStage, index: int = 0) -> Log:
    return stage.node.replicas.by_name["t"].partitions[index].log


def found(stage: NodeStage) -> list[What]:
    return [finding.what for finding in log_of(stage).found.findings]


def test_a_clean_stop_says_how_it_left_its_logs_and_the_next_start_takes_that(stage: NodeStage) -> None:
    stage.end()
    assert (stage.directory / LEFT).exists()
    stage.start()
    assert not (stage.directory / LEFT).exists()
    assert found(stage) == []
    assert not any("offset" in note for note in stage.notes)


def test_an_older_copy_of_a_partition_is_found(stage: NodeStage, tmp_path: Path) -> None:
    stage.end()
    shutil.copytree(stage.directory / "t-0", tmp_path / "older")
    stage.start()
    stage.append("t")
    stage.end()
    shutil.rmtree(stage.directory / "t-0")
    shutil.copytree(tmp_path / "older", stage.directory / "t-0")
    stage.start()
    assert found(stage)[0] is What.SHORT
    assert log_of(stage).log_end_offset == 5
    assert log_of(stage, 1).found.is_complete


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_partition_whose_files_are_gone_is_found(stage: NodeStage, clean: bool, emptied: bool) -> None:
    stage.run(10_000)
    stage.end(clean=clean)
    shutil.rmtree(stage.directory / "t-0")
    if emptied:
        (stage.directory / "t-0").mkdir()
    stage.start()
    assert found(stage) == [What.ALL]
    assert log_of(stage, 1).found.is_complete


def test_a_clean_stop_of_an_older_version_says_nothing_of_its_logs(stage: NodeStage) -> None:
    stage.end()
    (stage.directory / LEFT).unlink()
    stage.start()
    assert found(stage) == []
    assert not any("did not stop cleanly" in note for note in stage.notes)


def test_what_another_stop_left_counts_for_nothing(stage: NodeStage, tmp_path: Path) -> None:
    stage.end()
    shutil.copy(stage.directory / LEFT, tmp_path)
    stage.start()
    stage.append("t")
    stage.end()
    shutil.copy(tmp_path / LEFT, stage.directory)
    stage.start()
    assert found(stage) == []


@pytest.mark.parametrize("clean", [True, False])
def test_what_is_known_of_a_deleted_topic_says_nothing_of_the_next(stage: NodeStage, clean: bool) -> None:
    stage.run(10_000)
    stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState("t")]))
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    stage.append("t")
    stage.restart(clean=clean)
    assert found(stage) == []
    assert log_of(stage).log_end_offset == 1


def test_flipped_bits_in_the_name_of_a_topics_id_are_mended(stage: NodeStage) -> None:
    path = stage.directory / "t-0" / "partition.metadata"
    whole = path.read_bytes()
    for at in range(len(whole)):
        stage.end()
        octets = bytearray(whole)
        octets[at] ^= 1 << (at % 8)
        path.write_bytes(octets)
        stage.start()
        assert read_partition_metadata(DiskFiles(), str(path.parent)) == log_of(stage).topic_id, at
        assert log_of(stage).log_end_offset == 5
        assert found(stage) == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_the_checkpoint_of_log_starts_hides_no_record(stage: NodeStage, clean: bool) -> None:
    log_of(stage).delete_records_before(2)
    stage.run(70_000)
    stage.end(clean=clean)
    path = stage.directory / LOG_START
    assert b"t 0 2\n" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"t 0 2\n", b"t 0 3\n"))
    stage.start()
    assert log_of(stage).log_start_offset <= 2
    assert log_of(stage).log_end_offset == 5
    assert any(f"{LOG_START} does not match its checksum" in note for note in stage.notes)


def test_the_id_of_another_topic_is_not_mended(stage: NodeStage) -> None:
    path = stage.directory / "t-0" / "partition.metadata"
    stage.append("t", 1)
    stage.end()
    path.write_bytes(b"version: 0\ntopic_id: " + b"A" * 21 + b"Q\n")
    stage.start()
    assert any(entry.name.endswith("-stray") for entry in stage.directory.iterdir())
    assert log_of(stage).log_end_offset == 0


def test_a_partition_without_other_replicas_stays_as_it_is_when_it_can_not_be_opened(stage: NodeStage) -> None:
    stage.end()
    (stage.directory / "t-0" / "partition.metadata").write_bytes(b"no such file")
    stage.start()
    stage.run(60_000)
    assert log_of(stage).unopened
    assert not any(entry.name.endswith("-stray") for entry in stage.directory.iterdir())
    (note,) = [note for note in stage.notes if note.startswith("t-0 is offline")]
    assert "partition.metadata is not a partition.metadata file" in note
    assert note.endswith("from a backup; no other replica is copied over it")
