"""Detects which incarnations of which nodes are alive, across machines: each has an ephemeral znode of its session.

    ROOT/ids/N    {"incarnation": ..., "host": ..., "port": ..., "directory": ...}

A thread rewrites this node's znode repeatedly. Each write needs a majority of the servers. So an answer proves to all
of them that the session was alive when the write began. The thread then reads what was committed until that time. The
node trusts its knowledge for a part of the session's time-out, counted from the beginning of the write by its own clock
(membership.py). It stops before the servers let another node replace it.

If a node's process ends, its port refuses connections (port_probe.py). The other nodes notice that before its session
expires.

A start may find a znode of this node's id. If the process of that znode had locked the data directory that this process
has locked now, that process is gone, and the start replaces the znode. Any other process may be alive, perhaps in a
copy of the directory, and two processes must not be one node. So the start waits. If the process is gone, it writes no
more and its session expires. If it is alive, it rewrites its znode, and the start is refused. While it serves, a node
replaces the znode of its own expired session (ZOOKEEPER-2985).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ottla.machine import Millis
from ottla.metadata.store import CommitUnknownError, StoreError
from ottla.metadata.zookeeper.session import ConcurrentWriteError, Create, Remove, Set, Znode
from ottla.metadata.zookeeper.store import ZooKeeperStore
from ottla.server.clocks import moment
from ottla.server.listeners import ServeRefusedError
from ottla.server.port_probe import Doors, Life

RENEWALS: Final = 9
"""Number of writes of the znode within a session time-out."""
SESSION_MAX_S: Final = 60.0
"""Seconds that a start waits for the end of a session that is not renewed. Servers grant 20 ticks at most: usually 40
s."""
ALIVE_AFTER: Final = 2
"""Renewals after which a process counts as alive. The first may have been on its way when the process died."""
LOOK_S: Final = 0.1

log = logging.getLogger("ottla.cluster")


class ZooKeeperPresence:
    """Keeps this node's znode from construction to `leave`, and reads those of the others. Raises ServeRefusedError,
    StoreError. Belongs to the running event loop."""

    def __init__(self, store: ZooKeeperStore, life: Life) -> None:
        self._store = store
        self._session = store.session
        self._life = life
        self._ids = f"{self._session.ensemble.root}/ids"
        self._path = f"{self._ids}/{life.node_id}"
        self._lives: frozenset[Life] = frozenset()
        self._looked_at: frozenset[Life] = frozenset()
        self._doors = Doors(self._session.timeout_s / 3, lambda: self._tell())
        self._tell: Callable[[], None] = _nobody
        """Reports an event, on any thread."""
        self._wake = threading.Event()
        self._left = False
        self._version: int | None = None
        """The version of this node's znode; None if unknown."""
        self._displaced = False
        self.generation = 0
        self.renewed_at: Millis = 0
        self._session.make([self._ids])
        self._enter()
        self._session.listen(self._wake.set)
        self._thread = threading.Thread(target=self._go_on, name="ottla-presence", daemon=True)
        self._thread.start()

    def look(self) -> dict[int, str]:
        """The incarnations of the live nodes by id, including this one."""
        lives, own = self._lives, self._life
        if lives is not self._looked_at:
            self._looked_at = lives
            self._doors.watch(life for life in lives if life.node_id != own.node_id)
        gone = self._doors.gone
        return {life.node_id: life.incarnation for life in lives if life not in gone} | {own.node_id: own.incarnation}

    def listen(self, heard: Callable[[], None]) -> int:
        """Call `heard` on the running loop when a node commits, starts, or ends, and when this node's znode is renewed:
        an expired lease becomes valid again at once."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(heard)

        self._tell = tell
        self._store.listen(tell)
        return 1

    def leave(self) -> None:
        """Remove this node's znode, so that the other nodes see that it is gone. The store closes the session."""
        self._left = True
        self._wake.set()
        self._doors.close()
        self._thread.join()

    # ---- the znode -------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Create the znode. Raises ServeRefusedError if another process is this node."""
        until = time.monotonic() + SESSION_MAX_S
        seen: Znode | None = None
        renewals = 0
        while True:
            (found,) = self._session.read([self._path])
            other = None if found is None else _life(self._life.node_id, found)
            if found is not None and self._is_own(found):
                return
            if other is None or (self._life.directory and other.directory == self._life.directory):
                self._place(found)
                continue
            assert found is not None
            if seen is None or found.session != seen.session:
                log.info("node %d waits for the session of another process, at %s:%d", *other[:1], *other[2:4])
                renewals = 0
            elif found.version != seen.version:
                renewals += 1
            if renewals >= ALIVE_AFTER or time.monotonic() > until:
                raise ServeRefusedError(
                    f"Node {other.node_id} of this cluster runs already, at {other.host}:{other.port}. Stop it, or "
                    "give this one another --node-id."
                )
            seen = found
            time.sleep(LOOK_S)

    def _is_own(self, znode: Znode) -> bool:
        return znode.session == self._session.id and znode.content == self._life.encode()

    def _place(self, found: Znode | None) -> None:
        """Create this node's znode, or replace the one found. Raises StoreError."""
        create = Create(self._path, self._life.encode(), ephemeral=True)
        try:
            self._session.carry_out([create] if found is None else [Remove(self._path, found.version), create])
        except (ConcurrentWriteError, CommitUnknownError):
            return  # the next poll reads the current state

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        while not self._left:
            try:
                self._renew()
            except (StoreError, CommitUnknownError) as failed:
                log.debug("this node's place in ZooKeeper could not be renewed: %s", failed)
            except Exception:
                log.exception("this node's place in ZooKeeper could not be renewed")
            self._wake.wait(self._session.timeout_s / RENEWALS)
            self._wake.clear()

    def _renew(self) -> None:
        """Renew this node's znode, and read those of the others. Raises StoreError, CommitUnknownError."""
        begun = moment()
        version, self._version = self._version, None
        if version is not None:
            with suppress(ConcurrentWriteError):
                self._session.carry_out([Set(self._path, self._life.encode(), version)])
                self._version = version + 1
        names = [name for name in self._session.children(self._ids, self._called) if name.isdigit()]
        own, *others = self._session.read([self._path, *(f"{self._ids}/{name}" for name in names)])
        if own is None or not self._is_own(own):
            self._replace(own)
            return
        if own.version != self._version:
            self._version = own.version  # it is ours, and this time it was not written
            self._wake.set()
            return
        found = (_life(int(name), znode) for name, znode in zip(names, others, strict=True) if znode is not None)
        lives = frozenset(life for life in found if life is not None)
        if lives != self._lives:
            self._lives = lives
        self.generation = self._store.generation
        self.renewed_at = begun
        self._displaced = False
        self._tell()

    def _replace(self, own: Znode | None) -> None:
        """Replace a znode that is not of this session."""
        other = None if own is None else _life(self._life.node_id, own)
        if other is None or other == self._life:
            self._place(own)
            self._wake.set()
        elif not self._displaced:
            self._displaced = True
            log.error(
                (
                    "another process has taken the place of node %d, at %s:%d: this one leads nothing any more, and "
                    "refuses all clients once that process has registered. Stop one of the two"
                ),
                other.node_id,
                other.host,
                other.port,
            )

    def _called(self, event: Any) -> None:
        """Wake the thread: a node started or ended, or the connection that reports such events was lost."""
        self._wake.set()


def _nobody() -> None:
    """Do nothing: the callback while there is no listener."""


def _life(node_id: int, znode: Znode) -> Life | None:
    """The process that wrote this znode; None if the content does not name one."""
    try:
        return Life.decode(node_id, znode.content)
    except (ValueError, KeyError, TypeError):
        return None
