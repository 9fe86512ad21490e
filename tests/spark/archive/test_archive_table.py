"""Both formats of an archive without Spark: what is published is there once, whatever dies in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from ottla.spark.archive.journal import Journal
from ottla.spark.archive.layout import IN_FILES, STAGING, ArchiveBatch, TableFile
from ottla.spark.archive.opening import make_table, open_table
from ottla.spark.archive.ranges import Covered
from ottla.spark.archive.table import ArchiveSettings, Table, TableChangedError
from ottla.spark.archive.writing import OffsetsNotRisingError, WriteFiles
from ottla.spark.platform.failures import PipelineFailedError

DAY_US = 86_400_000_000


def records(topic: str, partition: int, offsets: Sequence[int], days: Sequence[int] | None = None) -> pa.RecordBatch:
    days = days or [0] * len(offsets)
    columns = {
        "key": [b"k"] * len(offsets),
        "value": [str(each).encode() for each in offsets],
        "partition": [partition] * len(offsets),
        "offset": list(offsets),
        "timestamp": [day * DAY_US + offset for day, offset in zip(days, offsets, strict=True)],
        "timestampType": [0] * len(offsets),
        "headers": [None] * len(offsets),
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=IN_FILES)
    return batch.append_column("topic", pa.array([topic] * len(offsets), pa.string()))


def written(table: Table, query: str, number: int, *batches: pa.RecordBatch) -> ArchiveBatch:
    """A batch whose files lie there, not yet published."""
    (report,) = WriteFiles(str(table.writes_to), f"{query}-{number}")(iter(batches))
    found = json.loads(report.column("report")[0].as_py())
    covered = tuple(Covered(topic, part, first, last + 1, count) for topic, part, first, last, count in found["spans"])
    return ArchiveBatch(query, number, covered, tuple(TableFile.from_json(each) for each in found["files"]))


def offsets_seen(table: Table) -> list[int]:
    """What a reader of this format sees."""
    if table.settings.format == "delta":
        found = DeltaTable(str(table.path)).to_pyarrow_table(columns=["offset"])
    else:
        found = ds.dataset(table.path, schema=pa.schema([("offset", pa.int64())]), format="parquet").to_table()
    return sorted(found.column("offset").to_pylist())


@pytest.fixture(params=["delta", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return make_table(tmp_path / "lake", ArchiveSettings(request.param, False))


def test_a_batch_is_seen_once_it_is_published(table: Table) -> None:
    batch = written(table, "q", 0, records("a.b", 0, range(5)), records("a.b", 1, range(3)))
    assert offsets_seen(table) == []
    table.publish(batch)
    assert offsets_seen(table) == [0, 0, 1, 1, 2, 2, 3, 4]
    for each in (table, open_table(table.path)):
        assert each.committed("q") == 0
        assert each.committed("other") is None
        assert each.next_offset(("a.b", 0)) == 5
        assert each.next_offset(("a.b", 2)) is None
        assert [file.rows for file in each.files()] == [8]
        assert sorted(each.covered(), key=lambda one: one.partition)[1] == Covered("a.b", 1, 0, 3, 3)


def test_records_lie_by_topic_and_day(table: Table) -> None:
    far = 10_000_000  # days: no date of the calendar
    table.publish(written(table, "q", 0, records("t", 0, range(6), [0, 1, 0, 1, far, -1])))
    found = {(file.topic, file.date): (file.rows, file.offsets) for file in table.files()}
    assert found == {
        ("t", "1970-01-01"): (2, (0, 2)),
        ("t", "1970-01-02"): (2, (1, 3)),
        ("t", "1969-12-31"): (1, (5, 5)),
        ("t", None): (1, (4, 4)),
    }
    assert offsets_seen(table) == list(range(6))


def test_a_task_refuses_an_offset_that_comes_twice(table: Table) -> None:
    with pytest.raises(OffsetsNotRisingError, match="t-0: offsets near 4"):
        written(table, "q", 0, records("t", 0, range(5)), records("t", 0, range(4, 6)))


def test_two_archives_of_one_partition_shut_each_other_out(table: Table) -> None:
    other = open_table(table.path)
    first, second = written(table, "q", 0, records("t", 0, range(5))), written(other, "r", 0, records("t", 0, range(4)))
    table.publish(first)
    with pytest.raises(TableChangedError, match="nother archive"):
        other.publish(second)
    assert offsets_seen(table) == list(range(5))
    other.refresh()
    assert other.committed("r") is None
    assert sum(each.count for each in other.covered()) == 5


def test_archives_of_other_topics_share_a_table(table: Table) -> None:
    other = open_table(table.path)
    table.publish(written(table, "q", 0, records("t", 0, range(5))))
    other.publish(written(other, "r", 0, records("u", 0, range(5))))
    table.publish(written(table, "q", 1, records("t", 0, range(5, 6))))
    assert sorted(table.covered(), key=lambda one: (one.topic, one.first))[-1] == Covered("u", 0, 0, 5, 5)
    assert len(offsets_seen(table)) == 11


def test_renames_that_a_killed_process_left_are_done_by_the_next(tmp_path: Path) -> None:
    table = make_table(tmp_path / "lake", ArchiveSettings("parquet", False))
    table.publish(written(table, "q", 0, records("t", 0, range(5)), records("u", 0, range(2))))
    (name,) = [path for path in table.seen() if path.startswith("topic=u")]
    staged = table.path / STAGING / name
    shutil.move(table.path / name, staged)  # as it is between the commit and the last rename
    assert offsets_seen(table) == list(range(5))
    reopened = open_table(table.path)
    assert offsets_seen(reopened) == [0, 0, 1, 1, 2, 3, 4]
    assert not staged.exists()


def test_vacuum_takes_what_killed_batches_left_and_nothing_else(table: Table) -> None:
    table.publish(written(table, "q", 0, records("t", 0, range(5))))
    written(table, "q", 1, records("t", 0, range(5, 9)))
    checkpoint = table.path / "_checkpoint" / "archive" / "offsets" / "0"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("{}")
    assert table.vacuum(1, dry_run=False) == []
    (orphan,) = table.vacuum(0, dry_run=True)
    assert "q-1" in orphan
    assert table.vacuum(0, dry_run=False) == [orphan]
    assert table.vacuum(0, dry_run=True) == []
    assert checkpoint.exists()
    assert offsets_seen(table) == list(range(5))
    assert sum(each.count for each in open_table(table.path).covered()) == 5


def test_compaction_keeps_every_record_while_batches_come(tmp_path: Path) -> None:
    table = make_table(tmp_path / "lake", ArchiveSettings("delta", False))
    for number in range(4):
        table.publish(written(table, "q", number, records("t", 0, range(number * 5, number * 5 + 5))))
    other = open_table(table.path)
    table.publish(written(table, "q", 4, records("t", 0, range(20, 25))))
    removed, made = other.compact(1 << 27)
    assert (removed, made) == (4, 1)
    table.publish(written(table, "q", 5, records("t", 0, range(25, 30))))
    assert offsets_seen(table) == list(range(30))
    reopened = open_table(table.path)
    assert (reopened.committed("q"), reopened.next_offset(("t", 0))) == (5, 30)
    assert {file.offsets for file in reopened.files()} == {(0, 19), (20, 24), (25, 29)}


def test_plain_parquet_refuses_to_compact(tmp_path: Path) -> None:
    with pytest.raises(PipelineFailedError, match="format delta"):
        make_table(tmp_path / "lake", ArchiveSettings("parquet", False)).compact(1 << 27)


def test_a_plain_log_that_was_folded_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.archive.plain.FOLD_AT", 3)
    table = make_table(tmp_path / "lake", ArchiveSettings("parquet", False))
    late = open_table(table.path)
    for number in range(8):
        table.publish(written(table, "q", number, records("t", 0, [number])))
    late.refresh()
    for each in (late, open_table(table.path)):
        assert each.covered() == [Covered("t", 0, 0, 8, 8)]
        assert each.committed("q") == 7
        assert len(each.files()) == 8
    assert len(list((table.path / "_ottla" / "log").glob("0*.json"))) < 5
    late.publish(written(late, "q", 8, records("t", 0, [8])))
    assert offsets_seen(open_table(table.path)) == list(range(9))


def test_ranges_count_only_once_their_batch_is_committed(tmp_path: Path) -> None:
    committed: dict[str, int] = {}
    journal = Journal(tmp_path, committed.get)
    for number in range(3):
        journal.write(ArchiveBatch("q", number, (Covered("t", 0, number * 10, number * 10 + 10, 9),)))
        committed["q"] = number - 1
    assert [each.first for each in journal.covered()] == [0, 10]
    committed["q"] = 2
    journal.write(ArchiveBatch("q", 3, (Covered("t", 0, 30, 40, 10),)))
    journal.fold("q", 2)
    assert journal.covered() == [Covered("t", 0, 0, 30, 27)]
    committed["q"] = 3
    assert sum(each.count for each in journal.covered()) == 37
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_is_not_made_where_something_lies(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PipelineFailedError, match="not empty"):
        make_table(tmp_path, ArchiveSettings("delta", False))
    with pytest.raises(PipelineFailedError, match="is no archive"):
        open_table(tmp_path)
    made = make_table(tmp_path / "lake", ArchiveSettings("delta", True))
    with pytest.raises(PipelineFailedError, match="of format delta"):
        make_table(made.path, ArchiveSettings("parquet", True))
    with pytest.raises(PipelineFailedError, match="isolation"):
        make_table(made.path, ArchiveSettings("delta", False))
    with pytest.raises(PipelineFailedError, match="mounted"):
        make_table("s3://bucket/lake", ArchiveSettings("delta", False))
