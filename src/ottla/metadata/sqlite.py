"""Keeps the metadata store of one machine: one SQLite file in the data directory, shared by any number of nodes.

It uses a write-ahead log and synchronous=FULL: a commit is one fsync and is durable when it returns. NORMAL may lose
the last commits at a power cut, and leader epochs would repeat. Every commit is BEGIN IMMEDIATE, so a reader never
becomes a writer half-way (SQLITE_BUSY_SNAPSHOT). Keys are stored as UTF-8 blobs: byte order is code point order.

SQLite does not verify what it reads, and drops its write-ahead log from the first damaged frame on. So three things are
added:
- Each row has a checksum of its key, value and version.
- The head row has the sum of all these checksums, and a checksum of itself.
- A separate file, PATH-generation, has the number of the newest commit.

A damaged or missing row stops the start. Missing commits are counted (`lost`). Format 1 had none of these, and gets
them when it is opened.

The files must not be replaced while a process has them open: the process would write to files that no name refers to.
So every commit checks that they are still the same, and `gone` does so for the I/O host. A copy written over the file
keeps its inode. It is detected by the generation in the file itself, without the log, which checkpoints only ever
raise.

`sqlite3` is imported when a store is opened, not with this module, because a start that doesn't need it would be
slower.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from ottla import private
from ottla.metadata.store import (
    CHANGES_MAX,
    Changes,
    CommitUnknownError,
    ConflictError,
    Put,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreGoneError,
    Versioned,
    VersionGuard,
    Write,
    check_batch,
)

FORMAT: Final = 2
WAY_ON: Final = (
    "Restore it from a backup, or move it away with its -wal, -shm and -generation files: the next start takes the "
    "topics over from their directories and keeps every record until their configs are set again"
)
"""The remedy for a damaged store."""
BACK: Final = (
    "Changes that nodes have written since are not in the present file. Stop all nodes, put the right file "
    "back without its "
    "-wal and -shm files, and start them again"
)
"""The remedy if the files were replaced under running nodes."""
SERVING_TIMEOUT_MS: Final = 20
"""Milliseconds that a commit waits for another process's lock while clients are served, if no other process writes."""
SHARED_TIMEOUT_MS: Final = 2_000
"""Milliseconds that a commit waits if nodes share the store: commits wait for each other, and each for the disk."""

RETRY_S: Final = 0.005

_TABLES: Final = (
    "CREATE TABLE row (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, crc INTEGER) WITHOUT ROWID",
    "CREATE TABLE change (generation INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY (generation, key)) WITHOUT ROWID",
    "CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL, "
    "digest INTEGER, crc INTEGER)",
    "INSERT INTO head VALUES (1, 0, 0, 0)",
)
_FROM_FORMAT_1: Final = (
    "ALTER TABLE row ADD COLUMN crc INTEGER",
    "ALTER TABLE head ADD COLUMN digest INTEGER",
    "ALTER TABLE head ADD COLUMN crc INTEGER",
)
_DIGEST_MASK: Final = (1 << 62) - 1
_HEAD: Final = struct.Struct(">qq")
_VERSION: Final = struct.Struct(">q")

_BUSY: Final = (5, 6)
_DAMAGED: Final = (11, 26)
"""SQLite's primary result codes: BUSY and LOCKED; CORRUPT and NOTADB."""


