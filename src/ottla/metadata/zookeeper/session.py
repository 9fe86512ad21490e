"""Keeps a session with ZooKeeper: reads znodes, carries out transactions, reports unknown outcomes.

Its calls block, from any thread except kazoo's own. Its callbacks run on a thread of kazoo's and must not block.
- ZooKeeper carries out the requests of one session in order, including those that wait for a new connection. So a
  client can read the outcome of a transaction whose answer was lost. It must write first, because the server that the
  session moved to may be behind. `_barrier` is that write, made before the first call after every loss of the
  connection.
- kazoo notices that a server has stopped answering only while no new request is sent, and not before two thirds of the
  session time-out have passed. So a caller that waited for a third of it drops the connection, and continues with
  another server.
- A server refuses a client that has seen newer transactions than the server has. So while the connection is lost,
  another client asks periodically. If an up-to-date server has older transactions than this session has seen,
  ZooKeeper's data was restored from a backup. `older` then says so, and this session ends with the process.
- A new session follows an expired one. The user of this module creates its ephemeral znodes and watches again.

Sources: kazoo's KazooClient and ConnectionHandler; ZooKeeper's "Consistency Guarantees".
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kazoo.client import KazooClient  # pyright: ignore[reportMissingImports]
from kazoo.exceptions import (  # pyright: ignore[reportMissingImports]
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler  # pyright: ignore[reportMissingImports]
from kazoo.protocol.states import KazooState  # pyright: ignore[reportMissingImports]
from kazoo.security import CREATOR_ALL_ACL  # pyright: ignore[reportMissingImports]

from ottla.metadata.store import CommitUnknownError, StoreError
from ottla.metadata.zookeeper.ensemble import Ensemble
from ottla.metadata.zookeeper.protection import OPEN, Protection

START_S: Final = 15.0
PROBE_S: Final = 1.0
"""Seconds between attempts of another client while the connection is lost."""
"""Seconds that a start waits for a server that answers."""
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
READS_AT_ONCE: Final = 100
"""Maximum number of concurrent reads: each has a byte in a pipe of kazoo's until it is sent."""
ANY_VERSION: Final = -1

_RACED = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
_LOST = (ConnectionLoss, SessionExpiredError)

_T = TypeVar("_T")


class ConcurrentWriteError(Exception):
    """A znode of a transaction was not as expected, so nothing of it was done."""


class Znode(NamedTuple):
    """The content of a znode. `version` counts its writes from 0; `session` is its owner, 0 if it has none;
    `written_ms` is the time of the last write by ZooKeeper's clock."""

    content: bytes
    version: int
    session: int
    written_ms: int


class Create(NamedTuple):
    path: str
    content: bytes
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    content: bytes
    version: int = ANY_VERSION


