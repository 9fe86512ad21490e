"""Defines the log's interface to the file system, and implements it over `os`.

A second implementation (the simulator's disk) must have exactly this durability:
- `File.write` and `File.truncate` are visible to every later read at once, and survive the death of the process.
- They survive a crash of the machine only after `File.sync` returned. A failed sync reports that once. The data that it
  should have covered may be lost although later syncs succeed, unless it is written again.
- A name (a created file, a rename, an unlink, a new directory) survives a crash of the machine only after
  `FileSystem.sync_directory` of the directory that holds it. A file that was synced under a lost name is lost.
- `write_atomically` does all of it. After it returns the path holds exactly the new bytes, whatever happens next.
  Before that it holds exactly the old ones (or nothing).
- A failed write raises OSError. The file may then end in a part of what was written; its writer cuts it.

A `File` is a handle, not a descriptor. At most `open_files_max` descriptors are open; that of an idle file is closed,
and opened again when it is needed. A file that was unlinked or replaced stays readable through older handles. If
another process did that, it stays readable only while its descriptor is open: the handle never opens another file.

Everything here runs on one thread, except `File.sync`, which another thread may call between `pin` and `unpin`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Generator
from typing import Final, NamedTuple, Protocol

OPEN_FILES_MAX: Final = 4096
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the system, has no descriptor left: a temporary state."""
REWRITE_BYTES: Final = 1 << 20
DESCRIPTOR_TRIES: Final = 4
GIVEN_UP_AT_ONCE: Final = 8


class ReadError(OSError):
    """Raised if the disk could not read a file. `position` is where the bytes begin that could not be read."""

    def __init__(self, error: OSError, path: str, position: int) -> None:
        super().__init__(error.errno, error.strerror, path)
        self.position = position


class File(Protocol):
    """One open file, written only at its end."""

    @property
    def path(self) -> str:
        """The present path of the file; follows renames."""
        ...

    def write(self, octets: bytes | bytearray | memoryview) -> None:
        """Append these bytes, in one system call if the kernel accepts them at once. Raises OSError, perhaps after a
        part."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`; fewer only at the end of the file. Raises ReadError."""
        ...

    def size(self) -> int:
        """The present size, which another process may have changed. Raises OSError."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Block until what was written is on the disk. The one call that another thread may make, while pinned."""
        ...

    def rewrite(self, position: int, durable: bool = True) -> None:
        """Write the bytes from `position` on again, in place, and if `durable` sync them: after a failed fsync only
        this brings them to the disk. Raises OSError."""
        ...

    def pin(self) -> None:
        """Keep the descriptor open until `unpin`, for a `sync` on another thread."""
        ...

    def unpin(self) -> None: ...

    def close(self) -> None:
        """Close the descriptor when the last pin is removed. The handle must not be used again."""
        ...

    def fileno(self) -> int:
        """A descriptor that is good until control returns to the caller's loop. Simulated files raise OSError."""
        ...

    def is_in_place(self) -> bool:
        """Whether `path` leads to this file: another process may have removed or replaced it. Raises OSError."""
        ...

    def put_back(self) -> Generator[int]:
        """Create the file again at its path, from which another process has removed it, with its bytes. Yields the
        bytes of each slice but the last one. The file is on the disk afterwards. Close the iterator early if the file
        is cut meanwhile; then nothing has happened. Raises OSError, if its descriptor was closed, or if the path leads
        to another file."""
        ...


class Pinned(Protocol):
    """The operations of a File or a directory for a disk thread, which may call `sync` while it is pinned."""

    def sync(self) -> None: ...

    def pin(self) -> None:
        """Raises OSError."""
        ...

    def unpin(self) -> None: ...


class FileSystem(Protocol):
    """Names of files and directories. Paths are plain strings with `/`."""

    def open(self, path: str, create: bool = False) -> File:
        """The file at `path`. Raises FileNotFoundError unless `create`, which makes an empty one."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def identity(self, path: str) -> str:
        """A text that a copy of the file does not share. It stays the same when the process or the machine restarts."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory, replacing a file at `new`. Open handles follow."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def directory(self, path: str) -> Pinned:
        """The names in a directory, to be synced by another thread; follows renames while pinned."""
        ...

    @property
    def pins_max(self) -> int:
        """Maximum number of files pinned at once, so that other uses still find descriptors."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume that contains `path`; -1 if unknown."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError, ReadError."""
        ...

    def write_atomically(self, path: str, data: bytes, durable: bool = True) -> None:
        """Replace the file at `path` by way of `path` + ".tmp". Not `durable`: without waiting for the disk."""
        ...


class FileSlice(NamedTuple):
    """A run of whole record batches in a segment file: what a read returns, ready for sendfile or one pread.

    The bytes stay valid as long as the slice is held, except that a truncation of the log may shorten the file: a
    reader that gets fewer than `length` bytes must drop what it was sending.
    """

    file: File
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


