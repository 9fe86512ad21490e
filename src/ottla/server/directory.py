"""Locks a data directory for a process against every other broker, and records the boot that last used it.

It takes three locks, because no two of them exclude the same programs:
- A record lock on `.lock` excludes a Kafka broker, as Java's FileChannel.lock takes one. The lock belongs to the open
  file and not to the process (F_OFD_SETLK). A lock of the process would be lost when any other descriptor of the file
  is closed.
- flock on `.lock` excludes Ottla before 1.0.
- flock on the directory itself excludes an Ottla that finds no `.lock` because someone removed it.

A network file system may keep the locks of each machine apart. So each process writes a name of its own to a file, and
a node that finds another name there ends (`taken`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import sys
from typing import Final

from ottla import private
from ottla.server.listeners import ServeRefusedError, SettingsRefusedError

LOCK_FILE: Final = ".lock"
BOOT_FILE: Final = ".boot-id"
USER_FILE: Final = ".in-use-by"

_HELD_BY_OTHERS: Final = (errno.EAGAIN, errno.EACCES)
_FLOCK: Final = "@hhqqi4x"
"""C's struct flock: type, whence, start, length (0: all), process."""
_REMEDIES: Final = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Mount it writable",
    errno.EIO: "Look at the disk",
}


log = logging.getLogger("ottla.server")


class DirectoryLock:
    """The locks on one data directory, held from construction to `release`. Raises ServeRefusedError."""

    def __init__(self, directory: str) -> None:
        """Creates the directory if it does not exist."""
        self._user_file = os.path.join(directory, USER_FILE)
        self._name: bytes | None = None
        self._descriptors: list[int] = []
        try:
            open_to_others = private.make_directory(directory)
            if open_to_others is not None:
                log.warning("%s", open_to_others)
            self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
            self._open(os.path.join(directory, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except (FileExistsError, NotADirectoryError) as error:
            self.release()
            raise SettingsRefusedError(
                f"The data directory {directory} is not a directory: a file is in its place or above it. Choose "
                "another one with --data."
            ) from error
        except OSError as error:
            self.release()
            raise ServeRefusedError(
                f"The data directory {directory} is not writable: {error.strerror or error}. "
                f"{_REMEDIES.get(error.errno or 0, 'Change its owner')} or choose another one with --data."
            ) from error
        whole, file = self._descriptors
        try:
            _flock(whole)
            _flock(file)
            _record_lock(file, fcntl.F_WRLCK)
        except OSError as error:
            self.release()
            if error.errno in _HELD_BY_OTHERS:
                raise ServeRefusedError(
                    f"The data directory {directory} is locked by another node. Stop that node or choose another "
                    "directory."
                ) from error
            raise ServeRefusedError(
                f"The data directory {directory} can't be locked: {error.strerror or error}. Choose one on a file "
                "system that has locks."
            ) from error

    def claim(self) -> None:
        """Let other processes that use the directory find out that this one does. Does nothing without space."""
        name = os.urandom(8).hex()
        with contextlib.suppress(OSError):
            replace_file(self._user_file, name)
            self._name = name.encode()

    def taken(self) -> str | None:
        """The message if another process has begun to use the directory since `claim`; None if none has."""
        found = _read(self._user_file)
        if self._name is None or found in (b"", self._name):
            return None
        return (
            f"another process uses the data directory {os.path.dirname(self._user_file)}, which has no lock that both "
            "respect. Stop that process, and start only one node there."
        )

    def release(self) -> None:
        """Release the directory; a second call does nothing."""
        for descriptor in self._descriptors:
            # By name, not only by closing: a process that was forked meanwhile has these descriptors too.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                _record_lock(descriptor, fcntl.F_UNLCK)
            os.close(descriptor)
        self._descriptors = []

    def _open(self, path: str, flags: int) -> None:
        self._descriptors.append(os.open(path, flags | os.O_CLOEXEC, 0o600))


def _flock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            raise
        # A network file system may have record locks only. Those are acquired too.


def _record_lock(descriptor: int, kind: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def same_boot(directory: str) -> bool:
    """Whether the machine has not been restarted since a node last was ready in this directory."""
    boot_id = _read("/proc/sys/kernel/random/boot_id")
    return bool(boot_id) and _read(os.path.join(directory, BOOT_FILE)) == boot_id


def note_boot(directory: str) -> None:
    """Record this boot, unless it is recorded. Raises OSError."""
    if same_boot(directory):
        return  # after a kill or a full disk in the middle of writing, the next start would assume a power cut
    with open(os.path.join(directory, BOOT_FILE), "wb") as file:
        file.write(_read("/proc/sys/kernel/random/boot_id"))


def identity(directory: str) -> str:
    """A name for this directory that a copy of it does not share, on this machine or another. Raises OSError."""
    status = os.stat(directory)
    boot_id = _read("/proc/sys/kernel/random/boot_id").decode()
    return f"{boot_id}:{status.st_dev}:{status.st_ino}" if boot_id else ""


def replace_file(path: str, text: str) -> None:
    """Write a small file atomically: a kill leaves the whole file or none of it. Raises OSError."""
    private.write(f"{path}.tmp", text)
    os.replace(f"{path}.tmp", path)


def unusable(directory: str, error: OSError) -> str:
    """The message for an operator when a start failed with this error: the file, the reason, and the remedy."""
    where = f"{error.filename}: " if isinstance(error.filename, str) and error.filename != directory else ""
    access = {
        errno.EACCES: "Give the file to the user of the node",
        errno.EPERM: "Give the file to the user of the node",
    }
    remedy = (_REMEDIES | access).get(error.errno or 0, "Put that right")
    reason = error.strerror or str(error)
    return f"The data directory {directory} can't be used: {where}{reason}. {remedy} or choose another with --data."


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read().strip()
    return b""
