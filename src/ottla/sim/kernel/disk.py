"""Simulates the disk: the file system seam of `ottla.log.files`, in memory, with all the ways a disk may forget.

For every file and every directory entry, it keeps the state that the running machine sees and the state that may be
found after a power cut. The model is as unkind as POSIX allows:

- A write or truncation is visible at once and is volatile until the file's sync. At a power cut each volatile operation
  may be lost, kept, or torn at any byte; a hole left by a lost one below a kept one reads as zeros.
- A creation, rename or unlink is volatile until the directory is synced. At a power cut any subset may have happened,
  except that the operations on one name stay in order, and a rename is one step.
- Syncing a file does not sync its name, and syncing a directory does not sync the files in it.
- A failed sync of a file marks the writes that it should have covered as clean, as Linux does. They stay visible as
  long as the machine runs, but no later sync brings them to the platter; only writing them again does. A failed sync of
  a directory leaves its names volatile, until a later sync.
- The death of the process alone loses nothing (`Disk.kill`).
- `Disk.make_unreadable` makes reads of a part of a file fail, until the part is cut off or the disk is repaired.

`trouble` is called before every operation and may make it fail; a failed write leaves half of its bytes.

`fuse` counts operations that change something. When it reaches zero, the power fails in the middle of that operation,
and every later operation of the dying process raises `PowerCut` again. `PowerCut` is not an Exception, so no handler in
the node's code catches it as an error.

Sources: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014); TigerBeetle's storage fault model.
"""

import errno
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeAlias

from ottla.log.files import ReadError

SYNC_FAILED = "simulated EIO from fsync"

Serial: TypeAlias = int


class PowerCut(BaseException):
    """Raised when the process dies, here and now."""


class Inode:
    """A file's bytes. `content` is what a read sees; `kept` is what is certainly on the platter. `volatile` has the
    operations in between, oldest first: (position, bytes) for a write, (size, None) for a truncation. `settled` counts
    operations that have left `volatile` in this inode's life. `forsaken`: a failed sync has left some of them off the
    platter. `unreadable`: the positions that can't be read."""

    __slots__ = (
        *("content", "forsaken", "handle", "kept", "name"),
        *("parent", "serial", "settled", "unreadable", "volatile"),
    )

    def __init__(self, serial: Serial, parent: "Directory", name: str) -> None:
        self.serial = serial
        self.parent = parent
        self.name = name
        self.content = bytearray()
        self.kept = bytearray()
        self.volatile: list[tuple[int, bytes | None]] = []
        self.settled = 0
        self.forsaken = False
        self.unreadable = range(0)
        self.handle: SimFile | None = None

    def read(self, positions: range) -> bytes:
        """The bytes at these positions. Raises ReadError."""
        first = max(positions.start, self.unreadable.start)
        if first < min(positions.stop, self.unreadable.stop, len(self.content)):
            raise ReadError(OSError(errno.EIO, "Input/output error"), path_of(self), first)
        return bytes(self.content[positions.start : positions.stop])

    def settle(self, up_to: int) -> None:
        """All operations numbered below `up_to` reach the platter."""
        count = max(0, up_to - self.settled)
        for operation in self.volatile[:count]:
            _apply(self.kept, operation)
        del self.volatile[:count]
        self.settled += count

    def forsake(self, up_to: int) -> None:
        """Silently drop the writes numbered below `up_to`: they never reach the platter. Truncations stay, because the
        journal keeps sizes."""
        count = max(0, up_to - self.settled)
        truncations = [operation for operation in self.volatile[:count] if operation[1] is None]
        self.forsaken = self.forsaken or count > len(truncations)
        self.settled += len(self.volatile[:count]) - len(truncations)
        self.volatile[:count] = truncations

    def survive(self, rng: random.Random) -> None:
        """Decide what a power cut leaves."""
        if self.volatile or self.forsaken:
            found = self.kept
            for operation in _survivors(self.volatile, rng) if self.volatile else ():
                _apply(found, operation)
            if len(found) < len(self.content) and rng.random() >= 0.9:
                # The size reached the disk, the bytes did not.
                found.extend(bytes(len(self.content) - len(found)))
            self.settled += len(self.volatile)
            self.volatile.clear()
            self.forsaken = False
            self.content = bytearray(found)
        self.handle = None