class SqliteStore:
    """See `store.MetadataStore`. Calls of several threads wait for each other. Raises StoreError. `is_shared`: cluster
    nodes share it, and their commits wait for each other."""

    __slots__ = (
        "_connection",
        "_failure",
        "_files",
        "_floor",
        "_gone",
        "_is_shared",
        "_mark",
        "_merged",
        "_merged_ns",
        "_one",
        "_patience_ms",
        "_waits_ms",
        "lost",
        "place",
        "way_on",
    )

    def __init__(self, path: str, *, busy_timeout_ms: int = 10_000, is_shared: bool = False) -> None:
        import sqlite3

        self._is_shared = is_shared
        self.place = path
        self.way_on = WAY_ON
        self._one = threading.Lock()
        # The second where a message of SQLite's own quotes what is damaged.
        self._failure = (sqlite3.Error, UnicodeDecodeError)
        self._patience_ms = self._waits_ms = busy_timeout_ms
        self._mark = -1
        self._gone: str | None = None
        connection: sqlite3.Connection | None = None
        try:
            with contextlib.suppress(OSError):  # SQLite has the better message
                private.make_file(path)  # SQLite gives its other files the mode of this one
                for name in (f"{path}-wal", f"{path}-shm", mark_beside(path)):
                    private.close_file(name)
            connection = self._connection = sqlite3.connect(
                path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
            connection.text_factory = bytes  # a damaged type must not be decoded
            self._keep_a_log(time.monotonic() + busy_timeout_ms / 1000)
            connection.execute("PRAGMA synchronous = FULL")
            self._upgrade()
            # Before the head is read: another process may commit in between, and it writes its mark after its commit.
            self._floor = self._read_mark()
            self.lost = max(0, self._floor - self._verified_generation())
            self._files = {name: _identity(name) for name in (path, f"{path}-wal")}
            self._merged_ns, self._merged = -1, 0
            self.gone()
        except BaseException as error:
            self.close()
            if isinstance(error, self._failure):
                raise self._failed("opened", error) from error
            raise

    @property
    def generation(self) -> int:
        return int(self._rows("SELECT generation FROM head")[0][0])

    def hurry(self) -> None:
        """Note that clients are served from now on. A lock that another process holds then makes calls fail soon, with
        StoreBusyError."""
        self._patience_ms = SHARED_TIMEOUT_MS if self._is_shared else SERVING_TIMEOUT_MS
        self._wait_at_most(self._patience_ms)

    def get(self, key: str) -> Versioned | None:
        rows = self._rows("SELECT key, value, version, crc FROM row WHERE key = ?", (key.encode(),))
        return self._checked(rows[0])[1] if rows else None

    def get_many(self, keys: Sequence[str]) -> Sequence[Versioned | None]:
        return [self.get(key) for key in keys]

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        low = prefix.encode()
        if low:
            # UTF-8 never holds a byte 255, so the last byte can always be raised to close the range.
            high = low[:-1] + bytes([low[-1] + 1])
            within = "SELECT key, value, version, crc FROM row WHERE key >= ? AND key < ? ORDER BY key"
            rows = self._rows(within, (low, high))
        else:
            rows = self._rows("SELECT key, value, version, crc FROM row ORDER BY key")
        return [self._checked(row) for row in rows]

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        check_batch(writes)
        with self._one:
            return self._commit(writes, guards)

    def gone(self) -> str | None:
        """The reason why the files are no longer those that were opened; None while they are."""
        if self._gone is None:
            with contextlib.suppress(OSError):
                what = self._replaced()
                self._gone = None if what is None else f"{what} while nodes ran. {BACK}"
        return self._gone

    def _replaced(self) -> str | None:
        """The change that happened to the files; None if there is none. Raises OSError."""
        for name, identity in self._files.items():
            if identity is not None and (now := _identity(name)) != identity:
                return f"{name} was {'removed' if now is None else 'replaced'}"
        changed_ns = os.stat(self.place).st_mtime_ns
        if changed_ns != self._merged_ns:
            merged = self._merged_generation()
            if merged < self._merged and self._merged_generation() < self._merged:  # not amid a checkpoint
                return f"{self.place} was overwritten"
            self._merged_ns, self._merged = changed_ns, merged
        return None

    def _merged_generation(self) -> int:
        """The generation in the file itself, which is that of the last checkpoint. If it can't be read now, the
        previous value."""
        import sqlite3

        name = self.place.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        place = f"file:{name}?mode=ro&immutable=1"
        try:
            with contextlib.closing(sqlite3.connect(place, uri=True, isolation_level=None)) as connection:
                return int(connection.execute("SELECT generation FROM head").fetchone()[0])
        except (*self._failure, TypeError, ValueError):
            return self._merged

    def _commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard]) -> int:
        connection = self._connection
        if (why := self.gone()) is not None:
            raise StoreGoneError(why)
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._wait_at_most(self._patience_ms)
            try:
                for item in (*guards, *writes):
                    if item.expected is not None:
                        self._expect(item.key, item.expected)
                generation = self._write(writes)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except self._failure as error:
            raise self._failed("written", error) from error
        if (why := self.gone()) is not None:
            raise CommitUnknownError(
                why
            )  # it may be in the log that the next start finds, or in no file that has a name
        self._write_mark(generation)
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

    def rise(self, generation: int) -> None:
        with self._one:
            self._floor = max(self._floor, generation)

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not even be opened
            self._connection.close()
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _expect(self, key: str, expected: int) -> None:
        row = self._connection.execute("SELECT version FROM row WHERE key = ?", (key.encode(),)).fetchone()
        found = row[0] if row else 0
        if found != expected:
            raise ConflictError(key, expected, found)

    def _write(self, writes: Sequence[Write]) -> int:
        connection = self._connection
        head, digest = connection.execute("SELECT generation, digest FROM head").fetchone()
        generation = max(head, self._floor) + 1
        puts: list[tuple[bytes, bytes, int, int]] = []
        for write in writes:
            key = write.key.encode()
            old = connection.execute("SELECT crc FROM row WHERE key = ?", (key,)).fetchone()
            digest -= old[0] if old else 0
            if isinstance(write, Put):
                value = bytes(write.value)
                puts.append((key, value, generation, _crc(key, value, generation)))
                digest += puts[-1][3]
            else:
                connection.execute("DELETE FROM row WHERE key = ?", (key,))
        connection.executemany("INSERT OR REPLACE INTO row VALUES (?, ?, ?, ?)", puts)
        connection.executemany("INSERT INTO change VALUES (?, ?)", [(generation, w.key.encode()) for w in writes])
        connection.execute("DELETE FROM change WHERE generation <= ?", (generation - CHANGES_MAX,))
        self._write_head(generation, digest & _DIGEST_MASK)
        return generation

    def _write_head(self, generation: int, digest: int) -> None:
        values = (generation, digest, crc32(_HEAD.pack(generation, digest)))
        self._connection.execute("UPDATE head SET generation = ?, digest = ?, crc = ?", values)

    # ---- opening and reading ---------------------------------------------------------------------------------------

    def _keep_a_log(self, until: float) -> None:
        """Use a write-ahead log, as every process here does. If several processes create the file at the same time,
        SQLite refuses this at once to all but one, whatever its time-out is. So it is retried."""
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except self._failure as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY or time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)

    def _upgrade(self) -> None:
        """Make the tables of a new file, or the checksums of one of format 1. Raises StoreError for a newer format."""
        execute = self._connection.execute
        if (found := execute("PRAGMA user_version").fetchone()[0]) == FORMAT:
            return
        if found > FORMAT:
            raise StoreError(f"the metadata store {self.place} has format {found}, written by a newer Ottla")
        execute("BEGIN IMMEDIATE")
        columns = {row[1] for row in execute("PRAGMA table_info(row)")}
        for statement in () if b"crc" in columns else _FROM_FORMAT_1 if columns else _TABLES:
            execute(statement)
        if b"crc" not in columns:
            rows = execute("SELECT key, value, version FROM row").fetchall()
            sums = [(_crc(*row), row[0]) for row in rows]
            self._connection.executemany("UPDATE row SET crc = ? WHERE key = ?", sums)
            generation = execute("SELECT generation FROM head").fetchone()[0]
            self._write_head(generation, sum(crc for crc, _ in sums) & _DIGEST_MASK)
        execute(f"PRAGMA user_version = {FORMAT}")
        execute("COMMIT")

    def _verified_generation(self) -> int:
        """Verify the whole store, and return the number of the newest commit. Raises StoreDamagedError."""
        execute = self._connection.execute
        execute("BEGIN")  # one picture, whatever others commit
        found = execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != b"ok":
            raise StoreDamagedError(
                f"the metadata store {self.place} is damaged: {found.decode(errors='replace')}. {WAY_ON}"
            )
        digest = 0
        for row in execute("SELECT key, value, version, crc FROM row"):
            self._checked(row)
            digest += row[3]
        heads = execute("SELECT generation, digest, crc FROM head").fetchall()
        execute("COMMIT")
        if len(heads) != 1 or not all(isinstance(each, int) for each in heads[0]):
            raise StoreDamagedError(f"the head of the metadata store {self.place} is damaged. {WAY_ON}")
        generation, expected, crc = heads[0]
        if crc != crc32(_HEAD.pack(generation, expected)):
            raise StoreDamagedError(
                f"the head of the metadata store {self.place} does not match its checksum. {WAY_ON}"
            )
        if expected != digest & _DIGEST_MASK:
            raise StoreDamagedError(f"keys of the metadata store {self.place} are missing. {WAY_ON}")
        return int(generation)

    def _checked(self, row: Sequence[Any]) -> tuple[str, Versioned]:
        """A row as it was written. Raises StoreDamagedError."""
        key, value, version, crc = row
        typed = isinstance(key, bytes) and isinstance(value, bytes) and isinstance(version, int)
        if not typed or crc != _crc(key, value, version):
            name = key.decode(errors="backslashreplace") if isinstance(key, bytes) else repr(key)
            raise StoreDamagedError(
                f"the value of {name} in the metadata store {self.place} does not match its checksum. {WAY_ON}"
            )
        return key.decode(), Versioned(value, version)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> Sequence[Any]:
        if self._gone is not None:
            raise StoreGoneError(self._gone)
        with self._one:
            try:
                rows = self._connection.execute(query, values).fetchall()
                self._wait_at_most(self._patience_ms)
            except self._failure as error:
                raise self._failed("read", error) from error
        return rows

    def _failed(self, done: str, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            if self._patience_ms == SERVING_TIMEOUT_MS:
                self._wait_at_most(0)  # once is enough: the next ones fail at once, until one gets through
            return StoreBusyError(f"the metadata store {self.place} is locked by another process; try again")
        sentence = f"the metadata store {self.place} can't be {done}: {error}"
        damaged = code in _DAMAGED or isinstance(error, UnicodeDecodeError)
        return StoreDamagedError(f"{sentence}. {WAY_ON}") if damaged else StoreError(sentence)

    def _wait_at_most(self, ms: int) -> None:
        if ms != self._waits_ms:
            self._waits_ms = ms
            self._connection.execute(f"PRAGMA busy_timeout = {ms}")

    # ---- the number of the newest commit, in a file of its own -----------------------------------------------------

    def _read_mark(self) -> int:
        """0 if the file is new or damaged: the newest commit is then unknown."""
        try:
            self._mark = os.open(mark_beside(self.place), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return 0
        return self.marked()

    def marked(self) -> int:
        """The number that the last commit of any process left beside the store, without reading the store. It is a
        hint, because a process may be killed between both writes. 0 if it can't be read."""
        try:
            number, _, crc = os.pread(self._mark, 64, 0).strip().partition(b" ")
        except OSError:
            return 0
        return int(number) if number.isdigit() and crc == b"%08x" % crc32(number) else 0

    def _write_mark(self, generation: int) -> None:
        # Not synced: what a power cut leaves is an older number, which only finds less.
        number = b"%020d" % generation
        with contextlib.suppress(OSError):
            os.pwrite(self._mark, b"%s %08x\n" % (number, crc32(number)), 0)


def mark_beside(place: str) -> str:
    """The file beside the store at this path that has the number of the newest commit."""
    return f"{place}-generation"


def _identity(name: str) -> tuple[int, int] | None:
    """The identity of the file with this name now; None if there is none. Raises OSError."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _crc(key: bytes, value: bytes, version: int) -> int:
    """The checksum of a row."""
    return crc32(value, crc32(_VERSION.pack(version) + key))
