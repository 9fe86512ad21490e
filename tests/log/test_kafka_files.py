"""Directories that Apache Kafka 4.3.1 wrote, as it left them after a clean stop.

`plain-0`: 60 records of an idempotent producer, index.interval.bytes=512, timestamps that fall back now and then.
`txn-0`: four transactions of five records, the second and fourth aborted, and one left open.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ottla.log.answers import Isolation
from ottla.log.checkpoints import read_partition_metadata
from ottla.log.config import LogConfig
from ottla.log.files import DiskFiles
from ottla.log.log import Log
from tests.harness.log.support import NOW, batch, open_log, put, records, values

GOLDEN = Path(__file__).parent / "golden" / "kafka-4.3.1"
HOW = [
    pytest.param({}, id="clean"),
    pytest.param({"clean_shutdown": False}, id="killed"),
    pytest.param({"clean_shutdown": False, "same_boot": False}, id="power cut"),
]
INDEXES = ("00000000000000000000.index", "00000000000000000000.timeindex")


def opened(tmp_path: Path, name: str, config: LogConfig, **how: bool) -> tuple[Log, Path, list[str]]:
    directory = tmp_path / name
    shutil.copytree(GOLDEN / name, directory)
    files = DiskFiles()
    notes: list[str] = []
    topic_id = read_partition_metadata(files, str(directory))
    log = open_log(files, config, str(directory), topic_id=topic_id, notes=notes.append, now=NOW + 1000, **how)
    return log, directory, notes


@pytest.mark.parametrize("how", HOW)
def test_plain(tmp_path: Path, how: dict[str, bool]) -> None:
    log, _, _ = opened(tmp_path, "plain-0", LogConfig(index_interval_bytes=512), **how)
    assert log.log_end_offset == 60
    assert log.epochs.entries == [(0, 0)]
    assert [record.offset for record in records(log, max_bytes=700)] == list(range(60))
    (entry,) = log.producers.entries.values()
    assert (entry.epoch, entry.last_sequence, entry.last_data_offset) == (0, 59, 59)
    stamps = [NOW + i * 10 - (i % 3) * 25 for i in range(60)]
    for asked in (NOW - 100, NOW, NOW + 1, NOW + 300, NOW + 301, NOW + 560, max(stamps)):
        first = next(offset for offset, stamp in enumerate(stamps) if stamp >= asked)
        assert log.offset_for_timestamp(asked) == (stamps[first], first, 0)
    assert log.offset_for_timestamp(max(stamps) + 1) is None
    assert log.max_timestamp() == (max(stamps), stamps.index(max(stamps)), 0)
    put(log, batch(b"more"))


def test_a_clean_start_changes_and_repairs_nothing(tmp_path: Path) -> None:
    for name in ("plain-0", "txn-0"):
        interval = 512 if name == "plain-0" else 4096
        log, directory, notes = opened(tmp_path, name, LogConfig(index_interval_bytes=interval))
        log.close(NOW)
        assert notes == []
        for path in sorted((GOLDEN / name).iterdir()):
            assert (directory / path.name).read_bytes() == path.read_bytes(), path.name
        names = [path.name for path in directory.iterdir() if path.name != "gaps-below"]
        assert sorted(names) == sorted(path.name for path in (GOLDEN / name).iterdir())


def test_rebuilt_indexes_are_what_kafka_wrote(tmp_path: Path) -> None:
    log, directory, _ = opened(
        tmp_path, "plain-0", LogConfig(index_interval_bytes=512), clean_shutdown=False, same_boot=False
    )
    log.close(NOW)
    for name in INDEXES:
        assert (directory / name).read_bytes() == (GOLDEN / "plain-0" / name).read_bytes()


@pytest.mark.parametrize("how", HOW)
def test_transactions(tmp_path: Path, how: dict[str, bool]) -> None:
    log, directory, _ = opened(tmp_path, "txn-0", LogConfig(), **how)
    assert log.log_end_offset == 25
    assert log.last_stable_offset == 24
    (entry,) = log.producers.entries.values()
    assert entry.current_txn_first_offset == 24
    aborted = [
        (transaction.first_offset, transaction.last_offset) for transaction in log.segments[1].txn_index.aborted()
    ]
    assert aborted == [(6, 11), (18, 23)]
    result = log.read(5, 1 << 20, Isolation.TXN_COMMITTED)
    assert result.aborted is not None
    assert [transaction.first_offset for transaction in result.aborted] == [6, 18]
    assert len(values(log, isolation=Isolation.TXN_COMMITTED)) == 20
    assert len(values(log)) == 21
    name = "00000000000000000005.txnindex"
    assert (directory / name).read_bytes() == (GOLDEN / "txn-0" / name).read_bytes()
