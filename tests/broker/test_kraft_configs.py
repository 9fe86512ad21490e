"""The configs of topics in the metadata log of a Kafka broker: frames as KIP-631 has them, written here by hand."""

from pathlib import Path

import pytest

from ottla.broker.topics.kraft_configs import METADATA_LOG, KraftUnreadableError, topic_configs
from ottla.log.files import DiskFiles
from ottla.protocol.records.record import Record, build_batch

A, B = bytes(range(16)), bytes(range(16, 32))
SEGMENT, SNAPSHOT = "00000000000000000000.log", "00000000000000000007-0000000001.checkpoint"


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def frame(api_key: int, body: bytes) -> Record:
    return Record(value=bytes([1, api_key, 0]) + body + b"\0")


def topic(name: str, topic_id: bytes) -> Record:
    return frame(2, text(name) + topic_id)


def config(name: str, key: str, value: str | None, kind: int = 2) -> Record:
    return frame(4, bytes([kind]) + text(name) + text(key) + text(value))


def write(directory: Path, name: str, records: list[Record], begin: int = 0) -> Path:
    log = directory / METADATA_LOG
    log.mkdir(exist_ok=True)
    file = log / name
    file.write_bytes(file.read_bytes() if file.exists() else b"")
    with file.open("ab") as opened:
        opened.write(build_batch(records, base_offset=begin))
    return file


def test_the_last_config_of_each_topic_counts(tmp_path: Path) -> None:
    records = [
        topic("a", A),
        config("a", "retention.ms", "1"),
        config("a", "retention.ms", "2"),
        config("a", "cleanup.policy", "compact"),
        config("a", "segment.ms", "9"),
        config("a", "segment.ms", None),
        config("a", "retention.ms", "3", kind=4),
        frame(17, b"\1\2\3"),
        topic("b", B),
    ]
    write(tmp_path, SEGMENT, records)
    assert topic_configs(DiskFiles(), str(tmp_path)) == {A: {"retention.ms": "2", "cleanup.policy": "compact"}, B: {}}


def test_a_topic_that_was_deleted_and_created_again_has_only_its_new_configs(tmp_path: Path) -> None:
    write(tmp_path, SEGMENT, [topic("a", A), config("a", "retention.ms", "1"), frame(9, A), topic("a", B)])
    assert topic_configs(DiskFiles(), str(tmp_path)) == {B: {}}


def test_a_snapshot_replaces_what_is_before_its_offset(tmp_path: Path) -> None:
    write(tmp_path, SNAPSHOT, [topic("a", A), config("a", "retention.ms", "5")])
    write(tmp_path, SEGMENT, [topic("b", B), config("a", "retention.ms", "1")])
    write(tmp_path, SEGMENT, [config("a", "segment.ms", "6")], begin=7)
    assert topic_configs(DiskFiles(), str(tmp_path)) == {A: {"retention.ms": "5", "segment.ms": "6"}}


def test_a_torn_end_is_no_damage_and_a_flipped_bit_is(tmp_path: Path) -> None:
    file = write(tmp_path, SEGMENT, [topic("a", A)])
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert topic_configs(DiskFiles(), str(tmp_path)) == {A: {}}
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(KraftUnreadableError, match=SEGMENT):
        topic_configs(DiskFiles(), str(tmp_path))


@pytest.mark.parametrize("size", range(1, 30))
def test_a_record_that_ends_too_early_names_the_file(tmp_path: Path, size: int) -> None:
    whole = config("topic", "retention.ms", "1").value or b""
    write(tmp_path, SEGMENT, [Record(value=whole[: min(size, len(whole) - 2)])])
    with pytest.raises(KraftUnreadableError, match=SEGMENT):
        topic_configs(DiskFiles(), str(tmp_path))


def test_a_directory_without_such_a_log_has_no_configs(tmp_path: Path) -> None:
    assert topic_configs(DiskFiles(), str(tmp_path)) == {}
