"""Runs the I/O host around a node: listeners, the disk thread, the clock, signals.

The node makes every decision; this module carries out its effects, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import signal
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.client_identity import Address
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
from ottla.broker.connection_quotas import TOO_OFTEN
from ottla.broker.effects import (
    Audited,
    Close,
    Commit,
    CommitOutcome,
    Derive,
    FetchKeys,
    Mute,
    PeerRequest,
    Reading,
    Reply,
    Reread,
    Store,
    Sync,
    Unread,
)
from ottla.broker.node import Node
from ottla.broker.requests import Listening
from ottla.broker.schedule import NEVER
from ottla.broker.upkeep.identity import StartRefusedError
from ottla.log.files import OPEN_FILES_MAX
from ottla.machine import Millis, Unanswered, WallClock
from ottla.metadata.store import CommitUnknownError, MetadataStore, StoreError
from ottla.server.buffers import Buffers
from ottla.server.clocks import DRIFT_MS, both_clocks, microseconds, moment, wall_ahead
from ottla.server.connection import Connection
from ottla.server.decoding import Decoding
from ottla.server.directory import DirectoryLock, note_boot, same_boot, unusable
from ottla.server.disk import DiskThread, NodeFiles, sync_beside
from ottla.server.listeners import (
    Listener,
    ServeRefusedError,
    SettingsRefusedError,
    join_address,
    open_listeners,
    refuse_elsewhere,
    split_address,
    taken,
)
from ottla.server.passwords import Passwords
from ottla.server.peers import Peers, Way, routes_of
from ottla.server.standalone_metadata import note_shared, open_own
from ottla.server.store import NodeStore, StoreThread
from ottla.server.transport import Transport
from ottla.server.turns import LONG_TURN_NS, Turns
from ottla.server.users import with_acls
from ottla.server.zookeeper_settings import refuse_unused

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from ottla.server.audit_log import AuditLog
    from ottla.server.metadata_follower import Following
    from ottla.server.metrics_access import MetricsAccess
    from ottla.server.metrics_port import MetricsListener
    from ottla.server.shared_metadata import Shared
    from ottla.server.tls import TlsTransport
    from ottla.server.token_keys import TokenKeys
    from ottla.server.watchdog import Watchdog

SCRATCH_BYTES = 1 << 17
DESCRIPTORS_WANTED = 1 << 16
DESCRIPTORS_RESERVED = 32
"""Descriptors reserved for everything except segments and connections."""
LEAVE_MS = 5_000
"""Seconds that a stopping node waits for other nodes to take over its leaderships."""
STORE_CHECK_S = 0.5
"""Seconds between checks that the metadata store is still the one that was opened, and that no other process uses the
data directory."""
AUDIT_FILE = "audit.log"
"""The audit log in the data directory, if the settings name no other file."""
RELOAD_S = 5.0
"""Seconds between checks of the files of certificates."""
IDLE_SWEEPS = 10
"""Seconds between checks for idle connections: a connection is closed at most a tenth of its idle period late."""

log = logging.getLogger("ottla.server")


class ServerOptions(NamedTuple):
    """The parameters of a server.

    `directory`: the data directory, None for a temporary one that is removed at the end. `listen`: [NAME://]HOST:PORT
    texts; for port 0 the system chooses one. `settings`: Kafka's property names and their text values. `metadata`: the
    store that the nodes of a cluster share, in the syntax of `server.shared_metadata`; None for a standalone node.
    `prepare`: called with the open store before the node reads it, to write its first rows.
    """

    directory: str | None = None
    listen: tuple[str, ...] = ("127.0.0.1:9092",)
    settings: Mapping[str, str] = MappingProxyType({})
    metrics: str | None = None
    seed: int | None = None
    metadata: str | None = None
    prepare: Callable[[MetadataStore], None] | None = None


class Server:
    """A node and its listeners on the running event loop.

    `start` raises ServeRefusedError. After it, `port` is the first listener's port and `address` its HOST:PORT;
    `listening` has all listeners. `ended` is set when the server stops serving. If that was not requested, `fault` has
    the reason. Then call `stop`.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.listening: tuple[Listening, ...] = ()
        self.port = 0
        self.host = ""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.buffers = Buffers()
        self.turns = Turns()
        self.decoding: Decoding
        self._passwords = Passwords(self._derived)
        self._audit_log: AuditLog | None = None
        self._token_keys: dict[str, TokenKeys] = {}
        self.request_bytes_max = self.unauthenticated_bytes_max = 0
        self.authentication_s = 0.0
        self.node: Node
        self._connections: dict[int, Connection] = {}
        self._refused: set[Connection] = set()
        """Connections that wait to be closed."""
        self._next_connection_id = 1
        self._listening: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Millis = NEVER
        self._lock: DirectoryLock | None = None
        self._temporary: TemporaryDirectory[str] | None = None
        self.metrics: MetricsListener | None = None
        self._disk = DiskThread()
        self._files: NodeFiles
        self._store: StoreThread
        self._metadata_store: NodeStore
        self._following: Following | None = None
        self._watchdog: Watchdog | None = None
        self._peers = Peers(self._address_of, self._answered, lambda: self.node.peers.trust, self.scratch, self.buffers)
        self._routes: dict[int, tuple[str, int]] = {}
        self._between_nodes: Listener | None = None
        """The listener that nodes use, None for a standalone node."""
        self._settling = False
        self._stopped = False
        self.ended = asyncio.Event()
        self.fault: str | None = None

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    # ---- start and stop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            settings = BrokerSettings.load(self.options.settings, {})
        except ConfigRefusedError as refused:
            raise SettingsRefusedError(str(refused)) from refused
        refuse_elsewhere(self.options.settings)
        if settings.ignored:
            log.info("Ignored settings (no effect in Ottla): %s", ", ".join(sorted(settings.ignored)))
        self._routes = routes_of(settings["ottla.cluster.routes"])
        access: MetricsAccess | None = None
        if self.options.metrics is not None:
            from ottla.server.metrics_access import MetricsAccess  # a node without the port starts without it

            access = MetricsAccess(settings, split_address(self.options.metrics)[0])
        listeners = open_listeners(self.options.listen, settings)
        try:
            self._open_node(settings, listeners)
        except BaseException:
            for listener in listeners:
                listener.bound.close()
            self._close_directory()
            raise
        self.host, self.port = listeners[0].host, listeners[0].port
        self._tell_listeners(listeners)
        try:
            for listener in listeners:
                await self._listen(listener)
        except ServeRefusedError:
            await self.stop()
            raise
        if self.options.metrics is not None and access is not None:
            from ottla.server.metrics_port import MetricsListener  # only now: it costs a tenth of a second

            self.metrics = MetricsListener(self.node, self.options.metrics, access)
            try:
                await self.metrics.start()
            except ServeRefusedError:
                await self.stop()
                raise
        for each in self._token_keys.values():
            each.start()
        self._sweep_idle()
        self._reload_certificates(listeners)
        self._report_certificates(listeners)
        self._check_store()
        if self._following is not None:
            self._following.look()
        self.settle()

    async def _listen(self, listener: Listener) -> None:
        """Let clients connect. Raises ServeRefusedError if another process has bound the port meanwhile."""
        factory = partial(self._accept, listener)
        backlog: int = self.node.settings["socket.listen.backlog.size"]
        try:
            self._listening.append(await self._loop.create_server(factory, sock=listener.bound, backlog=backlog))
        except OSError as error:
            listener.bound.close()
            raise taken(listener.host, listener.port, error) from error

    def _open_node(self, settings: BrokerSettings, listeners: list[Listener]) -> None:
        directory = self.options.directory
        if directory is None:
            from tempfile import TemporaryDirectory  # a node that has a directory starts without it

            self._temporary = TemporaryDirectory(prefix="ottla-", ignore_cleanup_errors=True)
            directory = self._temporary.name
        directory = os.path.abspath(directory)
        self._lock = DirectoryLock(directory)
        open_files_max, connections_max = _share_descriptors()
        store: NodeStore | None = None
        shared: Shared | None = None
        try:
            if self.options.metadata is None:
                refuse_unused(settings)
                store = open_own(directory)
            else:
                from ottla.server.shared_metadata import share  # a node that is alone needs none of it

                shared = share(self.options.metadata, settings, listeners, directory)
                store = shared.store
            settings = self._prepared(store, settings, listeners, None if shared is None else shared.listener)
            self._lock.claim()  # only now: in a cluster the node's own session may have refused this start
            self._files = NodeFiles(open_files_max)
            self.node = Node(
                settings,
                self._files,
                directory,
                store,
                entropy=random.SystemRandom() if self.options.seed is None else random.Random(self.options.seed),
                same_boot=same_boot(directory),
                notes=log.info,
                faults=_log_fault,
                wall=WallClock(wall_ahead(moment())),
                warnings=log.warning,
                joining=None if shared is None else shared.joining,
                stopwatch=microseconds,
            )
            self.node.connection_quotas.room = connections_max
            self._open_helpers(settings, directory, listeners)
            self.node.start(moment())
            # Only now: what the recovery left is consistent for as long as this boot lasts.
            note_boot(directory)
            if shared is not None:
                self._use_between_nodes(shared.listener)
                note_shared(directory, store.place)
            store.hurry()
            self._metadata_store = store
            self._store = StoreThread(store, self._loop, self._committed, self._reread)
            if shared is not None:
                self._follow(shared, store, settings)
        except BaseException as error:
            if store is not None:
                store.close()
            if shared is not None:
                shared.presence.leave()
            if isinstance(error, OSError):
                raise ServeRefusedError(unusable(directory, error)) from error
            if isinstance(error, ConfigRefusedError | StartRefusedError):
                raise SettingsRefusedError(str(error)) from error
            if isinstance(error, StoreError | CommitUnknownError):
                raise ServeRefusedError(str(error)) from error
            raise
        self._read_limits()

    def _follow(self, shared: Shared, store: NodeStore, settings: BrokerSettings) -> None:
        """Begin to follow the other nodes of the cluster."""
        from ottla.server.metadata_follower import Following

        self._following = Following(
            self.node, self._store, shared.presence, store.marked, self.now, self.settle, self._end
        )
        if settings["ottla.cluster.watchdog"]:
            from ottla.server.watchdog import Watchdog

            self._watchdog = Watchdog(shared.lease_ms)

    def _prepared(
        self, store: NodeStore, settings: BrokerSettings, listeners: list[Listener], between_nodes: Listener | None
    ) -> BrokerSettings:
        """Write the first rows; returns the settings in force. Raises SettingsRefusedError."""
        if self.options.prepare is not None:
            self.options.prepare(store)
        return with_acls(settings, self.options.settings, listeners, store, between_nodes)

    def _open_helpers(self, settings: BrokerSettings, directory: str, listeners: list[Listener]) -> None:
        """Open what works for the node on threads of its own: decoding, the audit log, the keys of tokens. Raises
        SettingsRefusedError."""
        self.decoding = Decoding(self.node.decode)
        if self.node.audit is not None:
            from ottla.server.audit_log import AuditLog

            location = settings["ottla.audit.location"] or os.path.join(directory, AUDIT_FILE)
            self._audit_log = AuditLog(location, settings["ottla.audit.file.bytes"], settings["ottla.audit.files"])
        with_sasl = [each.name for each in listeners if each.sasl]
        if not any("OAUTHBEARER" in settings.of_listener(name, "sasl.enabled.mechanisms") for name in with_sasl):
            return
        from ottla.server.token_keys import token_keys

        self._token_keys = token_keys(settings, with_sasl, self.node.keys_changed)
        for each in self._token_keys.values():
            self.node.keys_changed(each.listener, each.keys)

    def _read_limits(self) -> None:
        """Read the settings that each connection asks for."""
        settings = self.node.settings
        self.request_bytes_max = int(settings["socket.request.max.bytes"])
        self.unauthenticated_bytes_max = min(self.request_bytes_max, int(settings["sasl.server.max.receive.size"]))
        self.authentication_s = settings["ottla.authentication.timeout.ms"] / 1000

    async def stop(self) -> None:
        """Stop listening, close the connections and the logs; the next start has nothing to recover."""
        if self._stopped:
            return
        hands_over = self.fault is None and self.node.settings["controlled.shutdown.enable"]
        if self._following is not None and hands_over:
            await self._leave(self._following)
        self._stopped = True
        self._hang_up()
        if self.metrics is not None:
            self.metrics.stop()
        self._peers.stop()
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        self._disk.stop()
        self._store.stop()
        self.decoding.stop()
        self._passwords.stop()
        for each in self._token_keys.values():
            each.stop()
        sync_beside(self.node.completing())
        self.node.stop(self.now())
        if self._audit_log is not None:
            for effect in self.node.outbox.take():
                if isinstance(effect, Audited):
                    self._audit_log.write(effect.record)
            self._audit_log.stop()
        self.node.store.close()
        if self._following is not None:
            self._following.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._close_directory()

    def _hang_up(self) -> None:
        for listening in self._listening:
            listening.close()
        for connection in list(self._connections.values()):
            connection.close("the node stops", expected=True)
        for connection in list(self._refused):
            connection.close_later(0)

    def _check_store(self) -> None:
        """Stop serving once the metadata store was replaced, as this node's image is of the old one, or another process
        uses the data directory."""
        if self._stopped or self._lock is None:
            return
        why = self._metadata_store.gone() or self._lock.taken()
        if why is not None:
            self._end(why)
        elif self.fault is None:
            self._loop.call_later(STORE_CHECK_S, self._check_store)

    def _end(self, fault: str) -> None:
        """Stop serving; the caller that runs this server then stops it."""
        log.error("the node ends: %s", fault)
        self.fault = fault
        self._hang_up()
        self.ended.set()

    async def _leave(self, following: Following) -> None:
        """Hand this node's leaderships over to other nodes, as far as possible, and wait until they have them."""
        membership = self.node.membership
        assert membership is not None
        until = moment() + LEAVE_MS
        membership.leave(self.now())
        self.settle()
        while not membership.may_stop() and moment() < until:
            await asyncio.sleep(0.01)

    def _close_directory(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # ---- connections -----------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> Connection | TlsTransport:
        """Serves the socket of a new connection."""
        connection = Connection(self, listener)
        if listener.tls is None:
            return connection
        from ottla.server.tls import TlsTransport  # a node without TLS starts without it

        return TlsTransport(listener.tls, connection)

    def address_of(self, transport: Transport, listener: Listener) -> Address:
        """The address of a new connection."""
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        advertised = listener.address_for(transport.local)
        return Address(connection_id, *transport.peer, listener.name, listener.security_protocol, advertised)

    def admit(self, connection: Connection) -> bool:
        """Whether the connection limits allow this new connection."""
        address = connection.address
        admission = self.node.connection_quotas.admit(moment(), address.client_host)
        wait_s = admission.wait_ms / 1000
        if admission.refused is not None:
            log.log(
                logging.DEBUG if admission.refused == TOO_OFTEN else logging.WARNING,
                "refused a connection of %s: %s",
                address.client_host,
                admission.refused,
            )
            self.node.metrics.connections_refused += 1
            if wait_s:
                self._refused.add(connection)
                connection.close_later(wait_s)
            return False
        if wait_s:
            connection.mute(wait_s)
        self._connections[address.connection_id] = connection
        connection.last_active_ms = moment()
        self.node.metrics.connections += 1
        self.node.metrics.connections_accepted += 1
        return True

    def release(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        quotas, address = self.node.connection_quotas, connection.address
        if connection.is_admitted:
            del self._connections[address.connection_id]
            quotas.ended(address.client_host)
            self.node.metrics.connections -= 1
        elif connection in self._refused:
            self._refused.remove(connection)
            quotas.closed()

    def _sweep_idle(self) -> None:
        idle_ms = int(self.node.settings["connections.max.idle.ms"])
        if idle_ms > 0:
            oldest = moment() - idle_ms
            for connection in list(self._connections.values()):
                connection.end_if_idle(oldest)
            self._loop.call_later(max(idle_ms / 1000 / IDLE_SWEEPS, 0.05), self._sweep_idle)

    def _tell_listeners(self, listeners: list[Listener]) -> None:
        """Give the node its listeners, and the ends of their certificates."""
        self.listening = self.node.listening = tuple(
            Listening(each.name, each.host, each.port, each.advertised, each.tls and each.tls.valid_until_ms)
            for each in listeners
        )

    def _reload_certificates(self, listeners: list[Listener]) -> None:
        """Now and then: use certificates whose files have changed."""
        all_tls = [each.tls for each in listeners if each.tls is not None]
        for tls in all_tls:
            try:
                if tls.reload():
                    log.info("the listener %s uses a new certificate", tls.listener)
                    self._tell_listeners(listeners)
            except SettingsRefusedError as refused:
                log.warning("%s The old certificate stays in force.", refused)
        if self._stopped:
            return
        if self.metrics is not None:
            self.metrics.reload()
        if all_tls or self.metrics is not None:
            self._loop.call_later(RELOAD_S, self._reload_certificates, listeners)

    def _report_certificates(self, listeners: list[Listener]) -> None:
        """Once a day: log the certificates that expire soon."""
        if all_tls := [each.tls for each in listeners if each.tls is not None]:
            from ottla.server import certificate_ends  # a node without TLS starts without it

            certificate_ends.report(all_tls)
            self._loop.call_later(certificate_ends.DAY_S, self._report_certificates, listeners)

    # ---- effects and time ------------------------------------------------------------------------------------------

    def now(self) -> Millis:
        """The time to pass to the node. If the wall clock was set, the node is notified first."""
        now, ahead_ms = both_clocks()
        if abs(ahead_ms - self.node.wall.ahead_ms) > DRIFT_MS:
            self.node.wall_clock_is(now, ahead_ms)
        return now

    def settle(self) -> None:
        """Carry out the node's effects, and set the timer to its next deadline."""
        if self._settling or self._stopped:
            return
        self._settling = True
        node = self.node
        try:
            while effects := node.take_effects(moment()):
                for effect in effects:
                    match effect:
                        case Reply(ticket, connection_id, parts):
                            connection = self._connections.get(connection_id)
                            if connection is not None:
                                connection.answer(ticket, list(parts))
                        case Close(connection_id, why):
                            connection = self._connections.get(connection_id)
                            if connection is not None:
                                connection.close(why)
                        case Sync(token, files):
                            self._disk.sync(self._loop, token, files, self._synced)
                        case Store():
                            self._disk.store(self._loop, self._files, effect, self.node.not_stored)
                        case Mute(connection_id, until):
                            connection = self._connections.get(connection_id)
                            if connection is not None:
                                connection.mute(max(0, until - moment()) / 1000)
                        case PeerRequest():
                            self._peers.send(effect)
                        case Derive():
                            self._passwords.derive(effect)
                        case FetchKeys(listener):
                            self._token_keys[listener].wanted()
                        case Audited(record):
                            if self._audit_log is not None:
                                self._audit_log.write(record)
                        case Commit() | Reread():
                            self._store.carry_out(effect)
        finally:
            self._settling = False
        if node.schedule.earliest < self._timer_at:
            self._set_timer(node.deadline())

    def _set_timer(self, deadline: Millis | None) -> None:
        """Call the node at this time. A postponed deadline leaves the timer unchanged: the call then finds nothing
        due."""
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0, deadline - moment()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now, began = self.now(), perf_counter_ns()
        try:
            self.node.tick(now)
        except Exception:
            log.exception("a timer of the node failed; the node continues")
            self._loop.call_later(1, self.settle)
        else:
            took_ns = perf_counter_ns() - began
            if took_ns >= LONG_TURN_NS:
                self.node.stood_still(now, took_ns // 1_000_000)
            self.settle()

    def _use_between_nodes(self, listener: Listener) -> None:
        self._between_nodes, self._peers.tls = listener, listener.tls

    def _address_of(self, node_id: int) -> Way | None:
        """The way to another node of the cluster; None if it has not registered an address.

        As in Kafka, its listener with the name of the one that this node uses between nodes; if it has none, the one
        that it uses itself. So a cluster moves to another listener node by node.
        """
        record = self.node.image.nodes.get(str(node_id))
        route = self._routes.get(node_id)
        if record is None:
            return None if route is None else Way(*route, route[0])
        name = "" if self._between_nodes is None else self._between_nodes.name
        host, port = record.endpoints.get(name, (record.host, record.port))
        return Way(*(route or (host, port)), host)

    def _answered(self, token: int, answer: memoryview | Unanswered) -> None:
        if not self._stopped:
            self.node.answered(self.now(), token, answer)
            self.settle()

    def _derived(self, token: int, mechanism: str, salted_password: bytes) -> None:
        if not self._stopped:
            self.node.derived(self.now(), token, mechanism, salted_password)
            self.settle()

    def _committed(self, token: int, outcome: CommitOutcome) -> None:
        if not self._stopped:
            self.node.committed(self.now(), token, outcome)
            self.settle()

    def _reread(self, token: int, answer: Reading | Unread) -> None:
        if not self._stopped:
            self.node.reread(self.now(), token, answer)
            self.settle()

    def _synced(self, token: int, failures: dict[int, str]) -> None:
        if not self._stopped:
            self.node.synced(self.now(), token, failures)
            self.settle()


async def serve(options: ServerOptions, ready: Callable[[Server], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. Raises ServeRefusedError, also if the node ends because of a
    fault."""
    server = Server(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.ended.set)
    await server.start()
    try:
        ready(server)
        await server.ended.wait()
    finally:
        await server.stop()
    if server.fault is not None:
        raise ServeRefusedError(f"{server.fault[:1].upper()}{server.fault[1:]}.")


def _log_fault(what: str, error: Exception) -> None:
    log.error("%s; the node continues", what, exc_info=error)


def _share_descriptors() -> tuple[int, int]:
    """(how many segment files may be open at once, how many connections).

    Raises the process's soft limit first: it is 1,024 on most systems, for the sake of programs that use select().
    Some stay back for the store, the listeners and what is open for a moment; half of the others are for the log, and a
    third of that for directories that wait for the disk. A connection too many is refused: the log needs its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX, DESCRIPTORS_WANTED
    free = max(8, soft - DESCRIPTORS_RESERVED)
    files = min(OPEN_FILES_MAX, free // 3)
    return files, free - files * 3 // 2