class DiskFile:
    """A handle on a real file, opened for appending; its descriptor is closed and opened again as needed."""

    __slots__ = ("_closed", "_disk", "_fd", "_inode", "_path", "_pins", "_recent", "_unlinked")

    def __init__(self, disk: DiskFiles, path: str, fd: int) -> None:
        self._disk = disk
        self._path = path
        self._fd = fd
        self._inode: tuple[int, int] | None = None if fd < 0 else _inode_of(os.fstat(fd))
        self._pins = 0
        self._recent = True
        self._unlinked = False
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def write(self, octets: bytes | bytearray | memoryview) -> None:
        fd = self._fd if self._fd >= 0 else self._reopen()
        self._recent = True
        written = os.write(fd, octets)
        if written != len(octets):
            self._write_rest(memoryview(octets)[written:])

    def _write_rest(self, rest: memoryview) -> None:
        # A full disk causes a short write first. The next write then gets the reason.
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def read(self, position: int, length: int) -> bytes:
        fd = self._fd if self._fd >= 0 else self._reopen()
        self._recent = True
        got = 0
        try:
            chunk = os.pread(fd, length, position)
            if len(chunk) == length or not chunk:
                return chunk
            parts = [chunk]
            got = len(chunk)
            while got < length:  # the kernel caps one read at 2 GiB, and a signal or a bad sector may cut it
                chunk = os.pread(fd, length - got, position + got)
                if not chunk:
                    break
                parts.append(chunk)
                got += len(chunk)
        except OSError as error:
            raise ReadError(error, self._path, position + got) from error
        return b"".join(parts)

    def size(self) -> int:
        return (os.fstat(self._fd) if self._fd >= 0 else os.stat(self._path)).st_size

    def truncate(self, size: int) -> None:
        fd = self._fd if self._fd >= 0 else self._reopen()
        os.ftruncate(fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd if self._fd >= 0 else self._reopen())

    def rewrite(self, position: int, durable: bool = True) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)  # for appending, every write would go to the end
        try:
            while chunk := os.pread(fd, REWRITE_BYTES, position):
                position += os.pwrite(fd, chunk, position)
            if durable:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def pin(self) -> None:
        if self._fd < 0:
            self._reopen()
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._closed and not self._pins:
            self._let_go()

    def close(self) -> None:
        self._disk.forget(self)
        self._closed = True
        if not self._pins:  # another thread may be syncing it
            self._let_go()

    def fileno(self) -> int:
        self._recent = True
        return self._fd if self._fd >= 0 else self._reopen()

    def is_in_place(self) -> bool:
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._inode in (None, _inode_of(found))

    def put_back(self) -> Generator[int]:
        if self._fd < 0 or self._unlinked:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        temporary, position = self._path + ".tmp", 0
        fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._pins += 1
        try:
            while True:
                chunk = os.pread(self._fd, REWRITE_BYTES, position)
                _write_all(fd, chunk)
                os.fdatasync(fd)
                position += len(chunk)
                if len(chunk) < REWRITE_BYTES and self._pins == 1:  # no other thread syncs the old descriptor
                    break
                yield len(chunk)
            os.link(temporary, self._path)  # raises FileExistsError
            os.unlink(temporary)
            self._disk.sync_directory(os.path.dirname(self._path))
            fd, self._fd = self._fd, fd
            self._inode = _inode_of(os.fstat(self._fd))
        finally:
            self._pins -= 1
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _reopen(self) -> int:
        if self._unlinked:
            raise FileNotFoundError(f"{self._path} was deleted and closed")
        fd = self._disk.descriptor(self._path, os.O_RDWR | os.O_APPEND)
        inode = _inode_of(os.fstat(fd))
        if self._inode not in (None, inode):
            os.close(fd)
            raise OSError(errno.ESTALE, "another process has replaced this file", self._path)
        self._fd, self._inode = fd, inode
        self._recent = True
        self._disk.opened(self)
        return fd

    def _let_go(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # The rest is for DiskFiles, which owns the handles.

    def evict(self) -> bool:
        """Close the descriptor if it is neither pinned nor used since the last call. Returns whether it is closed or
        unlinked."""
        if self._fd < 0 or self._unlinked:
            return True
        if self._pins or self._recent:
            self._recent = False
            return False
        self._let_go()
        return True

    def let_go(self) -> bool:
        """Close the descriptor unless it is pinned. Returns whether it was closed."""
        if self._fd < 0 or self._pins or self._unlinked:
            return False
        self._let_go()
        return True

    def moved(self, path: str) -> None:
        self._path = path

    def unlink_later(self) -> None:
        """Keep the file readable after its name is removed: the descriptor now lives exactly as long as the handle."""
        if self._fd < 0:
            with contextlib.suppress(OSError):  # without a descriptor, a reader of the file gets an error
                self._reopen()
        self._unlinked = True

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._let_go()


def _write_all(fd: int, octets: bytes) -> None:
    rest = memoryview(octets)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _inode_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class DiskDirectory:
    """The names in a real directory."""

    __slots__ = ("_disk", "_fd", "_path", "_pins")

    def __init__(self, disk: DiskFiles, path: str) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1
        self._pins = 0

    def sync(self) -> None:
        os.fsync(self._fd)

    def pin(self) -> None:
        if self._fd < 0:
            self._fd = self._disk.descriptor(self._path, os.O_RDONLY | os.O_DIRECTORY)
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if not self._pins:
            fd, self._fd = self._fd, -1
            os.close(fd)


class DiskFiles:
    """The real file system. There is one per process, because it limits the descriptors of the process.

    `open_files_max` limits the descriptors of named files. Deleted files that are still read, and files pinned for a
    sync, are extra and few.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._open_files_max = open_files_max
        self._handles: dict[str, dict[str, DiskFile]] = {}
        self._with_descriptor: OrderedDict[DiskFile, None] = OrderedDict()

    def open(self, path: str, create: bool = False) -> DiskFile:
        directory, _, name = path.rpartition("/")
        named = self._handles.get(directory)
        if named is not None and (known := named.get(name)) is not None:
            if known.is_in_place():
                return known
            self._displace(path)
        if create:
            file = DiskFile(self, path, self.descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT))
            self.opened(file)
        else:
            os.stat(path)  # raises FileNotFoundError
            file = DiskFile(self, path, -1)
        self._handles.setdefault(directory, {})[name] = file
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def identity(self, path: str) -> str:
        # Not the device, which may change with each boot, nor the time of the last chmod or chown.
        found = os.stat(path)
        return f"{found.st_ino}:{int(found.st_mtime)}"

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        os.makedirs(path, mode=0o755, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        self._displace(new)
        os.rename(old, new)
        file = self._take(old)
        if file is not None:
            directory, _, name = new.rpartition("/")
            file.moved(new)
            self._handles.setdefault(directory, {})[name] = file
        within = self._handles.pop(old, None)
        if within is not None:
            self._handles[new] = within
            for name, file in within.items():
                file.moved(f"{new}/{name}")

    def unlink(self, path: str) -> None:
        self._displace(path)
        os.unlink(path)

    def rmtree(self, path: str) -> None:
        for name in list(self._handles.get(path, ())):
            self._displace(f"{path}/{name}")
        from shutil import rmtree  # rare, and not free: a node starts without it

        rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def directory(self, path: str) -> DiskDirectory:
        return DiskDirectory(self, path)

    @property
    def pins_max(self) -> int:
        return max(1, self._open_files_max // 2)

    def descriptor(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open a descriptor. If the process or the system has none left, close some of our own and try again. Only on
        the thread that owns the files."""
        for _ in range(DESCRIPTOR_TRIES):
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._give_up_some():
                    raise
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def _give_up_some(self) -> bool:
        """Close the descriptors that were unused for the longest time; False if none could be closed."""
        closed = 0
        for file in list(self._with_descriptor):
            if file.let_go():
                del self._with_descriptor[file]
                closed += 1
                if closed == GIVEN_UP_AT_ONCE:
                    break
        return closed > 0

    def read_bytes(self, path: str) -> bytes:
        with open(self.descriptor(path, os.O_RDONLY), "rb") as source:
            try:
                return source.read()
            except OSError as error:
                raise ReadError(error, path, 0) from error

    def space(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_frsize * volume.f_blocks, volume.f_frsize * volume.f_bavail

    def write_atomically(self, path: str, data: bytes, durable: bool = True) -> None:
        temporary = path + ".tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        # A durable one may be written by the disk thread, which must not give up descriptors of ours.
        fd = os.open(temporary, flags | os.O_CLOEXEC, 0o644) if durable else self.descriptor(temporary, flags)
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        self._displace(path)
        os.rename(temporary, path)
        if durable:
            self.sync_directory(os.path.dirname(path) or ".")

    def opened(self, file: DiskFile) -> None:
        """Count a descriptor, and close the ones longest unused (second chance) beyond the bound."""
        waiting = self._with_descriptor
        for _ in range(2 * len(waiting)):
            if len(waiting) < self._open_files_max:
                break
            oldest, _ = waiting.popitem(last=False)
            if not oldest.evict():
                waiting[oldest] = None
        waiting[file] = None

    def forget(self, file: DiskFile) -> None:
        """The handle is closed for good."""
        directory, _, name = file.path.rpartition("/")
        named = self._handles.get(directory)
        if named is not None and named.get(name) is file:
            del named[name]
            if not named:
                del self._handles[directory]
        self._with_descriptor.pop(file, None)

    def _take(self, path: str) -> DiskFile | None:
        directory, _, name = path.rpartition("/")
        named = self._handles.get(directory)
        if named is None:
            return None
        file = named.pop(name, None)
        if not named:
            del self._handles[directory]
        return file

    def _displace(self, path: str) -> None:
        """Keep the file that is about to lose this name for its readers; it can't be opened again."""
        file = self._take(path)
        if file is not None:
            file.unlink_later()
            self._with_descriptor.pop(file, None)