class Remove(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    path: str
    version: int


Operation: TypeAlias = Create | Set | Remove | Check


class Session:
    """See the module's docstring. `timeout_ms`: the requested session time-out. `protection`: TLS, a login, and access
    to the znodes.

    `notes` is called with a sentence about each lost connection or session, on any thread.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        timeout_ms: int,
        notes: Callable[[str], None] = lambda _: None,
        protection: Protection = OPEN,
    ) -> None:
        self.ensemble = ensemble
        self._protection = protection
        self._barrier_path = f"{ensemble.root}/barrier"
        self._notes = notes
        self._asked_s = timeout_ms / 1000
        self._sockets = _Sockets(self._asked_s / 3)
        quiet = logging.getLogger("ottla.kazoo")
        quiet.setLevel(logging.ERROR)  # the notes have the sentence
        self._client: Any = KazooClient(
            ",".join(ensemble.servers),
            timeout=self._asked_s,
            handler=self._sockets,
            connection_retry=RECONNECT,
            logger=quiet,
            **protection.options,
        )
        self._client.add_listener(self._heard)
        self.timeout_s = self._asked_s
        """Seconds without a sign of this process after which the servers end its session."""
        self._learn_timeout()
        self._listeners: list[Callable[[], None]] = []
        self._lost_at: float | None = None
        self._back = threading.Event()
        self.older: str | None = None
        """The reason why ZooKeeper is older than what this session has seen; None while nothing shows that."""
        self._losses = 0
        self._barriers = -1
        """Number of losses of the connection before the last barrier; -1 before the first."""
        self._one_barrier = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Connect. Raises StoreError if no server answers within START_S."""
        self._client.start_async().wait(START_S)
        if not self._client.connected:
            self.close()
            raise StoreError(f"{self._sockets.why_not(self.ensemble)} (waited {START_S:.0f} s)")
        if self._protection.private:
            self._close_to_others()

    def _close_to_others(self) -> None:
        """Close the znodes of earlier sessions to other logins. The root is closed last, so a closed root means that
        all of them are. Raises StoreError."""
        try:
            self._close_below(self.ensemble.root)
        except NoNodeError:
            return  # there is no store yet
        except (KazooException, _SilentError) as error:
            self.close()
            raise StoreError(f"{self._place} can't be closed to other logins: {_sentence(error)}") from error

    def _close_below(self, path: str) -> None:
        acls, _ = self._answer(self._client.get_acls_async(path))
        if not any(each.id.scheme == "world" for each in acls):
            return
        for name in self._answer(self._client.get_children_async(path)):
            with contextlib.suppress(NoNodeError):
                self._close_below(f"{path}/{name}")
        self._answer(self._client.set_acls_async(path, CREATOR_ALL_ACL))

    def close(self) -> None:
        """End the session, which removes its ephemeral znodes. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._back.set()
            with contextlib.suppress(Exception):  # a server that does not answer: the session will expire
                self._client.stop()
                self._client.close()

    # ---- the connection --------------------------------------------------------------------------------------------

    @property
    def id(self) -> int | None:
        """The number of the session; None while there is no connection."""
        identity = self._client.client_id
        return None if identity is None else int(identity[0])

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this whenever a connection was lost or made."""
        self._listeners.append(changed)

    def drop(self) -> None:
        """Close the connection, because its server does not answer. kazoo connects to another server."""
        self._sockets.drop()

    def _learn_timeout(self) -> None:
        """Read the time-out that the servers grant. kazoo passes it only to its own loop: two thirds of it, in
        milliseconds."""
        connection = self._client._connection
        connect = connection._connect

        def connected(*args: Any) -> Any:
            times = connect(*args)
            self.timeout_s = times[0] * 3 / 2000
            return times

        connection._connect = connected

    def _heard(self, state: str) -> None:
        if self._closed:
            return
        now = time.monotonic()
        if state == KazooState.CONNECTED:
            if self._lost_at is not None:
                self._notes(f"connected to ZooKeeper again after {now - self._lost_at:.1f} s")
            self._lost_at = None
            self._back.set()
        else:
            self._back.clear()
            self._losses += 1
            if self._lost_at is None:
                self._lost_at = now
                self._notes("the connection to ZooKeeper was lost; others are tried")
                threading.Thread(target=self._probe, args=(now,), name="ottla-zookeeper-probe", daemon=True).start()
            if state == KazooState.LOST:
                self._notes("the session with ZooKeeper has expired; there will be another one")
        for changed in self._listeners:
            changed()

    def _probe(self, lost_at: float) -> None:
        """Until the connection is back, check whether the servers are older than what this session has seen."""
        while not self._back.wait(PROBE_S) and not self._closed and self._lost_at == lost_at:
            seen, found = self._client.last_zxid, self._newest_of_servers()
            if found is not None and found < seen:
                self.older = f"{self._place} is older than what this node has seen of it: its data was restored"
                self._notes(self.older)
                return

    def _newest_of_servers(self) -> int | None:
        """The newest transaction, as a new client sees it; None if no server serves that client now."""
        client: Any = KazooClient(
            ",".join(self.ensemble.servers),
            timeout=self._asked_s,
            handler=_Sockets(self._asked_s / 3),
            logger=logging.getLogger("ottla.kazoo"),
            **self._protection.options,
        )
        try:
            client.start_async().wait(self._asked_s)
            if not client.connected:
                return None
            client.sync("/")  # what the majority has is known here, the beginning of this session too
            client.exists("/")
            return int(client.last_zxid)
        except KazooException:
            return None
        finally:
            client.stop()
            client.close()

    # ---- reads -----------------------------------------------------------------------------------------------------

    def read(self, paths: Sequence[str], watch: Callable[[Any], None] | None = None) -> list[Znode | None]:
        """The content of these znodes, read in this order; None for a znode that does not exist. `watch` is called
        once, when the first one is written or the connection is lost. Raises StoreError."""
        return self._tried("read", lambda: self._read(paths, watch))

    def _read(self, paths: Sequence[str], watch: Callable[[Any], None] | None) -> list[Znode | None]:
        found: list[Znode | None] = []
        for begin in range(0, len(paths), READS_AT_ONCE):
            asked = [
                self._client.get_async(path, watch if begin == place == 0 else None)
                for place, path in enumerate(paths[begin : begin + READS_AT_ONCE])
            ]
            found += [self._znode(each) for each in asked]
        return found

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """The names of the child znodes, in order; none if there is no such znode. Raises StoreError."""
        try:
            return sorted(self._tried("read", lambda: self._answer(self._client.get_children_async(path, watch))))
        except NoNodeError:
            return []

    def clock_ms(self) -> int:
        """ZooKeeper's own clock, in milliseconds since 1970, as the last connection was made. Raises StoreError."""
        (barrier,) = self.read([self._barrier_path])
        return 0 if barrier is None else barrier.written_ms

    def _znode(self, asked: Any) -> Znode | None:
        try:
            content, stat = self._answer(asked)
        except NoNodeError:
            return None
        return Znode(content, stat.version, stat.ephemeralOwner, stat.mtime)

    # ---- writes ----------------------------------------------------------------------------------------------------

    def make(self, paths: Iterable[str]) -> None:
        """Create these znodes and their parents, empty, unless they exist. Raises StoreError."""
        for path in paths:
            with contextlib.suppress(NodeExistsError):
                self._tried("written", lambda path=path: self._answer(self._client.create_async(path, makepath=True)))

    def carry_out(self, operations: Sequence[Operation]) -> None:
        """Do all of these or none. Raises ConcurrentWriteError if a znode is not as expected, CommitUnknownError if the
        outcome is unknown, and StoreError."""
        self._tried("written", lambda: None)
        transaction = self._client.transaction()
        for each in operations:
            match each:
                case Create(path, content, ephemeral):
                    transaction.create(path, content, ephemeral=ephemeral)
                case Set(path, content, version):
                    transaction.set_data(path, content, version)
                case Remove(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        self._connected()
        try:
            results = self._answer(transaction.commit_async())
        except (KazooException, _SilentError) as error:
            raise CommitUnknownError(f"{self._place}: {_sentence(error)}") from error
        failures = [each for each in results if isinstance(each, Exception)]
        if any(isinstance(each, _RACED) for each in failures):
            raise ConcurrentWriteError
        if failures:
            raise StoreError(f"{self._place} can't be written: {_sentence(failures[0])}")

    def _barrier(self) -> None:
        """After a loss of the connection, make sure that reads include everything from before it."""
        if self._barriers == self._losses:
            return
        with self._one_barrier:
            losses = self._losses
            self._connected()
            try:
                self._answer(self._client.set_async(self._barrier_path, b""))
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    self._answer(self._client.create_async(self._barrier_path, b"", makepath=True))
            self._barriers = losses

    # ---- waiting ---------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return f"the metadata store {self.ensemble}"

    def _connected(self) -> None:
        """Wait for a connection, as long as a lost one may come back before the session expires: servers elect a leader
        in less time. Raises StoreError if there is none."""
        lost_at = self._lost_at
        if not self._closed and lost_at is not None:
            self._back.wait(max(0.0, lost_at + self.timeout_s - time.monotonic()))
        if self._closed or not self._client.connected:
            since = "" if lost_at is None else f" since {time.monotonic() - lost_at:.0f} s"
            raise StoreError(f"{self._place} can't be reached: no server of it answers{since}")

    def _answer(self, asked: Any) -> Any:
        """The result of a request. Raises _SilentError if no answer comes within the lifetime of a session."""
        if not asked.wait(self.timeout_s / 3):
            self.drop()
            if not asked.wait(self.timeout_s * 2 / 3):
                raise _SilentError
        return asked.get(block=False)

    def _tried(self, done: str, call: Callable[[], _T]) -> _T:
        """The result of a repeatable call, made on a connection that sees everything before it. Raises the errors of
        `_RACED` unchanged, and StoreError for all other errors."""
        until = time.monotonic() + self.timeout_s
        while True:
            self._connected()
            try:
                self._barrier()
                return call()
            except _RACED:
                raise
            except (KazooException, _SilentError) as error:
                if not isinstance(error, _LOST) or time.monotonic() > until:
                    raise StoreError(f"{self._place} can't be {done}: {_sentence(error)}") from error


class _SilentError(Exception):
    """No answer came."""


class _Sockets(SequentialThreadingHandler):
    """kazoo's threads, and the socket that it uses: no server is waited for longer than `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._refusals: dict[str, str] = {}

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(self._patience_s, kwargs["timeout"])
        host, port = kwargs["hostname"], kwargs["address"][1]
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            made = self._socket = super().create_connection(*args, **kwargs)
        except OSError as error:
            self._refusals[at] = error.strerror or str(error)
            raise
        self._refusals[at] = "it accepts connections but does not serve: do most servers of the ensemble run?"
        return made

    def drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def why_not(self, ensemble: Ensemble) -> str:
        """The answer of every server, in a sentence."""
        told = [f"{each}: {self._refusals.get(each, 'no such host is known')}" for each in ensemble.servers]
        return f"no ZooKeeper server serves this node; {', '.join(told)}"


def _sentence(error: Exception) -> str:
    if isinstance(error, _SilentError):
        return "no answer came"
    name = type(error).__name__.removesuffix("Error").removesuffix("Exception")
    return str(error) or name
