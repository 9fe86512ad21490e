"""A metadata store that is damaged, older than what it served, or locked: a sentence, never a wrong answer."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ottla.metadata.producer_ids import BLOCK, KEY, ProducerIds
from ottla.metadata.sqlite import FORMAT, SERVING_TIMEOUT_MS, SqliteStore
from ottla.metadata.store import ABSENT, Delete, Put, StoreBusyError, StoreDamagedError, StoreError, decoded
from ottla.metadata.topics import DeletedTopic, PartitionRecord, TopicRecord, key_of
from tests.harness.producer_ids import take

PLACED = PartitionRecord((1,), (1,), 1)
ROWS = {
    key_of("orders"): TopicRecord(bytes(range(16)), {"retention.ms": "-1"}, (PLACED, PLACED)).encode(),
    "cluster/id": b"an-id-of-a-cluster",
    "producer-ids": b'{"next_producer_id": 2000}',
    "config/broker/1": b'{"log.retention.ms": "5000"}',
}
FORMAT_1 = """
BEGIN IMMEDIATE;
CREATE TABLE row (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE change (generation INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY (generation, key)) WITHOUT ROWID;
CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL);
INSERT INTO head VALUES (1, 1);
PRAGMA user_version = 1;
COMMIT;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a few rows, closed: all is in the one file."""
    found = tmp_path / "metadata.sqlite"
    store = SqliteStore(str(found))
    for key, value in ROWS.items():
        store.commit([Put(key, value, ABSENT)])
    store.close()
    return found


def rows_of(path: Path) -> dict[str, bytes]:
    store = SqliteStore(str(path))
    try:
        return {key: row.value for key, row in store.list("")}
    finally:
        store.close()


def with_flips(path: Path, positions: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The file with each of these (byte, bit) flipped in turn, and nothing else beside it."""
    whole = path.read_bytes()
    for position, bit in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        for suffix in ("-wal", "-shm"):
            (path.parent / (path.name + suffix)).unlink(missing_ok=True)
        path.write_bytes(damaged)
        yield position, bit
    path.write_bytes(whole)


def test_every_flipped_bit_of_a_value_is_named(path: Path) -> None:
    whole = path.read_bytes()
    for key, value in ROWS.items():
        at = whole.index(key.encode() + value)
        places = ((at + len(key) + offset, offset % 8) for offset in range(len(value)))
        for _ in with_flips(path, places):
            with pytest.raises(StoreDamagedError) as damaged:
                SqliteStore(str(path))
            assert str(damaged.value).startswith(f"the value of {key} in the metadata store {path} does not match")
            assert "Restore it from a backup" in str(damaged.value)


def test_no_flipped_bit_anywhere_changes_what_is_read(path: Path) -> None:
    """A sentence, or exactly what was written; flips in unused bytes are nobody's."""
    whole = path.read_bytes()
    chance = random.Random(5)
    places = sorted(chance.sample([at for at, byte in enumerate(whole) if byte], 250))
    sentences: list[str] = []
    for position, bit in with_flips(path, ((place, chance.randrange(8)) for place in places)):
        try:
            found = rows_of(path)
        except StoreError as failed:
            sentences.append(str(failed))
        else:
            assert found == ROWS, (position, bit)
    assert len(sentences) > 100
    assert all(str(path) in sentence for sentence in sentences)