class Directory:
    """A directory's names. `entries` is what the running machine sees, `kept` what certainly survives a power cut."""

    __slots__ = ("entries", "kept", "name", "parent", "serial")

    def __init__(self, serial: Serial, parent: "Directory | None", name: str) -> None:
        self.serial = serial
        self.parent = parent
        self.name = name
        self.entries: dict[str, Inode | Directory] = {}
        self.kept: dict[str, Inode | Directory] = {}


Slot: TypeAlias = tuple[Directory, str, "Inode | Directory | None"]
"""This name in this directory now means this (None: nothing)."""


def _apply(found: bytearray, operation: tuple[int, bytes | None]) -> None:
    position, octets = operation
    if octets is None:
        del found[position:]
        return
    if position > len(found):
        found.extend(bytes(position - len(found)))
    found[position : position + len(octets)] = octets


def _survivors(volatile: list[tuple[int, bytes | None]], rng: random.Random) -> Iterator[tuple[int, bytes | None]]:
    manner = rng.random()
    if manner < 0.15:
        return
    if manner < 0.30:
        yield from volatile
        return
    if manner < 0.70:  # in order, up to some byte of some operation
        last = rng.randrange(len(volatile))
        yield from volatile[:last]
        yield _torn(volatile[last], rng)
        return
    for operation in volatile:  # each on its own
        chance = rng.random()
        if chance < 0.5:
            yield operation
        elif chance < 0.75:
            yield _torn(operation, rng)


def _torn(operation: tuple[int, bytes | None], rng: random.Random) -> tuple[int, bytes | None]:
    position, octets = operation
    if octets is None:
        return operation
    cut = rng.randrange(len(octets) + 1)
    if rng.random() < 0.8:
        return position, octets[:cut]
    return position + cut, octets[cut:]


