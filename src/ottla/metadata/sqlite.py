"""The metadata store of one machine: one SQLite file in the data directory, shared by any number of node processes.

Write-ahead log and synchronous=FULL: a commit is one fsync and is durable when it returns (NORMAL may lose the last
commits at a power cut, and leader epochs would repeat). Every commit is BEGIN IMMEDIATE, so that a reader never
becomes a writer half-way (SQLITE_BUSY_SNAPSHOT). Keys are stored as UTF-8 blobs: byte order is code point order.

`sqlite3` is imported when a store is opened, not with this module: it costs a start-up that doesn't need it.
"""

from collections.abc import Sequence
from typing import Any

from ottla.metadata.store import (
    CHANGES_MAX,
    Changes,
    Conflict,
    Guard,
    Put,
    StoreFailed,
    Versioned,
    Write,
    check_batch,
)

FORMAT = 1

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS row (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS change (generation INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY (generation, key))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS head (only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL);
INSERT OR IGNORE INTO head VALUES (1, 0);
PRAGMA user_version = {FORMAT};
COMMIT;
"""


class SqliteStore:
    """See `store.MetadataStore`. Calls come from one thread at a time. Raises StoreFailed."""

    __slots__ = ("_connection", "_failure", "path")

    def __init__(self, path: str, *, busy_timeout_ms: int = 10_000) -> None:
        import sqlite3

        self.path = path
        self._failure = sqlite3.Error
        try:
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreFailed(f"the metadata store {path} can't be opened: {error}") from error
        if found > FORMAT:
            raise StoreFailed(f"the metadata store {path} has format {found}, written by a newer Ottla")

    @property
    def generation(self) -> int:
        return int(self._rows("SELECT generation FROM head")[0][0])

    def get(self, key: str) -> Versioned | None:
        row = self._rows("SELECT value, version FROM row WHERE key = ?", (key.encode(),))
        return Versioned(row[0][0], row[0][1]) if row else None

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        low = prefix.encode()
        if low:
            # UTF-8 never holds a byte 255, so the last byte can always be raised to close the range.
            high = low[:-1] + bytes([low[-1] + 1])
            within = "SELECT key, value, version FROM row WHERE key >= ? AND key < ? ORDER BY key"
            rows = self._rows(within, (low, high))
        else:
            rows = self._rows("SELECT key, value, version FROM row ORDER BY key")
        return [(key.decode(), Versioned(value, version)) for key, value, version in rows]

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        check_batch(writes)
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for item in (*guards, *writes):
                    if item.expected is not None:
                        self._expect(item.key, item.expected)
                generation = self._generation() + 1
                self._write(writes, generation)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except self._failure as error:
            raise StoreFailed(f"the metadata store {self.path} can't be written: {error}") from error
        return generation

    def changes_since(self, generation: int) -> Changes | None:
        rows = self._rows(
            "SELECT generation, NULL FROM head UNION ALL "
            "SELECT max(generation), key FROM change WHERE generation > ? GROUP BY key ORDER BY 1, 2",
            (generation,),
        )
        newest = max(row[0] for row in rows)
        if not max(0, newest - CHANGES_MAX) <= generation <= newest:
            return None
        return Changes(newest, tuple(row[1].decode() for row in rows if row[1] is not None))

    def close(self) -> None:
        self._connection.close()

    def _expect(self, key: str, expected: int) -> None:
        row = self._connection.execute("SELECT version FROM row WHERE key = ?", (key.encode(),)).fetchone()
        found = row[0] if row else 0
        if found != expected:
            raise Conflict(key, expected, found)

    def _write(self, writes: Sequence[Write], generation: int) -> None:
        connection = self._connection
        puts = [(write.key.encode(), write.value, generation) for write in writes if isinstance(write, Put)]
        gone = [(write.key.encode(),) for write in writes if not isinstance(write, Put)]
        connection.executemany("INSERT OR REPLACE INTO row VALUES (?, ?, ?)", puts)
        connection.executemany("DELETE FROM row WHERE key = ?", gone)
        connection.executemany("INSERT INTO change VALUES (?, ?)", [(generation, w.key.encode()) for w in writes])
        connection.execute("DELETE FROM change WHERE generation <= ?", (generation - CHANGES_MAX,))
        connection.execute("UPDATE head SET generation = ?", (generation,))

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> Sequence[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except self._failure as error:
            raise StoreFailed(f"the metadata store {self.path} can't be read: {error}") from error

    def _generation(self) -> int:
        return int(self._connection.execute("SELECT generation FROM head").fetchone()[0])
