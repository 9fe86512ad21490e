"""Detects which incarnations of which nodes are alive on one machine: each process locks a file for its node.

    DIR/N    <incarnation> <boot id> <milliseconds since boot at the last renewal>

The system releases a dead process's lock at once, so the next poll notices a killed node. A stopped process keeps its
lock. Therefore the file also holds a lease, which a node renews while its event loop runs.

Both are in this file and not in the metadata store. A lease has no meaning after a reboot, so it needs no fsync, and a
row that changes every second would wake every node.

Locks are those of open files (F_OFD_SETLK), and are read without being acquired (F_OFD_GETLK).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable
from typing import Final

from ottla import private
from ottla.machine import Millis
from ottla.server.clocks import moment
from ottla.server.inotify import FileNews
from ottla.server.listeners import ServeRefusedError

RENEW_MS: Final = 500
AFTER_NEWS: Final = 10
"""Number of quick polls after an event: the events of a dying process arrive before its lock is released."""
_FLOCK: Final = "@hhqqi4x"
"""C's struct flock: type, whence, start, length (0: all), process."""
_HELD_BY_OTHERS: Final = (errno.EAGAIN, errno.EACCES)
_SETTLED_NS: Final = 1_000_000_000
"""A directory that changed within this time may change again without a new modification time."""

log = logging.getLogger("ottla.cluster")


class LockedPresence:
    """Keeps this node's file locked from construction to `leave`, and polls the files of the other nodes. `mark`: the
    file beside the store that every commit writes. Raises ServeRefusedError."""

    def __init__(self, directory: str, node_id: int, incarnation: str, lease_ms: int, mark: str) -> None:
        self._directory = directory
        self._mark = mark
        self._news: FileNews | None = None
        self._own = str(node_id)
        self._incarnation = incarnation
        self._lease_ms = lease_ms
        self._boot = _boot_id()
        self._others: dict[str, int] = {}
        self._listed_ns = 0
        """The directory's time of change when its names were read."""
        self._known: dict[int, str] = {}
        self.renewed_at: Millis = 0
        self.generation = 0
        private.make_directory(directory, is_ours=True)
        self._file = private.opener(f"{directory}/{node_id}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK))
        except OSError as error:
            os.close(self._file)
            if error.errno not in _HELD_BY_OTHERS:
                raise
            raise ServeRefusedError(
                f"Node {node_id} of this cluster runs already. Stop it, or give this one another --node-id."
            ) from error
        self._renew()

    def look(self) -> dict[int, str]:
        """The incarnations of the live nodes by id, including this one. Also renews this node's lease."""
        if moment() - self.renewed_at >= RENEW_MS:
            self._renew()
        self._find_others()
        present = {int(self._own): self._incarnation}
        for name, file in self._others.items():
            incarnation = self._life_of(int(name), file)
            if incarnation is not None:
                present[int(name)] = incarnation
        self._known = present
        return present

    def listen(self, heard: Callable[[], None]) -> int:
        """Call `heard` on the running loop when a node commits, starts, or ends, which closes its file. Returns 0 if
        the system cannot report that."""
        try:
            self._news = FileNews(heard, written=self._mark, let_go=self._directory)
        except OSError as error:
            log.info("the system does not tell of news, so the node looks for them more often: %s", error)
        return 0 if self._news is None else AFTER_NEWS

    def _find_others(self) -> None:
        """Open the files that are new; names are read again only once the directory has changed."""
        changed_ns = os.stat(self._directory).st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        for name in os.listdir(self._directory):
            if name not in self._others and name.isdigit() and name != self._own:
                self._others[name] = os.open(f"{self._directory}/{name}", os.O_RDWR | os.O_CLOEXEC)
        if time.time_ns() - changed_ns > _SETTLED_NS:
            self._listed_ns = changed_ns

    def leave(self) -> None:
        """Stop, so that the other nodes see that this one is gone."""
        if self._news is not None:
            self._news.close()
        os.close(self._file)
        for file in self._others.values():
            os.close(file)
        self._others.clear()

    def _renew(self) -> None:
        self.renewed_at = moment()
        line = f"{self._incarnation} {self._boot} {_since_boot():020d}\n"
        os.pwrite(self._file, line.encode(), 0)

    def _life_of(self, node_id: int, file: int) -> str | None:
        if struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK)))[0] == fcntl.F_UNLCK:
            return None
        words = os.pread(file, 256, 0).decode(errors="replace").split()
        if len(words) != 3 or not words[2].isdigit():
            return self._known.get(node_id)  # it was written just now
        incarnation, boot, renewed = words
        if boot != self._boot or _since_boot() - int(renewed) > self._lease_ms:
            return None
        return incarnation


def lock_all(directory: str) -> list[int]:
    """Lock the files of all nodes, so that none of them starts, and return their descriptors. Raises ServeRefusedError
    if a node runs, and OSError."""
    held: list[int] = []
    for name in sorted(os.listdir(directory), key=int):
        held.append(os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC))
        try:
            fcntl.fcntl(held[-1], fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK))
        except OSError as error:
            for file in held:
                os.close(file)
            if error.errno not in _HELD_BY_OTHERS:
                raise
            raise ServeRefusedError(f"Node {name} of this cluster runs. Stop it first.") from error
    return held


def _lock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _since_boot() -> int:
    """Milliseconds since boot, including the time that the machine slept."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