def test_a_row_that_went_missing_is_told(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM row WHERE key = ?", (b"topic/orders",))
        connection.commit()
    with pytest.raises(StoreDamagedError, match=r"keys of the metadata store .* are missing"):
        SqliteStore(str(path))


def test_a_store_of_format_1_opens_and_gets_checksums(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(FORMAT_1)
        connection.executemany(
            "INSERT INTO row VALUES (?, ?, 1)", [(key.encode(), value) for key, value in ROWS.items()]
        )
    assert rows_of(path) == ROWS
    store = SqliteStore(str(path))
    version = store.commit([Put("cluster/id", b"another", 1), Delete("config/broker/1")])
    assert (version, store.lost) == (2, 0)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        connection.execute("UPDATE row SET value = x'00' WHERE key = ?", (b"cluster/id",))
        connection.commit()
    with pytest.raises(StoreDamagedError, match="the value of cluster/id"):
        SqliteStore(str(path))


def test_a_newer_format_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(StoreError, match="has format 9, written by a newer Ottla"):
        SqliteStore(str(path))


@pytest.mark.parametrize(
    ("key", "decode", "value"),
    [
        ("topic/t", TopicRecord.decode, b"not json"),
        ("topic/t", TopicRecord.decode, b"\xff\xfe"),
        ("topic/t", TopicRecord.decode, b"[]"),
        ("topic/t", TopicRecord.decode, b'{"topic_id": "AAAA", "configs": {}, "partitions": []}'),
        ("topic/t", TopicRecord.decode, ROWS["topic/orders"].replace(b'"configs":{', b'"confjgs":{')),
        ("topic/t", TopicRecord.decode, ROWS["topic/orders"].replace(b'"-1"', b"-1")),
        ("topic/t", TopicRecord.decode, ROWS["topic/orders"].replace(b"[[1]", b'["1"')),
        ("deleted/00", lambda value: DeletedTopic.decode("deleted/00", value), b'{"name": "x"}'),
    ],
)
def test_a_value_of_the_wrong_form_is_a_sentence(path: Path, key: str, decode, value: bytes) -> None:
    with closing(SqliteStore(str(path))) as store, pytest.raises(StoreDamagedError, match=f"the value of {key} in the"):
        decoded(store, key, decode, value)


# ---- a write-ahead log that lost its end ---------------------------------------------------------------------------


def an_older_copy(path: Path, to: Path, commits: int) -> Path:
    """The store as a kill leaves it, with a flipped bit in the write-ahead log that drops its later commits."""
    store = SqliteStore(str(path))
    for number in range(commits):
        store.commit([Put(f"topic/{number}", b"{}")])
    to.mkdir()
    for name in ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-generation"):
        shutil.copy(path.parent / name, to / name)
    store.close()
    log = bytearray((to / "metadata.sqlite-wal").read_bytes())
    log[len(log) // 2] ^= 4
    (to / "metadata.sqlite-wal").write_bytes(log)
    return to / "metadata.sqlite"


def test_commits_that_the_log_lost_are_counted_and_their_numbers_never_repeat(path: Path, tmp_path: Path) -> None:
    damaged = an_older_copy(path, tmp_path / "damaged", 20)
    store = SqliteStore(str(damaged))
    there = len(store.list("topic/")) - 1
    assert 0 < store.lost == 20 - there < 20
    assert take(ProducerIds(store.lost), store) == 2000 + store.lost * BLOCK
    assert store.generation == len(ROWS) + 21
    store.close()
    again = SqliteStore(str(damaged))
    assert again.lost == 0
    again.close()


@pytest.mark.parametrize("content", [b"", b"17 00000000\n", b"\xff\xfe", b"00000000000000000099 zzzzzzzz\n"])
def test_a_damaged_number_says_nothing(path: Path, content: bytes) -> None:
    (path.parent / f"{path.name}-generation").write_bytes(content)
    with closing(SqliteStore(str(path))) as store:
        assert store.lost == 0
        assert store.commit([Put("k", b"")]) == len(ROWS) + 1


# ---- locked by somebody --------------------------------------------------------------------------------------------


def test_nodes_that_share_a_store_wait_for_each_others_commits(path: Path) -> None:
    with closing(SqliteStore(str(path), is_shared=True)) as store:
        store.hurry()
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            ending = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
            ending.start()
            store.commit([Put("k", b"")])
            ending.join()


def test_a_store_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself refuses at once there: several nodes that start together are such processes."""
    other = sqlite3.connect(tmp_path / "metadata.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE unlike_ours (a)")
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
    release.start()
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    release.join()
    assert store.commit([Put("a", b"1")]) == 1
    store.close()
    other.close()


WRITER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE row SET value = x'00'")
connection.execute("DELETE FROM row WHERE key = x'636c75737465722f6964'")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_writer_that_stops_in_the_middle_of_its_commit_holds_others_up_until_it_is_gone(path: Path) -> None:
    """A node process that stands still has the lock of all: nobody sees half of what it wrote, and nobody hangs."""
    with closing(SqliteStore(str(path))) as store, subprocess.Popen([sys.executable, "-c", WRITER, path]) as writer:
        store.hurry()
        os.waitpid(writer.pid, os.WUNTRACED)
        with pytest.raises(StoreBusyError, match="is locked by another process; try again"):
            store.commit([Put("k", b"v")])
        assert {key: row.value for key, row in store.list("")} == ROWS
        writer.kill()
        writer.wait()
        store.commit([Put("k", b"v")])
        assert {key: row.value for key, row in store.list("")} == {**ROWS, "k": b"v"}


def test_a_lock_of_another_process_is_waited_for_once_while_clients_are_served(path: Path) -> None:
    store = SqliteStore(str(path))
    store.hurry()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waits: list[int] = []
        for number in range(3):
            waits.append(store._connection.execute("PRAGMA busy_timeout").fetchone()[0])
            with pytest.raises(StoreBusyError, match="is locked by another process; try again"):
                store.commit([Put(KEY, b"%d" % number)])
        assert waits == [SERVING_TIMEOUT_MS, 0, 0]
        other.execute("ROLLBACK")
    assert store.get(KEY) is not None
    assert store.list("")[0][0] == "cluster/id"
    before = store.generation
    assert store.commit([Put("k", b"v")]) == before + 1
    assert store._connection.execute("PRAGMA busy_timeout").fetchone() == (SERVING_TIMEOUT_MS,)
    with suppress(StoreError):
        store.close()