class SimFile:
    """A handle of one incarnation of the process; see `ottla.log.files.File` for what each method promises."""

    __slots__ = ("_closing", "_disk", "_inode", "_life", "_open", "pins")

    def __init__(self, disk: "Disk", inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._open = True
        self._closing = False
        self.pins = 0

    @property
    def path(self) -> str:
        return path_of(self._inode)

    def write(self, octets: bytes | bytearray | memoryview) -> None:
        disk, inode = self._disk, self._use()
        octets = bytes(octets)
        try:
            disk.meet("write", inode)
        except OSError:
            self._put(inode, octets[: len(octets) // 2])
            raise
        disk.burn(lambda part: self._put(inode, octets[: int(part * len(octets))]))
        room = disk.room(len(octets))
        self._put(inode, octets[:room])
        if room < len(octets):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)

    def _put(self, inode: Inode, octets: bytes) -> None:
        if octets:
            inode.volatile.append((len(inode.content), octets))
            inode.content += octets
            self._disk.used += len(octets)
            self._disk.dirty[inode.serial] = inode

    def read(self, position: int, length: int) -> bytes:
        inode = self._use()
        self._disk.meet_read(inode, position)
        return inode.read(range(position, position + length))

    def size(self) -> int:
        return len(self._use().content)

    def truncate(self, size: int) -> None:
        inode = self._use()
        self._disk.meet("truncate", inode)
        self._disk.burn()
        assert size <= len(inode.content), f"{self.path} would grow by a truncation"
        if size < len(inode.content):
            self._disk.used -= len(inode.content) - size
            del inode.content[size:]
            inode.unreadable = inode.unreadable[: max(size - inode.unreadable.start, 0)]
            inode.volatile.append((size, None))
            self._disk.dirty[inode.serial] = inode

    def sync(self) -> None:
        """Blocks, as the node's own calls do. A `Sync` effect of the node uses `begin_sync` and `end_sync`."""
        self._disk.burn()
        self.end_sync(self.begin_sync())

    def rewrite(self, position: int, durable: bool = True) -> None:
        inode = self._use()
        self._disk.meet("write", inode)
        self._disk.burn()
        inode.read(range(position, len(inode.content)))
        if position < len(inode.content):
            inode.volatile.append((position, bytes(inode.content[position:])))
            self._disk.dirty[inode.serial] = inode
        if durable:
            self.sync()

    def begin_sync(self) -> int:
        """Begin a sync; return the number of the first operation that it may not cover."""
        inode = self._use()
        return inode.settled + len(inode.volatile)

    def end_sync(self, up_to: int) -> None:
        try:
            self._disk.meet("sync", self._inode)
            if self._disk.draws_sync_failure():
                raise OSError(errno.EIO, SYNC_FAILED, self.path)
        except OSError:
            self._inode.forsake(up_to)
            raise
        self._disk.settle(self._inode, up_to)

    def pin(self) -> None:
        self._disk.meet("pin", self._use())
        self.pins += 1

    def unpin(self) -> None:
        assert self.pins > 0, f"{self.path} is unpinned more often than pinned"
        self.pins -= 1
        self._closed_after_pins()

    def close(self) -> None:
        if self._inode.handle is self:
            self._inode.handle = None
        self._closing = True
        self._closed_after_pins()

    def _closed_after_pins(self) -> None:
        if self._closing and not self.pins:
            self._open = False

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor")

    def is_in_place(self) -> bool:
        return self._disk.names(self._inode)

    def put_back(self) -> Generator[int]:
        inode, disk = self._use(), self._disk
        yield 0
        self._use()
        content = inode.read(range(len(inode.content)))
        self._inode = disk.put_back(self.path, content)
        self._inode.handle = self
        self.sync()
        disk.sync_directory(self.path.rpartition("/")[0])

    def _use(self) -> Inode:
        if self._life != self._disk.life or self._disk.fuse == 0:
            raise PowerCut("a file of a process that is gone")
        assert self._open, f"{self.path} is used after it was closed"
        return self._inode


class SimDirectory:
    """The names in a directory, wherever it is by now."""

    __slots__ = ("_directory", "_disk", "_life")

    def __init__(self, disk: "Disk", directory: Directory) -> None:
        self._disk = disk
        self._directory = directory
        self._life = disk.life

    def sync(self) -> None:
        if self._life != self._disk.life:
            raise PowerCut("a directory of a process that is gone")
        self._disk.sync_names(self._directory)

    def pin(self) -> None:
        self._disk.meet("pin", self._directory)

    def unpin(self) -> None:
        return None


class Disk:
    """The file system; outlives the node. `rng` decides what a fault leaves, never what a healthy call does."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.life = 1
        self.used = 0
        self.capacity: int | None = None
        self.sync_failures = 0.0
        self.trouble: Callable[[str, str], None] | None = None
        """Called with an operation (read, write, truncate, pin, sync, create, rename, unlink) and its path; raises
        OSError where that is to fail."""
        self.pins_max = 32
        self.lies = False
        """Set by tests as an injected bug: syncs succeed but do nothing. The checkers must notice."""
        self.fuse: int | None = None
        self.operations = 0
        self.dirty: dict[Serial, Inode] = {}
        self._serial = 0
        self._root = Directory(0, None, "")
        self._volatile: list[tuple[Slot, ...]] = []

    # ---- ottla.log.files.FileSystem --------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> SimFile:
        directory, name = self._place(path)
        inode = directory.entries.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self.meet("create", path)
            self.burn()
            if not self.room(1):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            inode = self._new_file(directory, name)
        if isinstance(inode, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if inode.handle is None:
            inode.handle = SimFile(self, inode)
        return inode.handle

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def names(self, inode: Inode) -> bool:
        """Whether the path of this file leads to it, and not to none or to another one."""
        return self._find(path_of(inode)) is inode

    def identity(self, path: str) -> str:
        return str(self._file(path).serial)

    def space(self, path: str) -> tuple[int, int]:
        return (-1, -1) if self.capacity is None else (self.capacity, max(0, self.capacity - self.used))

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def makedirs(self, path: str) -> None:
        self._alive()
        directory = self._root
        for name in _names(path):
            found = directory.entries.get(name)
            if found is None:
                self.meet("create", path)
                self.burn()
                if not self.room(1):
                    raise OSError(errno.ENOSPC, "No space left on device", path)
                found = Directory(self._next_serial(), directory, name)
                self._change((directory, name, found))
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            directory = found

    def rename(self, old: str, new: str) -> None:
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        node = source.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        displaced = target.entries.get(new_name)
        if isinstance(displaced, Directory) and (isinstance(node, Inode) or displaced.entries):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        self.meet("rename", old)
        self.burn()
        if isinstance(displaced, Inode) and displaced is not node:
            self._gone(displaced)
        self._change((source, old_name, None), (target, new_name, node))
        node.parent, node.name = target, new_name

    def unlink(self, path: str) -> None:
        inode = self._file(path)
        self.meet("unlink", path)
        self.burn()
        self._gone(inode)
        self._change((inode.parent, inode.name, None))

    def rmtree(self, path: str) -> None:
        directory = self._directory(path)
        for name in sorted(directory.entries):
            if isinstance(directory.entries[name], Directory):
                self.rmtree(f"{path}/{name}")
            else:
                self.unlink(f"{path}/{name}")
        self.burn()
        assert directory.parent is not None, "the root is not removed"
        self._change((directory.parent, directory.name, None))

    def sync_directory(self, path: str) -> None:
        self.sync_names(self._directory(path))

    def directory(self, path: str) -> SimDirectory:
        return SimDirectory(self, self._directory(path))

    def sync_names(self, directory: Directory) -> None:
        self.meet("sync", directory)
        self.burn()
        if self.draws_sync_failure():
            raise OSError(errno.EIO, SYNC_FAILED, path_of(directory))
        if not self.lies:
            self._keep([op for op in self._volatile if any(slot[0] is directory for slot in op)])

    def read_bytes(self, path: str) -> bytes:
        inode = self._file(path)
        self.meet_read(inode, 0)
        return inode.read(range(len(inode.content)))

    def write_atomically(self, path: str, data: bytes, durable: bool = True) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write(data)
        if durable:
            file.sync()
        file.close()
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.rpartition("/")[0] or "/")

    def put_back(self, path: str, content: bytes) -> Inode:
        """Create a file with this content, for a handle whose file was removed."""
        directory, name = self._place(path)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.meet("create", path)
        self.burn()
        if self.room(len(content)) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode = self._new_file(directory, name)
        if content:
            inode.content += content
            inode.volatile.append((0, content))
            self.used += len(content)
            self.dirty[inode.serial] = inode
        return inode

    # ---- what the world does to it ---------------------------------------------------------------------------------

    def burn(self, partly: Callable[[float], None] | None = None) -> None:
        """Burn one step of the fuse. `partly(part)` may do a part of the operation that the cut interrupts."""
        self._alive()
        self.operations += 1
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse == 0:
                if partly is not None:
                    partly(self.rng.random())
                raise PowerCut("the fuse burnt down")

    def meet(self, operation: str, where: "str | Inode | Directory") -> None:
        """Let `trouble` fail this operation."""
        if self.trouble is not None:
            self.trouble(operation, where if isinstance(where, str) else path_of(where))

    def meet_read(self, inode: Inode, position: int) -> None:
        """Let `trouble` fail this read."""
        try:
            self.meet("read", inode)
        except OSError as error:
            raise ReadError(error, path_of(inode), position) from error

    def room(self, wanted: int) -> int:
        """Return how many of these bytes still fit."""
        return wanted if self.capacity is None else max(0, min(wanted, self.capacity - self.used))

    def draws_sync_failure(self) -> bool:
        return self.sync_failures > 0 and self.rng.random() < self.sync_failures

    @property
    def ails(self) -> bool:
        """Whether some calls fail now that would not fail on a healthy disk."""
        return self.capacity is not None or self.sync_failures > 0

    def settle(self, inode: Inode, up_to: int) -> None:
        if not self.lies:
            inode.settle(up_to)
            if not inode.volatile:
                self.dirty.pop(inode.serial, None)

    def write_back(self) -> None:
        """Write some dirty files and the oldest renames to the platter, as a kernel does in the background."""
        if self.lies:
            return
        for inode in list(self.dirty.values()):
            if self.rng.random() < 0.5:
                self.settle(inode, inode.settled + self.rng.randrange(len(inode.volatile) + 1))
        if self._volatile:
            self._keep(self._volatile[: self.rng.randrange(len(self._volatile) + 1)])

    def kill(self) -> None:
        """Handle the death of the process: its handles become invalid, its writes stay."""
        self.life += 1
        self.fuse = None
        for inode in self._inodes(self._root):
            inode.handle = None

    def crash(self) -> None:
        """Cut the power: decide for every volatile operation whether it is kept."""
        self.life += 1
        self.fuse = None
        self._survive_names()
        self.used = 0
        self._settle_tree(self._root)
        self.dirty.clear()

    def clone(self, rng: random.Random) -> "Disk":
        """Return a copy of the disk as a process that opens the same files now would find it, with its own
        incarnation."""
        other = Disk(rng)
        other._serial = self._serial  # no file has the identity of the one that it is a copy of
        other._copy_tree(self._root, other._root)
        return other

    def files(self) -> dict[str, int]:
        """Path and size of every file, by path: for traces."""
        return dict(sorted((path_of(inode), len(inode.content)) for inode in self._inodes(self._root)))

    # ---- changes by other processes --------------------------------------------------------------------------------

    def settle_everything(self) -> None:
        """Write everything that the running machine saw to the platter."""
        self._keep(self._volatile)
        for inode in list(self.dirty.values()):
            self.settle(inode, inode.settled + len(inode.volatile))

    def content(self, path: str) -> bytes:
        """Return a file's content, without the process and its faults."""
        return bytes(self._file(path).content)

    def put(self, path: str, content: bytes | None) -> None:
        """Set this file's content durably, with the directories it needs; None removes the file."""
        directory = self._root
        *names, name = _names(path)
        for each in names:
            found = directory.entries.get(each)
            if found is None:
                found = directory.entries[each] = Directory(self._next_serial(), directory, each)
                directory.kept[each] = found
            assert isinstance(found, Directory), path
            directory = found
        old = directory.entries.pop(name, None)
        directory.kept.pop(name, None)
        if isinstance(old, Inode):
            self._gone(old)
        if content is not None:
            inode = Inode(self._next_serial(), directory, name)
            inode.content, inode.kept = bytearray(content), bytearray(content)
            directory.entries[name] = directory.kept[name] = inode
            self.used += len(content)

    def overwrite(self, path: str, content: bytes, *, keeps_identity: bool = False) -> None:
        """Set this file's content durably, where the process may have it open: the file stays, and its time changes,
        unless it `keeps_identity`. All of its writes have been settled."""
        inode = self._file(path)
        assert not inode.volatile, f"{path} has unsettled writes"
        self.used += len(content) - len(inode.content)
        inode.content, inode.kept = bytearray(content), bytearray(content)
        if not keeps_identity:
            inode.serial = self._next_serial()

    def make_unreadable(self, path: str, positions: range) -> None:
        """Let reads of these positions of a file fail with EIO from now on, also for later processes: until they are
        cut off, or the file is replaced, or `repair`."""
        self._file(path).unreadable = positions

    def repair(self) -> None:
        """Every file can be read again."""
        for inode in self._inodes(self._root):
            inode.unreadable = range(0)

    def drop_empty_directories(self, directory: Directory | None = None) -> None:
        """Remove directories without any file below them."""
        directory = self._root if directory is None else directory
        for name, node in list(directory.entries.items()):
            if isinstance(node, Directory):
                self.drop_empty_directories(node)
                if not node.entries:
                    del directory.entries[name]
                    directory.kept.pop(name, None)

    # ---- within ----------------------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.fuse == 0:
            raise PowerCut("the fuse burnt down before")

    def _next_serial(self) -> Serial:
        self._serial += 1
        return self._serial

    def _new_file(self, directory: Directory, name: str) -> Inode:
        inode = Inode(self._next_serial(), directory, name)
        self._change((directory, name, inode))
        return inode

    def _change(self, *slots: Slot) -> None:
        for directory, name, node in slots:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._volatile.append(slots)

    def _keep(self, chosen: Sequence[tuple[Slot, ...]]) -> None:
        """Make these steps durable, with every earlier step that they depend on."""
        wanted = {id(op) for op in chosen}
        names: set[tuple[Serial, str]] = set()
        taken: list[tuple[Slot, ...]] = []
        left: list[tuple[Slot, ...]] = []
        for op in reversed(self._volatile):
            if id(op) in wanted or any((slot[0].serial, slot[1]) in names for slot in op):
                names.update((slot[0].serial, slot[1]) for slot in op)
                taken.append(op)
            else:
                left.append(op)
        self._volatile = left[::-1]
        for op in reversed(taken):
            for directory, name, node in op:
                if node is None:
                    directory.kept.pop(name, None)
                else:
                    directory.kept[name] = node

    def _survive_names(self) -> None:
        manner = self.rng.random()
        if manner < 0.4:  # a journal: everything up to some moment
            self._keep(self._volatile[: self.rng.randrange(len(self._volatile) + 1)])
        else:
            chance = self.rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
            self._keep([op for op in self._volatile if self.rng.random() < chance])
        self._volatile = []

    def _settle_tree(self, directory: Directory) -> None:
        directory.entries = dict(directory.kept)
        for name in sorted(directory.entries):
            node = directory.entries[name]
            node.parent, node.name = directory, name
            if isinstance(node, Directory):
                self._settle_tree(node)
            else:
                node.survive(self.rng)
                self.used += len(node.content)

    def _copy_tree(self, source: Directory, target: Directory) -> None:
        for name in sorted(source.entries):
            node = source.entries[name]
            if isinstance(node, Directory):
                directory = Directory(self._next_serial(), target, name)
                target.entries[name] = target.kept[name] = directory
                self._copy_tree(node, directory)
            else:
                inode = Inode(self._next_serial(), target, name)
                inode.content, inode.kept = bytearray(node.content), bytearray(node.content)
                target.entries[name] = target.kept[name] = inode
                self.used += len(inode.content)

    def _inodes(self, directory: Directory) -> Iterator[Inode]:
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, Directory):
                yield from self._inodes(node)
            else:
                yield node

    def _gone(self, inode: Inode) -> None:
        self.used -= len(inode.content)
        inode.handle = None

    def _find(self, path: str) -> Inode | Directory | None:
        self._alive()
        node: Inode | Directory = self._root
        for name in _names(path):
            found = node.entries.get(name) if isinstance(node, Directory) else None
            if found is None:
                return None
            node = found
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def _file(self, path: str) -> Inode:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def path_of(node: Inode | Directory) -> str:
    names: list[str] = []
    at: Inode | Directory | None = node
    while at is not None and at.parent is not None:
        names.append(at.name)
        at = at.parent
    return "/" + "/".join(reversed(names))
