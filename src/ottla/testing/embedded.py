"""Runs a node inside the process that uses it: its server on an event loop in a thread of its own.

It starts and stops a server from any thread, sync or async; it creates topics over the wire, as any client would.

A thread, not a process, because it is faster: a start takes milliseconds once the modules are loaded, and a test's
failure ends both.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.set_up import ClientSetUp
    from ottla.server.main import Server, ServerOptions
    from ottla.testing.security import Acl, Security, Tls

DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""Settings where a test needs something different from Kafka's defaults: groups that form at once, and few files."""

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs in its thread."""

    server: Server
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread
    ended: Future[None]


class SecuredClients:
    """Gives the clients of a test's broker their properties, for each user. Subclasses have `bootstrap_servers`."""

    _security: Security | None

    @property
    def bootstrap_servers(self) -> str:
        raise NotImplementedError

    def client_properties(self, user: str | None = None) -> dict[str, str]:
        """Properties for confluent-kafka and everything else on librdkafka, and for `ottla --command-config`.

        `user`: one of `users`; without one, the admin that may do everything. Raises ValueError for an unknown user.
        """
        return self._client(user).librdkafka()

    def client_arguments(self, user: str | None = None) -> dict[str, Any]:
        """Keyword arguments for the clients of kafka-python and aiokafka, as `client_properties`."""
        return self._client(user).arguments()

    def java_properties(self, user: str | None = None) -> dict[str, str]:
        """Properties for Kafka's Java clients, and behind `kafka.` for Spark, as `client_properties`."""
        return self._client(user).java()

    def _client(self, user: str | None) -> ClientSetUp:
        from ottla.client.set_up import ClientSetUp

        if self._security is not None:
            return self._security.client(self.bootstrap_servers, user)
        if user is not None:
            raise ValueError(f"There is no user {user}: the broker knows no users without sasl=... or tls='mutual'.")
        return ClientSetUp(self.bootstrap_servers)

    def _connect(self, address: str, **options: Any) -> Client:
        """Ottla's own client at this address, as the admin."""
        from ottla.client import Client

        if self._security is None:
            return Client(address, **options)
        admin = self._security.client(address, None)
        return Client(address, tls=admin.context(), login=admin.login, **options)


def security_of(
    tls: Tls,
    sasl: str | None,
    users: Mapping[str, str] | Iterable[str],
    acls: Iterable[Acl] | None,
    settings: Mapping[str, object],
) -> Security | None:
    """The security that a test asks for; None for a broker that is open to every client. Raises ValueError."""
    if not tls and sasl is None and not users and acls is None:
        return None  # and its start loads nothing more
    from ottla.testing.security import Security

    found = Security(tls, sasl, users, acls)
    found.refuse(settings)
    return found


class EmbeddedBroker(SecuredClients):
    """A broker for tests; a context manager, sync and async.

    `settings`: Kafka's property names, over the defaults of this module. `directory`: where the data is kept; without
    one, a temporary directory that is removed with the broker. `port`: 0 lets the system choose. `start` raises
    `ServeRefusedError` with one sentence if the node cannot start.

    `tls`: True for a listener with TLS, by an authority that is made for this broker; "mutual" if clients need a
    certificate of their own. `sasl`: "scram-sha-256", "scram-sha-512" or "plain". `users`: passwords by name, or names
    whose passwords are random. `acls`: what the users may do; without it, every user may do everything. There is also
    the user `admin`, who may do everything. Combinations that make no sense raise ValueError.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
        port: int = 0,
        tls: Tls = False,
        sasl: str | None = None,
        users: Mapping[str, str] | Iterable[str] = (),
        acls: Iterable[Acl] | None = None,
    ) -> None:
        self._security = security_of(tls, sasl, users, acls, settings or {})
        self._settings = {**DEFAULTS, **{key: text_of(value) for key, value in (settings or {}).items()}}
        self._directory = None if directory is None else str(directory)
        self._temporary: str | None = None
        self._port = port
        self._running: Running | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.bootstrap_servers if self._running else 'stopped'}>"

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for any Kafka client; the same after a restart. Raises RuntimeError."""
        if self._port == 0:
            raise RuntimeError("the broker has not been started")
        return f"{HOST}:{self._port}"

    @property
    def port(self) -> int:
        """The port; 0 before the first start unless one was given."""
        return self._port

    @property
    def directory(self) -> str:
        """The data directory. Raises RuntimeError."""
        directory = self._directory or self._temporary
        if directory is None:
            raise RuntimeError("the broker has not been started")
        return directory

    def start(self) -> None:
        """Start and return when clients can connect. Raises ServeRefusedError, and RuntimeError if the broker runs."""
        if self._running is not None:
            raise RuntimeError("the broker runs already")
        with without_collections():
            from ottla.server.main import ServerOptions

        if self._directory is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="ottla-")
        listen, settings, prepare = f"{HOST}:{self._port}", self._settings, None
        try:
            if self._security is not None:
                self._security.make_files()
                listen = f"{self._security.protocol}://{listen}"
                settings, prepare = settings | self._security.settings(), self._security.write_rows
            self._running = run_in_thread(ServerOptions(self.directory, (listen,), settings, prepare=prepare))
        except BaseException:
            self._remove_temporary()
            raise
        self._port = self._running.server.port

    def stop(self) -> None:
        """Stop cleanly and remove a temporary directory; does nothing if the broker is stopped."""
        self._stop()
        self._remove_temporary()

    def restart(self) -> None:
        """Stop cleanly and start again: same port, same data."""
        self._stop()
        self.start()

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic and return its name; without `name`, a unique one is chosen.

        Raises `ottla.client.BrokerError` if the broker rejects it.
        """
        from ottla.client.errors import check
        from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        given = [CreatableTopicConfig(key, text_of(value)) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=given)
        with self._connect(self.bootstrap_servers) as client:
            (answer,) = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics
        check(answer.error_code, f"topic {name}", answer.error_message)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises `ottla.client.BrokerError` if the broker rejects it."""
        from ottla.client.errors import check
        from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=30_000)
        with self._connect(self.bootstrap_servers) as client:
            (answer,) = client.send(request).responses
        check(answer.error_code, f"topic {name}", answer.error_message)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.loop.call_soon_threadsafe(running.stop.set)
        running.ended.result(STOP_TIMEOUT_S)
        running.thread.join()

    def _remove_temporary(self) -> None:
        directory, self._temporary = self._temporary, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        if self._security is not None:
            self._security.remove_files()


def text_of(value: object) -> str:
    """The text of a setting, as in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector: what is imported stays, and to look through it costs a tenth of the first start."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def run_in_thread(options: ServerOptions) -> Running:
    """Run a server on a new loop in a new thread; returns when it is ready, raises what its start raised."""
    import uvloop

    from ottla.server.main import Server

    started: Future[tuple[Server, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    ended: Future[None] = Future()

    async def serve() -> None:
        server = Server(options)
        stop = asyncio.Event()
        await server.start()
        started.set_result((server, asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.stop()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            (ended if started.done() else started).set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="ottla-broker", daemon=True)
    thread.start()
    return Running(*started.result(START_TIMEOUT_S), thread, ended)
